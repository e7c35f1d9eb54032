"""Baselines: back-propagation and the other lifted methods, behind the interface of the solvers."""

from lifted_bregman.solvers.baselines._backpropagation import Normalisation
from lifted_bregman.solvers.baselines.adam import Adam
from lifted_bregman.solvers.baselines.adamw import AdamW
from lifted_bregman.solvers.baselines.classical_lifted import ClassicalLifted, classical_problem
from lifted_bregman.solvers.baselines.fenchel_lifted import FenchelLifted
from lifted_bregman.solvers.baselines.gradient_descent import GradientDescent
from lifted_bregman.solvers.baselines.implicit_backprop import ImplicitBackprop
from lifted_bregman.solvers.baselines.lpom import LPOM
from lifted_bregman.solvers.baselines.mac_qp import MACQP
from lifted_bregman.solvers.baselines.sgd import SGD

__all__ = [
    "LPOM",
    "MACQP",
    "SGD",
    "Adam",
    "AdamW",
    "ClassicalLifted",
    "FenchelLifted",
    "GradientDescent",
    "ImplicitBackprop",
    "Normalisation",
    "classical_problem",
]
