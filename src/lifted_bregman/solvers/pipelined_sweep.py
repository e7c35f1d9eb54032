"""One top-down sweep on each batch, pipelined over micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman._arguments import require_count
from lifted_bregman._no_graph import no_graph
from lifted_bregman.problem import LiftedProblem, LiftedState, Point
from lifted_bregman.problem.border import lend
from lifted_bregman.problem.curvature import lend_curvature, parameter_curvature, step_for
from lifted_bregman.solvers._descent import moved_variable, rms
from lifted_bregman.solvers._micro_batches import micro_batches
from lifted_bregman.solvers._persistent import PowerState, StepSize, require_step, variable_step
from lifted_bregman.solvers.interface import Batch, Solver
from lifted_bregman.solvers.parameters import LayerTensors
from lifted_bregman.solvers.schedules import as_schedule
from lifted_bregman.solvers.steps import CurvatureStep


@dataclass(frozen=True)
class PipelinedSweep(Solver[PowerState]):
    """min over Θ of E by a sweep from the output to the input on each batch, which starts at the forward pass.

    A batch is cut into M micro-batches, whose sizes differ by at most one sample.  For each of them, from l = L down,
    with the Θ from before the batch,

        d_l = σ_l(z_l) - x_l ,   g_l ← g_l + (λ_l/s) J_Θᵀ d_l ,
        x_{l-1} ← prox_{tG_{l-1}}( x_{l-1} - t ( λ_l J_xᵀ d_l - λ_{l-1} z_{l-1} ) )

    with x_{l-1} and z_{l-1} of the forward pass on the right; and when the last micro-batch has passed

        Θ_l ← prox_{tP_l}( Θ_l - t g_l ) .

    Θ_l and x_{l-1} move from the same point, and x_l before them.  For steps below 2/2L the energy of the batch falls
    below that of the forward pass, up to terms of third order (`Sweep.coupling` with n = 2).  The objective of the
    network at the new Θ can be larger than that energy, and falls in practice.

    M changes the result by rounding only.  Processes that share the layers form a pipeline: each works on another
    micro-batch.  Of p equally fast processes each is idle for the fraction (p - 1)/(M + p - 1) of the time.

    step_parameter  t of Θ_l: a number, a schedule of the step number, or `CurvatureStep` for the Lipschitz constant of
                    the batch; by default 1/L
    step_variable   t of x_l, in the same forms
    micro_batches   M >= 1

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.PipelinedSweep(), epochs=10, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    minibatch: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    step_parameter: StepSize = field(default_factory=lambda: CurvatureStep(1.0, upper=False))
    step_variable: StepSize = field(default_factory=lambda: CurvatureStep(1.0, upper=False))
    micro_batches: int = 4

    def __post_init__(self) -> None:
        require_step(self.step_parameter, "step_parameter")
        require_step(self.step_variable, "step_variable")
        require_count(self.micro_batches, "micro_batches")

    @property
    def layer_parallel(self) -> bool:
        """Always true."""
        return True

    def init(self, problem: LiftedProblem, batch: Batch) -> PowerState:
        return PowerState()

    @no_graph
    def step(self, problem: LiftedProblem, state: PowerState, batch: Batch) -> PowerState:
        done = problem.work.as_dict()
        parts = [batch.slice(rows.start, rows.stop) for rows in micro_batches(len(batch), self.micro_batches)]
        points = [problem.forward_point(part.X, part.Y, part.weights) for part in parts]
        forward = [list(point.x) for point in points]
        whole = _joined(problem, batch, forward)
        steps = self._variable_steps(problem, whole, state)
        gradients: LayerTensors = {layer: {} for layer in problem.partition.terms}
        errors = []
        for point, x in zip(points, forward, strict=True):
            residuals = _sweep_down(problem, point, steps)
            for layer, d in residuals.items():
                read = problem.network.read(x, layer)
                _accumulate(problem, layer, read, point.weigh(d), gradients[layer], batch.samples)
            errors += [residuals[layer] for layer in (problem.depth,) if layer in residuals]
        batch.shard.all_sum(*(g for own in gradients.values() for g in own.values()))
        for layer, gradient in gradients.items():
            if gradient:
                t = state.term_metric("step")[layer] = self._parameter_step(problem, whole, layer, state)
                _move(problem, layer, gradient, t)
        if errors:
            state.term_metric("residual")[problem.depth] = rms(torch.cat(errors), batch.shard)
        problem.border.settle()
        for name, count in problem.work.as_dict().items():  # once for the batch, however it was cut
            setattr(problem.work, name, int(done[name] + (count - done[name]) // len(points)))
        state.steps += 1
        return state

    def _variable_steps(self, problem: LiftedProblem, whole: Point, state: PowerState) -> dict[int, float]:
        rule = self.step_variable
        if isinstance(rule, CurvatureStep):
            lend_curvature(problem, whole, state.power, rule.upper)
        return {layer: variable_step(problem, whole, layer, rule, state) for layer in problem.partition.hidden}

    def _parameter_step(self, problem: LiftedProblem, whole: Point, layer: int, state: PowerState) -> float:
        rule = self.step_parameter
        if not isinstance(rule, CurvatureStep):
            return as_schedule(rule, "step_parameter").value(state.steps)
        return step_for(rule.factor, parameter_curvature(problem, whole, layer, state.power, rule.upper), whole)


def _joined(problem: LiftedProblem, batch: Batch, forward: list[list[Tensor]]) -> Point:
    """The forward pass of the whole batch."""
    variables = [torch.cat(rows) if len(rows) > 1 else rows[0] for rows in list(zip(*forward, strict=True))[1:-1]]
    return batch.point(problem, LiftedState(variables))


def _sweep_down(problem: LiftedProblem, point: Point, steps: Mapping[int, float]) -> dict[int, Tensor]:
    """Moves the variables of a micro-batch, from the top; the residuals d_l from before x_{l-1} has moved."""
    residuals = {}
    for layer in reversed(problem.partition.terms):
        if layer in problem.partition.hidden:
            point.set_variable(layer, moved_variable(problem, point, layer, steps[layer]))
        residuals[layer] = point.residual(layer)
    lend(problem, point)
    return residuals


def _accumulate(
    problem: LiftedProblem, layer: int, x: Tensor, d: Tensor, gradient: dict[str, Tensor], samples: int
) -> None:
    """g_l ← g_l + (λ_l/s) J_Θᵀ d_l, with the x_{l-1} of the forward pass."""
    f = problem.network[layer].map
    if not f.parameters:
        return
    problem.work.parameter_gradients += 1
    decay = 1.0
    if not gradient:
        decay = 0.0
        gradient.update({name: torch.empty_like(p) for name, p in f.parameters.items()})
    scale = problem.weight(layer) / samples
    f.accumulate_parameters(x, d, gradient, scale=scale, decay=decay)


def _move(problem: LiftedProblem, layer: int, gradient: Mapping[str, Tensor], t: float) -> None:
    parameters = problem.network[layer].map.parameters
    ahead = {name: p.detach().add_(gradient[name], alpha=-t) for name, p in parameters.items()}
    if problem.has_parameter_prox(layer):
        for name, value in problem.parameter_prox(layer, ahead, t).items():
            ahead[name].copy_(value)
