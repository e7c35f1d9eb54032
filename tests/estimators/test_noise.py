"""`dropout` and `input_noise` of the estimators: what they are in expectation, how they are drawn, what is refused."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.linear_model import Ridge
from torch import nn

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.estimators import LiftedAutoencoder, LiftedClassifier, LiftedRegressor
from tests.estimators.data import X, Y, every_kind, made, parameters, same_parameters, without_times

NOISY: dict[str, Any] = {"dropout": 0.3, "input_noise": 0.2}


@every_kind
@pytest.mark.parametrize("setting", [{"dropout": 0.3}, {"input_noise": 0.2}, NOISY], ids=str)
def test_noise_changes_the_training_and_not_the_network(kind: type[BaseEstimator], setting: dict[str, Any]) -> None:
    plain, noisy, again = (made(kind, epochs=3, tol=None, **given).fit(X, Y) for given in ({}, setting, setting))
    assert same_parameters(noisy, again) and not same_parameters(noisy, plain)
    assert [type(module) for module in noisy.model_] == [type(module) for module in plain.model_]
    use = noisy.transform if kind is LiftedAutoencoder else noisy.predict
    assert np.array_equal(use(X), use(X))


@every_kind
def test_partial_fits_with_noise_are_one_fit(kind: type[BaseEstimator]) -> None:
    settings = {"solver": lb.baselines.Adam(learning_rate=0.01), **NOISY}
    whole = made(kind, epochs=3, tol=None, **settings).fit(X, Y)
    parts = made(kind, **settings)
    parts.partial_fit(X, Y, **({"classes": [0, 1, 2]} if kind is LiftedClassifier else {}))
    for _ in range(2):
        parts = pickle.loads(pickle.dumps(parts)).partial_fit(X, Y)
    assert same_parameters(whole, parts)
    assert without_times(whole.history_) == without_times(parts.history_) and parts.loss_ == whole.loss_


def test_input_noise_of_a_linear_regression_is_scikit_learns_ridge() -> None:
    """Ridge minimises ‖Y - XW‖² + α‖W‖², so that α = samples · s²; 400 steps end within a fifth of the way to it."""
    std = 0.8
    solver = lb.baselines.SGD(lb.solvers.CosineDecay(0.1))
    targets = X @ np.random.default_rng(0).normal(size=(X.shape[1], 2))
    settings: dict[str, Any] = {"epochs": 400, "batch_size": len(X), "tol": None, "standardise_targets": False}
    model = LiftedRegressor((), solver=solver, input_noise=std, random_state=0, **settings)
    found = parameters(model.fit(X, targets))[0].numpy()
    ridge, least_squares = (Ridge(alpha=len(X) * s**2).fit(X, targets).coef_ for s in (std, 0.0))
    assert np.linalg.norm(found - ridge) < 0.2 * np.linalg.norm(least_squares - ridge)


def test_dropout_is_of_hidden_layers_and_the_parameters_keep_their_names() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    noisy = lb.maps.noise.insert_noise(network, dropout=0.25, input_noise=0.5)
    assert [type(module).__name__ for module in noisy] == [
        *("GaussianNoise", "Linear", "ReLU", "Dropout", "Linear", "Tanh", "Dropout", "Linear")
    ]
    assert (noisy[0].std, noisy[3].p, noisy[6].p) == (0.5, 0.25, 0.25)
    mine, theirs = network.state_dict(), noisy.state_dict()
    assert list(mine) == list(theirs) and all(mine[name].data_ptr() == theirs[name].data_ptr() for name in mine)
    x = torch.randn(3, 4)
    assert torch.equal(noisy.eval()(x), network(x))


@every_kind
@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, math.nan, "half", None, True], ids=str)
def test_dropout_outside_0_to_1_is_refused(kind: type[BaseEstimator], dropout: Any) -> None:
    with pytest.raises(SettingError, match=r"dropout is .*; it must be a number of at least 0 and below 1"):
        made(kind, dropout=dropout).fit(X, Y)


@pytest.mark.parametrize("noise", [-1.0, math.inf, math.nan, "loud", None], ids=str)
def test_negative_or_infinite_input_noise_is_refused(noise: Any) -> None:
    with pytest.raises(SettingError, match=r"input_noise is .*; it must be a finite number of at least 0"):
        made(LiftedRegressor, input_noise=noise).fit(X, Y)


def test_dropout_without_hidden_layers_and_solvers_that_take_none_are_refused() -> None:
    with pytest.raises(SettingError, match=r"dropout is 0\.5, and the network has no hidden layer"):
        made(LiftedRegressor, hidden=(), dropout=0.5).fit(X, Y)
    with pytest.raises(CompatibilityError, match="in training mode"):
        made(LiftedRegressor, solver=lb.ADMM(), batch_size=None, dropout=0.5).fit(X, Y)
