"""One block's convex problem min f(y) + g(y): gradient, proximal map and metric, for `block_solvers`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from lifted_bregman._linalg import PowerIteration, Ridge, norm
from lifted_bregman.activations import Identity
from lifted_bregman.maps import Dense
from lifted_bregman.penalties import Penalty, SquaredL2
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import Block, ParameterBlock, terms
from lifted_bregman.problem.curvature import step_for, variable_curvature
from lifted_bregman.problem.energies import partial_energy
from lifted_bregman.solvers._packing import design, packed, rows, unpacked, weight_columns


class Subproblem(ABC):
    """min f(y) + g(y): steps in the metric of `ridge`, for which g = 0, or of 1/t."""

    y: Tensor
    """The point of the next gradient, not shared with the problem."""
    ridge: Ridge | None = None
    t: float = 1.0
    q: float = 0.0
    """The modulus of strong convexity over the curvature."""
    unit: float = 1.0
    """The divisor of norms: √s for root mean squares over samples, else 1."""

    def __init__(self, problem: LiftedProblem, point: Point, block: Block) -> None:
        self.problem, self.point, self.block, self.layer = problem, point, block, block.layer

    @abstractmethod
    def publish(self, value: Tensor) -> None:
        """Makes `value` the block's value."""

    @abstractmethod
    def gradient(self) -> Tensor:
        """∇f at the last published value."""

    @abstractmethod
    def prox(self, v: Tensor) -> Tensor:
        """prox_{tg}(v)."""

    @abstractmethod
    def precondition(self, slope: Tensor) -> Tensor:
        """M⁻¹ slope."""

    def step(self) -> tuple[Tensor, Tensor, float]:
        """y⁺, M(y - y⁺) and ‖y - y⁺‖.  In the metric 1/t some subgradient at y⁺ is no longer than M(y - y⁺)."""
        slope = self.gradient()
        if self.ridge is not None:
            move = self.precondition(slope)
            return self.y - move, slope, norm(move)
        new = self.prox(torch.sub(self.y, slope, alpha=self.t))
        pull = torch.sub(self.y, new).div_(self.t)
        return new, pull, self.t * norm(pull)

    def rounding(self) -> float:
        """The norm below which ∇f at the published value is rounding; 0 if a step does not amplify rounding."""
        return 0.0

    def energy(self, value: Tensor) -> float:
        """The block's energy at the last published value, which is `value`."""
        return float(partial_energy(self.problem, self.point, terms(self.block, self.problem.links)))

    def magnitude(self) -> float:
        """λ_l (½‖x_l‖² + ½‖z_l‖²), the terms that cancel in the energy: its rounding error is relative to them."""
        x, z, samples = self.point.x, self.point.z, self.point.samples
        touched = terms(self.block, self.problem.links)
        squares = [self.problem.weight(l) * (norm(x[l]) ** 2 + norm(z(l)) ** 2) for l in touched]
        return 0.5 * sum(squares) / samples


