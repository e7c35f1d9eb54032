"""The table of last gradients that PIAG, SAG, SAGA and PrimalDual share.

The gradient of sample i in Θ_l is λ_l J_Θ(x_{l-1})ᵀ d_l.  For maps that are affine in Θ_l it is a product of x_{l-1}
and d_l.  The table therefore stores d_l.  x_{l-1} is the sample's row of the variables, which changes only when the
sample is visited.  The mean of all gradients is the only tensor of a weight's size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import layers
from lifted_bregman.problem.curvature import parameter_curvature, step_for
from lifted_bregman.solvers._descent import rms
from lifted_bregman.solvers._persistent import (
    PersistentState,
    StepSize,
    fetch,
    set_rows,
    set_rows_of_all_ranks,
    start_variables,
    store,
    sweep_variables,
)
from lifted_bregman.solvers.interface import Batch
from lifted_bregman.solvers.parameters import LayerTensors, zero_parameters
from lifted_bregman.solvers.schedules import as_schedule
from lifted_bregman.solvers.steps import CurvatureStep

REBUILT = "because old gradients are rebuilt from x_{l-1} and d_l"
"""Why these solvers need affine maps."""


@dataclass
class TableState(PersistentState):
    """Every sample's last gradient, stored as d_l and x_{l-1}; the mean of these gradients; the step of each visit."""

    residuals: dict[int, Tensor] = field(default_factory=dict)
    """d_l of every sample at its last visit, times its weight if it has one; 0 before the first."""
    mean: LayerTensors = field(default_factory=dict)
    """(1/s) Σ_i of the table's gradients."""
    written: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """The step of each sample's last visit; -1 before the first."""
    curvature: dict[int, float] = field(default_factory=dict)
    """The largest Lipschitz constant of a batch so far, by layer."""


Signals = Callable[[Point, Point], dict[int, Tensor]]
"""Moves the batch's X at the second point, which starts as a copy of the first; returns d_l by term."""


def start_table(problem: LiftedProblem, batch: Batch, *, frozen: bool = False) -> TableState:
    """An empty table: all gradients 0.

    frozen  whether terms without trained parameters have a row for each sample too
    """
    state = TableState()
    start_variables(problem, state, batch)
    point = fetch(problem, state, batch)
    for layer in layers(problem.depth):
        d = point.x[layer]  # as large as the residual
        if frozen or problem.network[layer].map.parameters:
            state.residuals[layer] = d.new_zeros((batch.total, *d.shape[1:]))
    state.mean = zero_parameters(problem)
    state.written = torch.full((batch.total,), -1, dtype=torch.int64, device=batch.X.device)
    return state


def swept_residuals(problem: LiftedProblem, state: TableState, step: StepSize, sweeps: int) -> Signals:
    """d_l = σ_l(z_l) - x_l after sweeps of proximal gradient steps over the batch's variables."""

    def signals(old: Point, point: Point) -> dict[int, Tensor]:
        sweep_variables(problem, point, step, state, sweeps)
        return {layer: point.residual(layer) for layer in {*state.residuals, problem.depth}}

    return signals


@no_graph
def advance(
    problem: LiftedProblem,
    state: TableState,
    batch: Batch,
    *,
    step: StepSize,
    divisor: Callable[[int], float],
    correction: float,
    signals: Signals,
) -> None:
    """Moves the batch's X, then writes its rows of the table, and moves Θ along (1 - c)·(mean before) + c·(mean after).

    c is `correction`: 1 for the aggregated gradient, s/|B| for SAGA's unbiased direction.  A `CurvatureStep` has
    t = factor / (divisor(l) · L_l), L_l the largest Lipschitz constant of a batch so far.
    """
    # X_B moves; d_l of the old Θ
    old = fetch(problem, state, batch)
    point = batch.point(problem, old.state)
    found = signals(old, point)  # of the old Θ
    for layer in layers(problem.depth):
        mean, parameters = state.mean[layer], _parameters(problem, layer)
        if not parameters:
            if layer in state.residuals:
                _write_rows(state.residuals[layer], point.weigh(found[layer]), batch)
            continue
        t = _step_size(problem, point, layer, step, divisor(layer), state)
        # Θ_l ← prox_{tP_l}( Θ_l - t [ (1 - c)·(mean before) + c·(mean after) ] ), and the rows of the table
        d = point.weigh(found[layer])
        if correction != 1.0:
            _add(parameters, mean, -t * (1.0 - correction))
        _write(problem, layer, (point.read(layer), d), (old.read(layer), state.residuals[layer]), batch, mean)
        _add(parameters, mean, -t * correction)
        if problem.has_parameter_prox(layer):
            for name, value in problem.parameter_prox(layer, parameters, t).items():
                parameters[name].copy_(value)
        state.term_metric("step")[layer] = t
    state.term_metric("residual")[problem.depth] = rms(found[problem.depth], point.shard)
    state.written[set_rows_of_all_ranks(batch)] = state.steps
    store(state, batch, point)
    state.steps += 1


def oldest(state: TableState, batch: Batch) -> int:
    """The age in steps of the table's oldest row, after this step has written the batch's rows."""
    age = state.steps - state.written
    age[set_rows_of_all_ranks(batch)] = 0
    return int(age.max())


def _write(
    problem: LiftedProblem,
    layer: int,
    new: tuple[Tensor, Tensor],
    old: tuple[Tensor, Tensor],
    batch: Batch,
    mean: Mapping[str, Tensor],
) -> None:
    """mean ← mean + (λ/s)( J(x)ᵀd - J(x_old)ᵀd_old ), and d into the table."""
    f, (x, d), (x_old, table) = problem.network[layer].map, new, old
    shard, scale = batch.shard, problem.weight(layer) / len(table)
    d_old = table.index_select(0, set_rows(batch))
    change = mean if shard.whole else {name: torch.zeros_like(m) for name, m in mean.items()}
    if x is x_old:
        f.accumulate_parameters(x, d - d_old, change, scale=scale)
    else:
        f.accumulate_parameters(x, d, change, scale=scale)
        f.accumulate_parameters(x_old, d_old, change, scale=-scale)
    problem.work.parameter_gradients += 1 if x is x_old else 2
    if change is not mean:
        shard.all_sum(*change.values())
        _add(mean, change, 1.0)
    _write_rows(table, d, batch)


def _write_rows(table: Tensor, d: Tensor, batch: Batch) -> None:
    """Writes the rows of the batch, gathered from all ranks."""
    table.index_copy_(0, set_rows_of_all_ranks(batch), batch.shard.all_rows(d))


def _parameters(problem: LiftedProblem, layer: int) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in problem.network[layer].map.parameters.items()}


def _add(target: Mapping[str, Tensor], source: Mapping[str, Tensor], factor: float) -> None:
    for name, value in target.items():
        value.add_(source[name], alpha=factor)


def _step_size(
    problem: LiftedProblem, point: Point, layer: int, step: StepSize, divisor: float, state: TableState
) -> float:
    if not isinstance(step, CurvatureStep):
        return as_schedule(step, "step").value(state.steps)
    bound = parameter_curvature(problem, point, layer, state.power, step.upper)
    state.curvature[layer] = max(bound, state.curvature.get(layer, 0.0))
    return step_for(step.factor, divisor * state.curvature[layer], point)
