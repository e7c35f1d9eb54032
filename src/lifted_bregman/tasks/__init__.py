"""What the lifted energy of a trained network is good for besides training: inversion and detection."""

from lifted_bregman.tasks._inverse_problem import InverseProblem
from lifted_bregman.tasks.classifier_scores import classifier_scores
from lifted_bregman.tasks.descent import DescentInversion
from lifted_bregman.tasks.detection import EnergyScale
from lifted_bregman.tasks.explanation import Explanation
from lifted_bregman.tasks.inversion import invert
from lifted_bregman.tasks.inversion_result import Inversion
from lifted_bregman.tasks.inversion_solver import InversionSolver, InversionState, Progress
from lifted_bregman.tasks.primal_dual import PrimalDualInversion
from lifted_bregman.tasks.term_energies import TermEnergies, term_energies

__all__ = [
    "DescentInversion",
    "EnergyScale",
    "Explanation",
    "InverseProblem",
    "Inversion",
    "InversionSolver",
    "InversionState",
    "PrimalDualInversion",
    "Progress",
    "TermEnergies",
    "classifier_scores",
    "invert",
    "term_energies",
]