class ParameterSubproblem(Subproblem):
    """min over Θ_l, as one matrix [W b] or one vector."""

    def __init__(
        self,
        problem: LiftedProblem,
        point: Point,
        block: ParameterBlock,
        prox_weight: float,
        centre: Mapping[str, Tensor] | None,
    ) -> None:
        super().__init__(problem, point, block)
        f = self.map = problem.network[block.layer].map
        self.tau, self.penalty = prox_weight, problem.parameter_penalties.get(block.layer)
        self.y = packed(f) if isinstance(f, Dense) else _flat(f.parameters)
        self.slope = torch.empty_like(self.y)
        self.centre = self.y.clone() if prox_weight else self.y
        if prox_weight and centre is not None:
            for name, view in self._views(self.centre).items():
                view.copy_(centre[name])
        curvature, x = problem.weight(block.layer) / point.samples, point.read(block.layer)
        if isinstance(f, Dense) and _quadratic(self.penalty) and not problem.anchors:
            A = design(f, x)
            self.scale = curvature * norm(A)
            self.ridge = Ridge(A, curvature, weight_columns(f, A) * _modulus(self.penalty) + prox_weight)
        else:
            self.t = step_for(
                1.0, curvature * f.parameter_curvature(x, PowerIteration(), upper=True) + prox_weight, point
            )
            self.q = prox_weight * self.t

    def publish(self, value: Tensor) -> None:
        with torch.no_grad():
            for name, view in self._views(value).items():
                self.map.parameters[name].copy_(view)
        self.point.parameters_changed(self.layer)

    def gradient(self) -> Tensor:
        into = self._views(self.slope)
        self.problem.accumulate_parameter_gradient(self.point, self.layer, into, decay=0.0)
        if self.tau:
            self.slope.add_(self.y, alpha=self.tau).sub_(self.centre, alpha=self.tau)
        if self.ridge is not None and self.penalty is not None:
            into["weight"].add_(self._views(self.y)["weight"], alpha=_modulus(self.penalty))
        return self.slope

    def prox(self, v: Tensor) -> Tensor:
        if not self.problem.has_parameter_prox(self.layer):
            return v
        views = self._views(v)
        for name, value in self.problem.parameter_prox(self.layer, views, self.t).items():
            views[name].copy_(value)
        return v

    def precondition(self, slope: Tensor) -> Tensor:
        assert self.ridge is not None
        return self.ridge.solve(slope)

    def rounding(self) -> float:
        """eps (λ_l/s) ‖A‖ (‖σ_l(z_l)‖ + ‖x_l‖): the rounding of (λ_l/s) Aᵀd_l, which M⁻¹ can amplify."""
        if self.ridge is None:
            return 0.0
        size = norm(self.point.sigma(self.layer)) + norm(self.point.x[self.layer])
        return torch.finfo(self.y.dtype).eps * self.scale * size

    def energy(self, value: Tensor) -> float:
        moved = norm(value - self.centre) if self.tau else 0.0
        return super().energy(value) + 0.5 * self.tau * moved * moved

    def _views(self, packed_values: Tensor) -> dict[str, Tensor]:
        if isinstance(self.map, Dense):
            return unpacked(self.map, packed_values)
        views, start = {}, 0
        for name, p in self.map.parameters.items():
            views[name] = packed_values[start : start + p.numel()].view(p.shape)
            start += p.numel()
        return views


class VariableSubproblem(Subproblem):
    """min over x_l of all samples."""

    def __init__(self, problem: LiftedProblem, point: Point, block: Block) -> None:
        super().__init__(problem, point, block)
        x, penalty = point.x[self.layer], problem.penalties.get(self.layer)
        own, readers = problem.weight(self.layer), problem.links.readers[self.layer]
        f, upper = problem.network[readers[0]].map, problem.weight(readers[0])
        self.y, self.unit = x.clone(), math.sqrt(point.samples)
        self.modulus = _modulus(penalty)
        quadratic = problem.network[self.layer].activation == Identity() and _quadratic(penalty)
        if isinstance(f, Dense) and len(readers) == 1 and quadratic:
            W = f.module.weight.detach()
            self.ridge, self.map = Ridge(W, upper, W.new_full((W.shape[1],), own + self.modulus)), f
        else:
            bound = variable_curvature(problem, point, self.layer, {}, upper=True)
            self.t = step_for(1.0, max(bound, 1e-3 * own), point)
            self.q = own * self.t / (1.0 + own * self.t)

    def publish(self, value: Tensor) -> None:
        self.point.set_variable(self.layer, value)

    def gradient(self) -> Tensor:
        slope = self.problem.variable_gradient(self.point, self.layer, smooth_quadratic=self.ridge is not None)
        return slope.add_(self.y, alpha=self.modulus) if self.ridge is not None and self.modulus else slope

    def prox(self, v: Tensor) -> Tensor:
        return self.problem.variable_prox(self.layer, v, self.t)

    def precondition(self, slope: Tensor) -> Tensor:
        assert self.ridge is not None
        return self.ridge.solve(rows(self.map, slope)).reshape(slope.shape)


def _flat(parameters: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in parameters.values()])


def _quadratic(penalty: Penalty | None) -> bool:
    return penalty is None or isinstance(penalty, SquaredL2)


def _modulus(penalty: Penalty | None) -> float:
    return float(penalty.weight) if isinstance(penalty, SquaredL2) else 0.0
