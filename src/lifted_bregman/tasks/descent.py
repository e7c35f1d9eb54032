"""Inversion of deep networks: proximal gradient steps on the input and the hidden variables, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import Point
from lifted_bregman.solvers.outcome import Stalled
from lifted_bregman.tasks._inverse_problem import InverseProblem, per_sample
from lifted_bregman.tasks.inversion_solver import InversionProgress, InversionSolver, InversionState

_FLOOR = 1e-8  # the smallest factor of step sizes
_MARGIN = 1.05  # factor on estimated curvatures


@dataclass
class DescentState(InversionState):
    """The variables, and the state of acceleration and step sizes."""

    point: Point
    """The variables with their z_l and d_l."""
    energies: Tensor
    """E at the point, (samples,)."""
    curvatures: list[float]
    """A Lipschitz constant of each block's gradient."""
    factor: float
    """Step sizes are factor / curvature."""
    before: list[Tensor] | None = None
    """All blocks one step earlier; None at the start."""
    momentum: Tensor = field(default_factory=lambda: torch.ones(0))
    """Nesterov's t_k of each sample."""
    moved: Tensor = field(default_factory=lambda: torch.zeros(0))
    """max over blocks of ‖x - x⁺‖ / max(1, ‖x‖) in the last step, (samples,)."""


