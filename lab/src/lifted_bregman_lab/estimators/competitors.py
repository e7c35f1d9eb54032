"""The competitors, each with its defaults: the library's estimators, scikit-learn's networks, and Adam in PyTorch.

All get standardised features; regressors also get standardised targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # type: ignore[import-untyped]
from sklearn.compose import TransformedTargetRegressor  # type: ignore[import-untyped]
from sklearn.neural_network import MLPClassifier, MLPRegressor  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from lifted_bregman.estimators import LiftedClassifier, LiftedRegressor

Array = NDArray[Any]


class AdamNetwork(BaseEstimator):  # type: ignore[misc]
    """A common training loop: 100 hidden ReLUs, torch's initial weights, Adam(1e-3), 100 epochs of batches of 32."""

    net_: nn.Sequential

    def __init__(self, random_state: int = 0) -> None:
        self.random_state = random_state

    def _train(self, X: Array, Y: Tensor, outputs: int, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        inputs = torch.as_tensor(X, dtype=torch.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.net_ = nn.Sequential(nn.Linear(inputs.shape[1], 100), nn.ReLU(), nn.Linear(100, outputs))
            optimiser = torch.optim.Adam(self.net_.parameters(), lr=1e-3)
            for _ in range(100):
                for rows in torch.randperm(len(inputs)).split(32):
                    optimiser.zero_grad()
                    loss(self.net_(inputs[rows]), Y[rows]).backward()
                    optimiser.step()

    def _outputs(self, X: Array) -> Array:
        with torch.no_grad():
            outputs: Array = self.net_(torch.as_tensor(X, dtype=torch.float32)).numpy()
        return outputs


class AdamClassifier(ClassifierMixin, AdamNetwork):  # type: ignore[misc]
    """A classifier trained on cross-entropy."""

    def fit(self, X: Array, y: Array) -> Self:
        """Train a new network."""
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._train(X, torch.as_tensor(labels), len(self.classes_), F.cross_entropy)
        return self

    def predict(self, X: Array) -> Array:
        """Return the label of each sample."""
        labels: Array = self.classes_[self._outputs(X).argmax(1)]
        return labels


class AdamRegressor(RegressorMixin, AdamNetwork):  # type: ignore[misc]
    """A regressor trained on the mean squared error."""

    def fit(self, X: Array, y: Array) -> Self:
        """Train a new network."""
        self.flat_ = y.ndim == 1
        Y = torch.as_tensor(y.reshape(len(y), -1), dtype=torch.float32)
        self._train(X, Y, Y.shape[1], F.mse_loss)
        return self

    def predict(self, X: Array) -> Array:
        """Return predicted targets, in the shape of those given to `fit`."""
        outputs = self._outputs(X)
        return outputs.ravel() if self.flat_ else outputs


LIFTED = "lifted"

COMPETITORS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    LIFTED: (LiftedClassifier, LiftedRegressor),
    "scikit-learn": (MLPClassifier, MLPRegressor),
    "Adam": (AdamClassifier, AdamRegressor),
}
"""A classifier and a regressor of each, constructed with random_state= only."""


def competitor(name: str, classify: bool, seed: int) -> Any:
    """Return the competitor in a pipeline that standardises features, and targets of a regressor."""
    pipeline = make_pipeline(StandardScaler(), COMPETITORS[name][not classify](random_state=seed))
    return pipeline if classify else TransformedTargetRegressor(pipeline, transformer=StandardScaler())
