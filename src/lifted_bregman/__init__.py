"""lifted_bregman: train neural networks without differentiating their activations.

problem = lb.lift(model, loss=lb.SquaredError())      # reads an nn.Sequential and shares its parameters
result = lb.fit(problem, (X, Y), epochs=5)             # trains it in place
result.history, result.outcome, result.message         # a row an epoch, and how it ended
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lifted_bregman import activations, errors
from lifted_bregman.activations import forbid_activation_derivatives
from lifted_bregman.activations.checks import check_bregman, check_conjugate, check_prox
from lifted_bregman.distributed import Parallel
from lifted_bregman.losses import BregmanLoss, CrossEntropy, QuadraticPenalty, SquaredError, bregman_loss
from lifted_bregman.networks import Map
from lifted_bregman.networks.checks import check_map
from lifted_bregman.networks.prune import prune
from lifted_bregman.problem import LiftedProblem, LiftedState, gradient_agreement, lift, penalties
from lifted_bregman.problem.checks import check_penalty
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.solvers import (
    ADMM,
    PIAG,
    SAG,
    SAGA,
    AdaBreg,
    AsynchronousPIAG,
    BregmanCoordinateDescent,
    BregmanIterations,
    Constrained,
    CoordinateDescent,
    GramSweep,
    ImplicitParallel,
    ImplicitSGD,
    LinBreg,
    ModelAveraging,
    PipelinedSweep,
    ProximalGradient,
    StochasticProximalGradient,
    TargetSparsity,
    baselines,
)
from lifted_bregman.training import callbacks, fit

if TYPE_CHECKING:
    from lifted_bregman import data
    from lifted_bregman.estimators import LiftedAutoencoder, LiftedClassifier, LiftedRegressor

__version__ = "0.1.0"

__all__ = [
    "ADMM",
    "PIAG",
    "SAG",
    "SAGA",
    "AdaBreg",
    "AsynchronousPIAG",
    "BregmanCoordinateDescent",
    "BregmanIterations",
    "BregmanLoss",
    "Constrained",
    "CoordinateDescent",
    "CrossEntropy",
    "GramSweep",
    "ImplicitParallel",
    "ImplicitSGD",
    "LiftedAutoencoder",
    "LiftedClassifier",
    "LiftedProblem",
    "LiftedRegressor",
    "LiftedState",
    "LinBreg",
    "Map",
    "ModelAveraging",
    "Parallel",
    "PipelinedSweep",
    "ProximalGradient",
    "QuadraticPenalty",
    "SquaredError",
    "StochasticProximalGradient",
    "TargetSparsity",
    "activations",
    "baselines",
    "bregman_loss",
    "callbacks",
    "check_bregman",
    "check_conjugate",
    "check_map",
    "check_penalty",
    "check_prox",
    "composite_prox",
    "data",
    "errors",
    "fit",
    "forbid_activation_derivatives",
    "gradient_agreement",
    "lift",
    "penalties",
    "prune",
]

# Imported when first asked for: estimators need scikit-learn, and not everybody needs data sets.
_LATER = {
    "LiftedAutoencoder": "estimators",
    "LiftedClassifier": "estimators",
    "LiftedRegressor": "estimators",
    "data": "data",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_LATER[name]}")
    return module if name == _LATER[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
