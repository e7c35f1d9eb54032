"""lifted_bregman: train neural networks without differentiating their activations.

problem = lb.lift(model, loss=lb.SquaredError())      # reads the model and shares its parameters
result = lb.fit(problem, (X, Y), epochs=5)             # trains it in place
result.history, result.outcome, result.message         # a row an epoch, and how it ended

A name is imported when it is first used, so that `import lifted_bregman` and `lifted --help` take no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lifted_bregman import activations, data, errors, models, optim, penalties
    from lifted_bregman.activations import forbid_activation_derivatives
    from lifted_bregman.activations.checks import check_bregman, check_conjugate, check_prox
    from lifted_bregman.backward import backward_report, lifted_backward, plain_backward
    from lifted_bregman.distributed import Parallel
    from lifted_bregman.estimators import (
        LiftedAutoencoder,
        LiftedClassifier,
        LiftedDetector,
        LiftedOutlierDetector,
        LiftedRegressor,
    )
    from lifted_bregman.graph.prune import prune
    from lifted_bregman.losses import BregmanLoss, CrossEntropy, QuadraticPenalty, SquaredError, bregman_loss
    from lifted_bregman.maps import GaussianNoise, Map
    from lifted_bregman.maps.checks import check_map
    from lifted_bregman.problem import LiftedProblem, LiftedState
    from lifted_bregman.problem.checks import check_penalty
    from lifted_bregman.problem.composite import composite_prox
    from lifted_bregman.problem.gradient_agreement import gradient_agreement
    from lifted_bregman.problem.lift import lift
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
        PrimalDual,
        ProximalGradient,
        RandomCoordinateDescent,
        StochasticADMM,
        StochasticProximalGradient,
        TargetSparsity,
        baselines,
    )
    from lifted_bregman.tasks import DescentInversion, Inversion, PrimalDualInversion, invert
    from lifted_bregman.training import callbacks
    from lifted_bregman.training.fit import fit

__version__ = "0.2.0"

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
    "DescentInversion",
    "GaussianNoise",
    "GramSweep",
    "ImplicitParallel",
    "ImplicitSGD",
    "Inversion",
    "LiftedAutoencoder",
    "LiftedClassifier",
    "LiftedDetector",
    "LiftedOutlierDetector",
    "LiftedProblem",
    "LiftedRegressor",
    "LiftedState",
    "LinBreg",
    "Map",
    "ModelAveraging",
    "Parallel",
    "PipelinedSweep",
    "PrimalDual",
    "PrimalDualInversion",
    "ProximalGradient",
    "QuadraticPenalty",
    "RandomCoordinateDescent",
    "SquaredError",
    "StochasticADMM",
    "StochasticProximalGradient",
    "TargetSparsity",
    "activations",
    "backward_report",
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
    "invert",
    "lift",
    "lifted_backward",
    "models",
    "optim",
    "penalties",
    "plain_backward",
    "prune",
]

_HOMES = {
    "activations": ("forbid_activation_derivatives",),
    "activations.checks": ("check_bregman", "check_conjugate", "check_prox"),
    "backward": ("backward_report", "lifted_backward", "plain_backward"),
    "distributed": ("Parallel",),
    "estimators": (
        *("LiftedAutoencoder", "LiftedClassifier", "LiftedDetector", "LiftedOutlierDetector", "LiftedRegressor"),
    ),
    "losses": ("BregmanLoss", "CrossEntropy", "QuadraticPenalty", "SquaredError", "bregman_loss"),
    "graph.prune": ("prune",),
    "maps": ("GaussianNoise", "Map"),
    "maps.checks": ("check_map",),
    "problem": ("LiftedProblem", "LiftedState", "gradient_agreement", "lift"),
    "problem.checks": ("check_penalty",),
    "problem.composite": ("composite_prox",),
    "tasks": ("DescentInversion", "Inversion", "PrimalDualInversion", "invert"),
    "training": ("callbacks", "fit"),
}
"""The module of each public name; what is not here is a room itself, or a solver."""
_ROOMS = (
    *("activations", "losses", "penalties", "maps", "models", "graph", "problem", "solvers", "backward", "data"),
    *("distributed", "optim", "training", "estimators", "tasks", "errors"),
)
"""Modules that are attributes of the package without being imported by name."""
_MODULES = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'solvers')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
