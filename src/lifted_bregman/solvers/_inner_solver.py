"""Deterministic solvers inside others: some steps on the sub-problem of an implicit step, `problem.anchored(Θ⁰, τ)`."""

from __future__ import annotations

import contextlib
from typing import Any

from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers.outcome import Stalled


def require_no_anchor(solver: Solver[Any], problem: LiftedProblem, missing: str) -> None:
    """An error if the energy has a term (τ/2)‖Θ - Θ⁰‖², which the caller's updates of Θ would leave out."""
    if problem.anchors:
        required = f"a problem without a proximal term (τ/2)‖Θ - Θ⁰‖², here with τ = {problem.anchor_weight:g}"
        raise lacking(solver, required, missing)


def require_deterministic(solver: Solver[Any]) -> None:
    """An error unless `solver` can solve a sub-problem."""
    if not isinstance(solver, Solver) or solver.minibatch:
        raise SettingError(f"solver is {solver!r}; it must be a deterministic solver such as ProximalGradient().")


def require_solvable(problem: LiftedProblem, solver: Solver[Any], steps: int) -> None:
    """An error unless `solve` can be called with this problem, solver and number of steps."""
    solver.require(problem)
    solver.require_steps(problem, steps)


def solve(problem: LiftedProblem, solver: Solver[Any], batch: Batch, steps: int) -> SolverState:
    """The state after `steps` steps on one batch from the present parameters, or after fewer if no step decreases E."""
    state: SolverState = solver.init(problem, batch)
    with contextlib.suppress(Stalled):
        for _ in range(steps):
            state = solver.step(problem, state, batch)
    solver.finish(problem, state)
    return state
