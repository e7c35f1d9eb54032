"""Data of the estimators' tests, and what they compare."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.datasets import load_digits, make_classification

from lifted_bregman.estimators import LiftedAutoencoder, LiftedClassifier, LiftedRegressor
from lifted_bregman.estimators._base import LiftedEstimator
from lifted_bregman.solvers import Callback

Array = NDArray[np.floating]


def classes(samples: int = 90, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Three classes in six dimensions that a small network tells apart only in part."""
    X, y = make_classification(
        samples, n_features=6, n_informative=4, n_classes=3, class_sep=1.0, flip_y=0.1, random_state=seed
    )
    return X, y


def digits() -> tuple[Array, NDArray[np.int64]]:
    """1,797 digits of 8 x 8 pixels in [0, 1]."""
    X, y = load_digits(return_X_y=True)
    return X / 16.0, y


def parameters(estimator: LiftedEstimator) -> list[torch.Tensor]:
    return [p.detach() for p in estimator.model_.parameters()]


def same_parameters(one: LiftedEstimator, other: LiftedEstimator) -> bool:
    """Bit for bit."""
    return all(torch.equal(p, q) for p, q in zip(parameters(one), parameters(other), strict=True))


def without_times(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


X, Y = classes()
SETTINGS = {"epochs": 4, "random_state": 0, "batch_size": 20}
KINDS = [LiftedClassifier, LiftedRegressor, LiftedAutoencoder]


def made(kind: type[BaseEstimator], **settings) -> BaseEstimator:
    hidden = (5, 4, 3) if kind is LiftedAutoencoder else (7,)
    return kind(**({"hidden": hidden} | SETTINGS | settings))


def predict(estimator: BaseEstimator, X: np.ndarray = X) -> np.ndarray:
    if isinstance(estimator, LiftedAutoencoder):
        return estimator.denoise(X)
    return getattr(estimator, "decision_function" if isinstance(estimator, LiftedClassifier) else "predict")(X)


every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


class Rows(Callback):
    """The parameters after each row."""

    def __init__(self) -> None:
        self.seen: list[list[torch.Tensor]] = []

    def recorded(self, run, row) -> None:
        self.seen.append([p.detach().clone() for p in run.problem.model.parameters()])
