"""Inversion and detection: uses of the lifted energy of a trained network."""

from lifted_bregman.tasks._inverse_problem import InverseProblem
from lifted_bregman.tasks.classifier_scores import classifier_scores
from lifted_bregman.tasks.descent import DescentInversion
from lifted_bregman.tasks.detection import EnergyScale
from lifted_bregman.tasks.explanation import Explanation
from lifted_bregman.tasks.inversion import invert
from lifted_bregman.tasks.inversion_result import Inversion
from lifted_bregman.tasks.inversion_solver import InversionProgress, InversionSolver, InversionState
from lifted_bregman.tasks.primal_dual import PrimalDualInversion
from lifted_bregman.tasks.term_energies import TermEnergies, term_energies

__all__ = [
    "DescentInversion",
    "EnergyScale",
    "Explanation",
    "InverseProblem",
    "Inversion",
    "InversionProgress",
    "InversionSolver",
    "InversionState",
    "PrimalDualInversion",
    "TermEnergies",
    "classifier_scores",
    "invert",
    "term_energies",
]
