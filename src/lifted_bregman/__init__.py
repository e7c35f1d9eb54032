"""lifted_bregman: train neural networks without differentiating their activations.

problem = lb.lift(model, loss=lb.SquaredError())      # reads an nn.Sequential and shares its parameters
state = problem.forward_state(X)                       # the layers' outputs as variables of their own
problem.energy(state, X, Y)                            # the lifted Bregman energy E(Θ, X)
"""

from lifted_bregman import activations, errors
from lifted_bregman.activations import forbid_activation_derivatives
from lifted_bregman.activations.checks import check_bregman, check_conjugate, check_prox
from lifted_bregman.losses import BregmanLoss, CrossEntropy, QuadraticPenalty, SquaredError, bregman_loss
from lifted_bregman.networks import Map
from lifted_bregman.networks.checks import check_map
from lifted_bregman.networks.prune import prune
from lifted_bregman.problem import LiftedProblem, LiftedState, gradient_agreement, lift, penalties
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.solvers import (
    ADMM,
    PIAG,
    SAG,
    SAGA,
    AdaBreg,
    BregmanCoordinateDescent,
    BregmanIterations,
    Constrained,
    CoordinateDescent,
    ImplicitParallel,
    ImplicitSGD,
    LinBreg,
    ModelAveraging,
    ProximalGradient,
    StochasticProximalGradient,
    TargetSparsity,
    baselines,
)
from lifted_bregman.training import callbacks, fit

__version__ = "0.1.0"

__all__ = [
    "ADMM",
    "PIAG",
    "SAG",
    "SAGA",
    "AdaBreg",
    "BregmanCoordinateDescent",
    "BregmanIterations",
    "BregmanLoss",
    "Constrained",
    "CoordinateDescent",
    "CrossEntropy",
    "ImplicitParallel",
    "ImplicitSGD",
    "LiftedProblem",
    "LiftedState",
    "LinBreg",
    "Map",
    "ModelAveraging",
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
    "check_prox",
    "composite_prox",
    "errors",
    "fit",
    "forbid_activation_derivatives",
    "gradient_agreement",
    "lift",
    "penalties",
    "prune",
]
