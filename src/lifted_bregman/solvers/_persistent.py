"""Variables with one row for every sample of the set; a step moves the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lifted_bregman.problem import LiftedProblem, LiftedState, Point
from lifted_bregman.problem.blocks import hidden_layers
from lifted_bregman.problem.curvature import PowerMemory, step_for, variable_curvature
from lifted_bregman.solvers._descent import moved_variable
from lifted_bregman.solvers._shares import whole_variables
from lifted_bregman.solvers.interface import Batch, SolverState
from lifted_bregman.solvers.schedules import Schedule, as_schedule
from lifted_bregman.solvers.steps import CurvatureStep

StepSize = float | Schedule | CurvatureStep
"""A number, a schedule of the step number, or a fraction of the inverse curvature."""


@dataclass
class PowerState(SolverState):
    """The vectors of the power iterations."""

    power: PowerMemory = field(default_factory=dict)


@dataclass
class PersistentState(PowerState):
    """Variables of all samples, which of them have been visited, and the vectors of the power iterations.

    Rows that were not visited yet are 0; a row starts at the forward pass when its sample is first visited.
    """

    visited: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """Which samples have been visited, (samples of the set,)."""


def start_variables(problem: LiftedProblem, state: PersistentState, batch: Batch) -> None:
    """Allocates variables of all samples, and sets those of the first batch to the forward pass."""
    first = whole_variables(batch.shard, problem.forward_state(batch.X, check=False))
    state.variables = LiftedState(x.new_zeros((batch.total, *x.shape[1:])) for x in first)
    state.visited = torch.zeros(batch.total, dtype=torch.bool, device=batch.X.device)
    index = set_rows_of_all_ranks(batch)
    state.variables.update(index, first)
    state.visited[index] = True


def set_rows(batch: Batch) -> Tensor:
    """The batch's rows in the whole set, on the data's device."""
    return batch.index.to(batch.X.device)


def set_rows_of_all_ranks(batch: Batch) -> Tensor:
    """`set_rows` of the whole batch, gathered from all ranks."""
    return batch.shard.all_rows(set_rows(batch))


def fetch(problem: LiftedProblem, state: PersistentState, batch: Batch) -> Point:
    """The point of the batch's samples, in new memory; samples visited for the first time start at the forward pass."""
    assert state.variables is not None
    index = set_rows(batch)
    fresh = ~state.visited[index]
    if bool(fresh.any() if batch.shard.whole else (~state.visited[set_rows_of_all_ranks(batch)]).any()):
        state.variables.update(index[fresh], problem.forward_state(batch.X[fresh], check=False))
        state.visited[index] = True
    return batch.point(problem, state.variables.select(index))


def store(state: PersistentState, batch: Batch, point: Point) -> None:
    """Writes the variables of the whole batch back to their rows.  Every rank stores the rows of all samples."""
    assert state.variables is not None
    index = set_rows_of_all_ranks(batch)
    state.variables.update(index, whole_variables(batch.shard, point.state))
    if not batch.shard.whole:
        state.visited[index] = True


def require_step(step: StepSize, name: str) -> None:
    """An error unless `step` is a step size."""
    if not isinstance(step, CurvatureStep):
        as_schedule(step, name)


def variable_step(problem: LiftedProblem, point: Point, layer: int, step: StepSize, state: PowerState) -> float:
    """t of x_l; for a `CurvatureStep`, factor / (λ_{l+1} ‖J_x f_{l+1}‖₂²)."""
    if not isinstance(step, CurvatureStep):
        return as_schedule(step, "step_variable").value(state.steps)
    bound = variable_curvature(problem, point, layer, state.power, step.upper)
    return step_for(step.factor, bound, point)


def sweep_variables(problem: LiftedProblem, point: Point, step: StepSize, state: PersistentState, sweeps: int) -> None:
    """x_{L-1}, ..., x_1 in turn, `sweeps` times, with the parameters as they are."""
    for _ in range(sweeps):
        for layer in reversed(hidden_layers(problem.depth)):
            t = variable_step(problem, point, layer, step, state)
            point.set_variable(layer, moved_variable(problem, point, layer, t))
