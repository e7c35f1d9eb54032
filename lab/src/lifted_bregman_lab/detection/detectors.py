"""The detectors: the library's, and PyOD's with their defaults, which are imported when used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lifted_bregman.estimators import LiftedDetector
from lifted_bregman_lab.packages import load_package

LIFTED = "lifted"
PACKAGE = "pyod"
"""The package of the rivals; the lab's extra 'detection' installs it."""

RIVALS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ECOD": ("pyod.models.ecod", {}),
    "IForest": ("pyod.models.iforest", {"random_state": None}),
    "KNN": ("pyod.models.knn", {}),
    "COPOD": ("pyod.models.copod", {}),
    "HBOS": ("pyod.models.hbos", {}),
    "AutoEncoder": ("pyod.models.auto_encoder", {"random_state": None, "verbose": 0}),
}
"""The module of each rival, and its arguments; random_state is the seed."""


def table_detector(name: str, seed: int) -> Any:
    """A detector for tables with its defaults."""
    if name == LIFTED:
        return LiftedDetector(random_state=seed)
    module, arguments = RIVALS[name]
    settings = {key: seed if key == "random_state" else value for key, value in arguments.items()}
    return getattr(load_package(module), name)(**settings)


def picture_detector(seed: int) -> LiftedDetector:
    """A convolutional autoencoder for images whose contrast is normalised one by one, as Deep SVDD's protocol does."""
    return LiftedDetector(images=(28, 28), standardise="samples", members=1, epochs=5, random_state=seed)


TABLE_DETECTORS: tuple[str, ...] = (LIFTED, *RIVALS)
PICTURE_DETECTORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "all energies": lambda detector, X: detector.decision_function(X),
    "reconstruction error": lambda detector, X: ((detector.reconstruct(X) - X) ** 2).sum(1),
    "output's energy": lambda detector, X: detector.explain(X).layers[:, -1].numpy(),
}
"""Scores of one fitted autoencoder: the detector's, and parts of it for comparison."""