@dataclass(frozen=True)
class DescentInversion(InversionSolver[DescentState]):
    """min over u and X of E(u, X) by proximal gradient steps on the blocks x_{L-1}, .., x_1, u.

        x_l ← prox_{tG_l}( x_l - t ∇_{x_l} H )        u ← prox_{tJ}( u - t λ_1 J_xᵀ(σ_1(z_1) - x_1) )

    One step is one sweep from the top to the input, each block after the ones above it (block-coordinate descent), or
    all blocks from one point (`simultaneous`).  Step sizes are 1/L with a guaranteed Lipschitz constant L of the
    block's gradient where all maps are affine, so that a sweep does not increase E.  Elsewhere L is an estimate, and
    the step sizes are halved after a step that would increase the energy of a sample; that sample stays where it was.

    accelerate  extrapolates each sample by Nesterov's rule before the sweep; a sample whose energy would increase is
                put back and starts without momentum
    step_size   in (0, 1], the factor of 1/L at the start; by default 1, or ½ for simultaneous steps

    Each block's problem is convex for affine maps, the joint problem is not.  The result is a stationary point that
    depends on the start.  The tolerance bounds ‖x - x⁺‖ / max(1, ‖x‖) of every block and sample in one step.

    Example:
        >>> model, u = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8)), torch.rand(1, 3)
        >>> found = lb.invert(model, model(u).detach(), solver=lb.DescentInversion(), shape=3)
        >>> found.residual.item() < 1e-2
        True
    """

    simultaneous: bool = False
    accelerate: bool = True
    step_size: float | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.step_size, Real)
        if self.step_size is not None and not (number and 0.0 < self.step_size <= 1.0):
            raise SettingError(f"step_size is {self.step_size!r}; it must be a number in (0, 1], or None.")

    @no_graph
    def init(self, inverse: InverseProblem, start: Tensor) -> DescentState:
        point = inverse.forward_point(start)
        factor = self.step_size or (0.5 if self.simultaneous else 1.0)
        energies, curvatures = inverse.energies(point), _curvatures(inverse, point)
        ones = torch.ones_like(energies)
        return DescentState(start, list(point.state), point, energies, curvatures, factor, None, ones, ones)

    @no_graph
    def step(self, inverse: InverseProblem, state: DescentState) -> DescentState:
        old = [state.point.x[block] for block in inverse.blocks]
        # t_{k+1} = (1 + √(1 + 4t_k²))/2, and the blocks ahead x + (t_k - 1)/t_{k+1} (x - x_before)
        following = 0.5 * (1.0 + (1.0 + 4.0 * state.momentum.square()).sqrt())
        weight = (state.momentum - 1.0) / following
        point = state.point
        accelerated = self.accelerate and state.before is not None and bool((weight > 0.0).any())
        if accelerated:
            assert state.before is not None
            ahead = [x + per_sample(weight, x) * (x - x_) for x, x_ in zip(old, state.before, strict=True)]
            point = inverse.point(ahead[0], ahead[1:])
        point = self._sweep(inverse, point, state)
        energies = inverse.energies(point)
        # Samples with E⁺ > E keep their variables.  A sweep over affine maps without momentum decreases E, up to the
        # accuracy of its proximal maps.
        rounding = 8.0 * torch.finfo(energies.dtype).eps * state.energies.abs()
        worse = ~(energies <= state.energies + rounding)
        plain = worse & ((weight == 0.0) if accelerated else torch.ones_like(worse))
        factor, curvatures = state.factor, state.curvatures
        if inverse.affine and not self.simultaneous:
            worse = worse & (~plain | ~energies.isfinite())
        elif bool(plain.any()):
            factor *= 0.5
            if factor < _FLOOR:
                raise Stalled(f"The factor of the step sizes is {factor:.3g}.")
            if not inverse.affine:
                curvatures = _curvatures(inverse, state.point)
        # ‖x⁺ - x‖ / max(1, ‖x‖); infinite for samples that stay, so that they do not count as converged
        moved = _relative_change(inverse, old, point)
        if bool(worse.any()):
            kept = [
                torch.where(per_sample(worse, x), x, point.x[block])
                for block, x in zip(inverse.blocks, old, strict=True)
            ]
            point = inverse.point(kept[0], kept[1:])
            energies = torch.where(worse, state.energies, energies)
            moved = torch.where(worse, torch.inf, moved)
        momentum = torch.where(worse, 1.0, following)
        return DescentState(point.x[0], list(point.state), point, energies, curvatures, factor, old, momentum, moved)

    def _sweep(self, inverse: InverseProblem, start: Point, state: DescentState) -> Point:
        """Return the point after one proximal gradient step on each block; `start` is not changed."""
        point = inverse.point(start.x[0], start.state)
        blocks = list(reversed(inverse.blocks))
        steps = [state.factor / curvature for curvature in state.curvatures]
        if self.simultaneous:
            ahead = [torch.sub(start.x[b], inverse.gradient(start, b), alpha=steps[b]) for b in blocks]
            for block, v in zip(blocks, ahead, strict=True):
                point.set_variable(block, inverse.prox(block, v, steps[block]))
            return point
        for block in blocks:
            v = torch.sub(point.x[block], inverse.gradient(point, block), alpha=steps[block])
            point.set_variable(block, inverse.prox(block, v, steps[block]))
        return point

    def progress(self, inverse: InverseProblem, state: DescentState) -> InversionProgress:
        return InversionProgress(state.energies, state.moved)


def _curvatures(inverse: InverseProblem, point: Point) -> list[float]:
    """Return a Lipschitz constant of every block's gradient: a bound for affine maps, else an estimate · 1.05."""
    problem = inverse.problem
    found = []
    for block in inverse.blocks:
        if inverse.affine:
            curvature = inverse.curvature(point, block)
        else:
            curvature = _MARGIN * problem.variable_curvature(point, block)
        found.append(max(curvature, 1e-12))
    return found


def _relative_change(inverse: InverseProblem, old: list[Tensor], point: Point) -> Tensor:
    """Return max over blocks of ‖x⁺ - x‖ / max(1, ‖x‖), (samples,)."""
    relative = []
    for block, x in zip(inverse.blocks, old, strict=True):
        lengths = x.flatten(1).norm(dim=1).clamp(min=1.0)
        relative.append((point.x[block] - x).flatten(1).norm(dim=1) / lengths)
    return torch.stack(relative).amax(0)
