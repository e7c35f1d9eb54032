"""What the lifted energy of a trained network is good for besides training: inversion."""

from lifted_bregman.tasks._inverse_problem import InverseProblem
from lifted_bregman.tasks.descent import DescentInversion
from lifted_bregman.tasks.inversion import invert
from lifted_bregman.tasks.inversion_result import Inversion
from lifted_bregman.tasks.inversion_solver import InversionSolver, InversionState, Progress
from lifted_bregman.tasks.primal_dual import PrimalDualInversion

__all__ = [
    "DescentInversion",
    "InverseProblem",
    "Inversion",
    "InversionSolver",
    "InversionState",
    "PrimalDualInversion",
    "Progress",
    "invert",
]
