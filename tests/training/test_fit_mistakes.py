"""What `fit` refuses: data, settings and models that cannot be meant, with a sentence and before anything changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    TensorDataset,
)

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from tests.solvers.problems import make
from tests.training.runs import Pairs, assert_same, case_in, parameters

SOLVER = solvers.ImplicitSGD(prox_weight=5.0, inner_steps=2)


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


def jagged(*lengths):
    return torch.nested.nested_tensor([torch.zeros(length) for length in lengths], layout=torch.jagged)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ((torch.zeros(3, 5),), "parts"),
        (5, "int"),
        ((np.array([["a"] * 5]), np.zeros((1, 3))), "numbers"),
        ((np.array([[None] * 5]), np.zeros((1, 3))), "NoneType"),
        (Nothing(), "empty"),
        (DataLoader(Nothing()), "empty"),
        (iter([(torch.zeros(2, 5), torch.zeros(2, 3))]), "list_iterator.*read only once.*every epoch reads it again"),
        ({"X": torch.zeros(2, 5)}, "is a dict"),
        (DataLoader(TensorDataset(torch.zeros(2, 5)), batch_size=2), "pairs"),
        (Pairs([]), "empty"),
        ("mnits", "mnist"),
        ((np.ones((2, 5), dtype=complex), np.zeros((2, 3))), "complex"),
        ((torch.eye(5).to_sparse(), torch.zeros(5, 3)), "to_dense"),
        ((torch.eye(5).to("meta"), torch.zeros(5, 3)), "meta device, which holds no numbers.*device='cpu'"),
        ((torch.eye(5), torch.zeros(5, 3, device="meta")), "Y of data is on the meta device"),
        (Pairs([(torch.zeros(5, device="meta"), torch.zeros(3))]), "X of data is on the meta device"),
        ((jagged(5, 4), torch.zeros(2, 3)), "nested tensor.*one shape"),
        ((torch.zeros(2, 5), jagged(3, 2)), "Y of data is a nested tensor"),
        ((torch.eye(5) * 1j, torch.zeros(5, 3)), r"complex64; expected real numbers: use X\.real"),
        ((np.ma.masked_less(np.eye(5), 0.5), np.zeros((5, 3))), r"20 of the 25.*masked.*X\.filled"),
        ((np.eye(5), np.ma.masked_greater(np.eye(5, 3), 0.5)), "Y of data.*3 of the 15"),
        (Pairs([(np.ma.masked_array(np.ones(5), [0, 0, 1, 0, 0]), np.zeros(3))]), "1 of the 5.*masked"),
        ((np.eye(5), np.array(list("abcab"))), r"strings such as 'a'.*numpy\.unique\(y, return_inverse=True\)"),
        (Pairs([(torch.zeros(5), "a")]), "strings such as 'a'"),
        ((np.full((5, 5), "1.0"), np.zeros((5, 3))), r"strings such as '1\.0'.*X\.astype\(float\)"),
        ((np.zeros((5, 5), "M8[s]"), np.zeros((5, 3))), "datetime64.*numbers"),
        (Pairs([(torch.zeros(5), torch.zeros(3)), (torch.zeros(4), torch.zeros(3))]), "stacked.*same shape"),
        (DataLoader(TensorDataset(torch.eye(5), torch.zeros(5, 3)), batch_size=None), "batch_size=None.*batch_size="),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_data_is_refused_with_a_sentence(data, word):
    case = case_in(torch.float32)
    with pytest.raises(errors.LiftedBregmanError, match=word):
        lb.fit(case.problem, data, SOLVER, epochs=1)


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
        {"epochs": 1, "sample_weights": np.ma.masked_array(np.ones(12), np.arange(12) > 5)},
        {"epochs": 1, "sample_weights": torch.ones(12) * 1j},
        {"epochs": 1, "sample_weights": np.ones(12), "solver": lb.ADMM()},
        {"epochs": 1, "callbacks": lb.callbacks.Timer(1.0)},
        {"epochs": 1, "callbacks": None},
        {"epochs": 1, "tolerance": -1.0, "solver": lb.ProximalGradient()},
        {"epochs": 1, "tolerance": math.nan, "solver": lb.ProximalGradient()},
        {"epochs": 1, "tolerance": "0.1", "solver": lb.ProximalGradient()},
        {"epochs": 1, "tolerance": 0.1, "batch_size": 5},
        {"epochs": 1, "tolerance": 0.1, "solver": lb.GramSweep()},
    ],
    ids=[str(number) for number in range(22)],
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


def test_drop_last_is_refused_where_no_batch_is_left_and_for_the_validation_set():
    case = make("relu")
    pairs = TensorDataset(*case.data)
    with pytest.raises(errors.TensorError, match=r"empty.*drop_last=True at least one whole batch"):
        lb.fit(case.problem, DataLoader(pairs, batch_size=13, drop_last=True), SOLVER, epochs=1)
    with pytest.raises(errors.SettingError, match=r"validation.*drop_last=True.*every sample"):
        lb.fit(case.problem, pairs, SOLVER, epochs=1, validation=DataLoader(pairs, batch_size=5, drop_last=True))


def test_autocast_is_refused_with_what_to_do():
    case = case_in(torch.float32)
    refused = r"ProximalGradient requires .*float32; missing: autocast.*bfloat16.*enabled=False.*GramSweep"
    with pytest.raises(errors.CompatibilityError, match=refused), torch.autocast("cpu"):
        lb.fit(case.problem, case.data, lb.ProximalGradient(), epochs=1)
    state = case.problem.forward_state(case.X)
    with pytest.raises(errors.SettingError, match=r"autocast.*bfloat16.*enabled=False"), torch.autocast("cpu"):
        case.problem.energy(state, *case.data)
    with torch.autocast("cpu", enabled=False):
        lb.fit(case.problem, case.data, epochs=1)
    with torch.autocast("cpu"):  # which leaves float64 as it is
        lb.fit(make("relu").problem, make("relu").data, epochs=1)


def test_a_model_on_the_meta_device_is_refused_with_what_to_do():
    case = make("relu")
    case.problem.model.to("meta")
    with pytest.raises(errors.TensorError, match=r"parameters are on the meta device.*to_empty"):
        lb.fit(case.problem, case.data, epochs=1)
    with pytest.raises(errors.TensorError, match=r"0\.weight is on the meta device.*to_empty"):
        lb.lift(case.problem.model, loss=lb.SquaredError())
