"""The cases: a solver, a network and a batch, for one process and for two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.solvers import (
    CurvatureStep,
    GramSweep,
    ImplicitSGD,
    Jacobi,
    ModelAveraging,
    PipelinedSweep,
    ProximalGradient,
    Solver,
)
from lifted_bregman.solvers.baselines import SGD

MICRO_BATCHES = 4
"""Number of parts of a batch in pipelined sweeps."""


class Use(Enum):
    """The use of a measurement in `lab/scripts/cluster_model.py`."""

    CALIBRATE = "its inputs are fitted to it"
    CHECK = "its prediction is compared with it"
    SHOW = "nothing"


@dataclass(frozen=True)
class Case:
    """A solver on a network of ReLU layers of one width, with a squared error, one batch at a time.

    algorithm  a name in ALGORITHMS
    shared     what two processes share, "data" or "layer"
    depth      L, all layers of
    width      m units
    samples    n of the whole batch
    use        in the model of clusters
    goal       the speed-up required of two processes; None for none
    """

    algorithm: str
    shared: str
    depth: int
    width: int
    samples: int
    use: Use = Use.SHOW
    goal: float | None = None

    @property
    def name(self) -> str:
        """The name of the case, unique among all cases."""
        return f"{self.algorithm}, {self.shared}, {self.depth} x {self.width}, {self.samples}"

    @property
    def parallel(self) -> Parallel:
        """The two processes."""
        data, layer = (2, 1) if self.shared == "data" else (1, 2)
        return Parallel(data, layer, timeout=600.0, restarts=0)

    def solver(self) -> Solver[Any]:
        """Return a new solver."""
        return ALGORITHMS[self.algorithm]()


def _simultaneous() -> Solver[Any]:
    return ProximalGradient(sweep=Jacobi(), step_rule=CurvatureStep(1.0, upper=False))


def _averaging(local_steps: int) -> Solver[Any]:
    return ModelAveraging(workers=2, solver=_simultaneous(), local_steps=local_steps)


ALGORITHMS: Mapping[str, Callable[[], Solver[Any]]] = {
    "back-propagation": lambda: SGD(1e-3),
    "Gram sweep": GramSweep,
    "Gram sweep in parts": lambda: GramSweep(micro_batches=MICRO_BATCHES),
    "implicit SGD": lambda: ImplicitSGD(prox_weight=100.0, inner_steps=5),
    "simultaneous sweep": _simultaneous,
    "pipelined sweep": lambda: PipelinedSweep(micro_batches=MICRO_BATCHES),
    "averaging every sweep": lambda: _averaging(1),
    "averaging every 4 sweeps": lambda: _averaging(4),
    "averaging every 16 sweeps": lambda: _averaging(16),
}

Size = tuple[int, int, int]
"""Depth, width and samples."""

_FITTED: tuple[Size, ...] = ((4, 784, 400), (4, 784, 1600), (8, 256, 400), (6, 512, 800))
_PREDICTED = ((4, 784, 800), (5, 640, 1200))
_FITTED_BY_LAYER = ((20, 784, 200), (8, 256, 200), (8, 784, 50), (12, 512, 400))
_PREDICTED_BY_LAYER = ((16, 640, 150), (20, 784, 100))


def _modelled(
    algorithm: str, shared: str, fitted: Sequence[Size], predicted: Sequence[Size], goals: Mapping[Size, float]
) -> tuple[Case, ...]:
    uses = [(size, Use.CALIBRATE) for size in fitted] + [(size, Use.CHECK) for size in predicted]
    return tuple(Case(algorithm, shared, *size, use=use, goal=goals.get(size)) for size, use in uses)


CASES: tuple[Case, ...] = (
    *_modelled("Gram sweep", "data", _FITTED, _PREDICTED, {(4, 784, 1600): 1.6}),
    *_modelled("back-propagation", "data", _FITTED, _PREDICTED, {(4, 784, 1600): 1.6}),
    *_modelled("simultaneous sweep", "layer", _FITTED_BY_LAYER, _PREDICTED_BY_LAYER, {(20, 784, 200): 1.8}),
    *_modelled("Gram sweep in parts", "layer", _FITTED_BY_LAYER, _PREDICTED_BY_LAYER, {}),
    *_modelled("pipelined sweep", "layer", _FITTED_BY_LAYER, _PREDICTED_BY_LAYER, {}),
    Case("implicit SGD", "data", 4, 784, 400),
    Case("implicit SGD", "data", 4, 784, 1600, goal=1.6),
    Case("simultaneous sweep", "data", 4, 784, 400, use=Use.CHECK),
    Case("averaging every sweep", "data", 4, 784, 400),
    Case("averaging every 4 sweeps", "data", 4, 784, 400),
    Case("averaging every 16 sweeps", "data", 4, 784, 400),
)
"""Everything that `lifted bench scale` measures."""

QUICK: tuple[Case, ...] = (
    Case("Gram sweep", "data", 4, 784, 1600, goal=1.6),
    Case("back-propagation", "data", 4, 784, 400),
    Case("simultaneous sweep", "layer", 20, 784, 200, goal=1.8),
    Case("Gram sweep in parts", "layer", 20, 784, 200),
)
"""What `lifted bench scale --quick` measures."""
