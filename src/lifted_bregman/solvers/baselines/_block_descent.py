"""Block coordinate descent by proximal gradient steps, as the classical and the Fenchel lifted networks use it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.solvers.interface import SolverState
from lifted_bregman.solvers.steps import Memory, StepRule
from lifted_bregman.solvers.sweeps import Sweep


@dataclass
class BlockDescentState(SolverState):
    """Variables and the step rule's memory."""

    step_memory: Memory = field(default_factory=dict)


def sweep_blocks(
    problem: LiftedProblem,
    point: Point,
    sweep: Sweep,
    step_rule: StepRule,
    inner_steps: int,
    memory: Memory,
) -> None:
    """One sweep; each group of blocks makes `inner_steps` proximal gradient steps before the next one is visited."""
    for group in sweep.groups(problem.links):
        for _ in range(inner_steps):
            step_rule.update(problem, point, group, memory)
