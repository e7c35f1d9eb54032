"""What `fit` refuses: data, settings and models that cannot be meant, with a sentence and before anything changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from tests.solvers.problems import make
from tests.training.runs import Pairs, assert_same, case_in, parameters

SOLVER = solvers.ImplicitSGD(prox_weight=5.0, inner_steps=2)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ((torch.zeros(3, 5),), "parts"),
        (5, "int"),
        ((np.array([["a"] * 5]), np.zeros((1, 3))), "numbers"),
        ((np.array([[None] * 5]), np.zeros((1, 3))), "NoneType"),
        (Endless(), "length"),
        (DataLoader(Endless()), "iterable"),
        (DataLoader(TensorDataset(torch.zeros(2, 5)), batch_size=2), "pairs"),
        (Pairs([]), "empty"),
        ("mnits", "mnist"),
        ((np.ones((2, 5), dtype=complex), np.zeros((2, 3))), "complex"),
        ((torch.eye(5).to_sparse(), torch.zeros(5, 3)), "to_dense"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_data_is_refused_with_a_sentence(data, word):
    case = case_in(torch.float32)
    with pytest.raises(errors.LiftedBregmanError, match=word):
        lb.fit(case.problem, data, SOLVER, epochs=1)


def test_a_sampler_of_the_users_own_is_refused():
    case = make("relu")
    pairs = TensorDataset(*case.data)
    of_its_own = {
        "WeightedRandomSampler": DataLoader(pairs, batch_size=4, sampler=WeightedRandomSampler([1.0] * 12, 12)),
        "RandomSampler": DataLoader(pairs, batch_size=4, sampler=RandomSampler(pairs, num_samples=5)),
        "list": DataLoader(pairs, batch_sampler=[[0, 1, 2], [3, 4]]),
    }
    for kind, loader in of_its_own.items():
        with pytest.raises(errors.SettingError, match=f"with a {kind} of its own.*sample_weights"):
            lb.fit(case.problem, loader, SOLVER, epochs=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"epochs": True},
        {"epochs": 1, "seed": "a"},
        {"epochs": 1, "record_every": 0},
        {"epochs": 1, "batch_size": 0},
        {"epochs": 1, "solver": "adam"},
        {"epochs": 1, "callbacks": [print]},
        {"epochs": 1, "resume": True},
        {"epochs": 1, "callbacks": [lb.callbacks.Checkpoint()]},
        {"epochs": 1, "sample_weights": np.zeros(12)},
        {"epochs": 1, "sample_weights": np.ones(5)},
        {"epochs": 1, "sample_weights": np.full(12, np.nan)},
        {"epochs": 1, "sample_weights": np.ones(12), "solver": lb.ADMM()},
        {"epochs": 1, "callbacks": lb.callbacks.Timer(1.0)},
        {"epochs": 1, "callbacks": None},
        {"epochs": 1, "tolerance": -1.0, "solver": lb.ProximalGradient()},
        {"epochs": 1, "tolerance": math.nan, "solver": lb.ProximalGradient()},
        {"epochs": 1, "tolerance": "0.1", "solver": lb.ProximalGradient()},
        {"epochs": 1, "tolerance": 0.1, "batch_size": 5},
        {"epochs": 1, "tolerance": 0.1, "solver": lb.GramSweep()},
    ],
    ids=[str(number) for number in range(20)],
)
def test_bad_settings_are_refused_before_anything_changes(settings):
    case = make("relu")
    before = parameters(case)
    with pytest.raises(errors.LiftedBregmanError):
        lb.fit(case.problem, case.data, **{"solver": SOLVER, **settings})
    assert_same(parameters(case), before)


def test_a_model_that_was_not_lifted_is_refused_with_what_to_do():
    case = make("relu")
    with pytest.raises(errors.SettingError, match=r"lb\.lift\(model"):
        lb.fit(case.problem.model, case.data, epochs=1)


def test_a_model_of_which_nothing_is_trained_is_refused():
    case = make("relu")
    case.problem.model.requires_grad_(False)
    with pytest.raises(errors.SettingError, match="nothing to train"):
        lb.fit(case.problem, case.data, epochs=1)


def test_what_is_wrong_with_the_validation_set_is_not_blamed_on_the_data():
    case = make("relu")
    for X, Y in ((case.X[:, :2], case.Y), (case.X[:0], case.Y[:0]), (case.X, case.Y[:3]), (case.X * math.nan, case.Y)):
        with pytest.raises(errors.TensorError, match=r"^validation: "):
            lb.fit(case.problem, case.data, epochs=1, validation=(X, Y))
