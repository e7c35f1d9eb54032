"""The parameter gradients of a batch for stochastic solvers: the lifted direction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lifted_bregman._arguments import positive, require_count
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, LiftedState, Point
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.problem.curvature import PowerMemory, variable_curvature
from lifted_bregman.solvers.interface import Batch


class Direction(ABC):
    """A rule that turns a batch into one gradient of E for each layer's parameters."""

    @abstractmethod
    def visit(self, problem: LiftedProblem, batch: Batch, memory: PowerMemory) -> Iterator[tuple[int, Point]]:
        """Yields each layer once, with the point at which ∇_{Θ_l} E is to be read, layer L first.

        The parameters must not change before the last layer has been yielded.  `memory` belongs to the direction and
        is part of the solver's state.
        """


@dataclass(frozen=True)
class LiftedDirection(Direction):
    """∇_Θ E after proximal gradient sweeps over the variables (eq. 17), which start from the forward pass.

        x_l ← σ_l(z_l), l = 1 .. L-1;   then, `sweeps` times, for l = L-1 .. 1:   x_l ← prox_{tG_l}( x_l - t ∇_{x_l} H )

    In the last sweep ∇_{Θ_l} E is read after x_l has moved and before x_{l-1} does, as in a top-down sweep of
    Algorithm 1 whose parameters stay.  One sweep costs as much as back-propagation: L forward maps, L-1 adjoints, L
    parameter gradients, 2L-1 proximal maps; each further one L-1 forward maps and adjoints and 2L-2 proximal maps.
    Many sweeps give the gradient of min_X E(Θ, X).

    sweeps  top-down sweeps over the variables, >= 1
    factor  t = factor / max(λ_{l+1} ‖W_{l+1}‖₂², λ_l/1000).  Below 2 each step decreases E, and repeated sweeps
      converge.  A single sweep may take longer steps, which carry more of the error to the lower layers: for factor → ∞
      it gives x_l = σ_l(z_l - λ_{l+1} J_xᵀ d_{l+1} / λ_l).  By default 8 for one sweep and 1 for several

    Example:
        >>> from lifted_bregman.solvers import LiftedDirection
        >>> solver = lb.AdaBreg(step_size=0.01, direction=LiftedDirection(sweeps=3))
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=10, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    sweeps: int = 1
    factor: float | None = None

    def __post_init__(self) -> None:
        require_count(self.sweeps, "sweeps")
        if self.factor is not None and positive(self.factor, "factor") >= 2.0 and self.sweeps > 1:
            raise SettingError(
                f"factor is {self.factor!r} with {self.sweeps} sweeps; repeated steps need a factor below 2."
            )

    def visit(self, problem: LiftedProblem, batch: Batch, memory: PowerMemory) -> Iterator[tuple[int, Point]]:
        point = forward_point(problem, batch)
        factor = self.factor or (8.0 if self.sweeps == 1 else 1.0)
        t = {layer: factor / _curvature(problem, point, layer, memory) for layer in hidden_layers(problem.depth)}
        for _ in range(self.sweeps - 1):
            for layer in reversed(hidden_layers(problem.depth)):
                _move(problem, point, layer, t[layer])
        for layer in reversed(layers(problem.depth)):
            if layer < problem.depth:
                _move(problem, point, layer, t[layer])
            yield layer, point


def _curvature(problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory) -> float:
    curvature = variable_curvature(problem, point, layer, memory, upper=False)
    if not math.isfinite(curvature):
        return 1e30  # the run has diverged; the residual of the outputs will show it
    return max(curvature, 1e-3 * problem.weight(layer))


def _move(problem: LiftedProblem, point: Point, layer: int, t: float) -> None:
    ahead = torch.sub(point.x[layer], problem.variable_gradient(point, layer), alpha=t)
    point.set_variable(layer, problem.variable_prox(layer, ahead, t))


def forward_point(problem: LiftedProblem, batch: Batch) -> Point:
    """The point x_l = σ_l(z_l), which keeps every z_l."""
    unknown = LiftedState([batch.Y] * len(hidden_layers(problem.depth)))
    point = batch.point(problem, unknown)
    for layer in hidden_layers(problem.depth):
        point.set_variable(layer, point.sigma(layer))
    if batch.meter is not None:
        batch.meter.see(problem, point)
    return point
