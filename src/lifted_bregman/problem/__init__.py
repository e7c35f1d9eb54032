"""The lifted problem: energy, blocks, diagnostics."""

from lifted_bregman.problem import blocks, energies
from lifted_bregman.problem.border import Border
from lifted_bregman.problem.diagnostics import Certificates, LinearUnits
from lifted_bregman.problem.gradient_agreement import GradientAgreement, gradient_agreement
from lifted_bregman.problem.lift import lift
from lifted_bregman.problem.lifted import BlockGradients, LiftedProblem
from lifted_bregman.problem.point import Point
from lifted_bregman.problem.shard import Shard
from lifted_bregman.problem.state import LiftedState
from lifted_bregman.problem.work import Work

__all__ = [
    "BlockGradients",
    "Border",
    "Certificates",
    "GradientAgreement",
    "LiftedProblem",
    "LiftedState",
    "LinearUnits",
    "Point",
    "Shard",
    "Work",
    "blocks",
    "energies",
    "gradient_agreement",
    "lift",
]
