"""What the inner steps of one batch know from each other: norms, inputs, factorisations, and maps in sample space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from lifted_bregman.maps.base import Inputs
from lifted_bregman.maps.spectral import NormalOperator, Vector
from lifted_bregman.problem import LiftedProblem, Point, curvature
from lifted_bregman.solvers._curvature import MARGIN, PowerMemory, RememberedPower
from lifted_bregman.solvers._sample_space import GuardedFactor

_TURN = 1e-3  # 1 - cos of the angle by which one product may turn the vector


class BatchMemory(dict[str, list[Tensor]]):
    """The vectors of the power iterations, with what holds for the present batch only."""

    def __init__(self, memory: PowerMemory) -> None:
        super().__init__(memory)
        self.norms: dict[str, float] = {}
        """The last curvature of each Θ_l."""
        self.inputs: dict[str, Inputs] = {}
        """The x_{l-1} to which a curvature of Θ_l belongs."""
        self.factors: dict[int, tuple[Tensor, GuardedFactor]] = {}
        """x_{l-1} and the factor made from it, by layer."""
        self.residual = torch.zeros(1)
        """d_L before the last move of Θ_L."""
        self.fallbacks = 0


class InnerPower(RememberedPower):
    """A power iteration that takes one product where the last step has left a good vector.

    For a unit vector v, 1 - cos(v, Nv) = (‖Nv‖ - <v, Nv>)/‖Nv‖ is by how much the estimate has grown from the Rayleigh
    quotient to the norm, half a step of the iteration.  While that is above 0.1 % the iteration goes on, and it runs as
    usual where there is no vector yet.
    """

    def estimate(
        self, normal: NormalOperator, like: Sequence[Tensor], tolerance: float = 1e-4, max_steps: int = 100
    ) -> float:
        v = self._vector
        if v is None or not _alike(v, like):
            return super().estimate(normal, like, tolerance, max_steps)
        return self._follow(v, normal, max_steps)

    def _follow(self, v: Vector, normal: NormalOperator, max_steps: int) -> float:
        value = 0.0
        for _ in range(max_steps):
            image = normal(v)
            norm = _norm(image)
            value = float(norm)
            if not 0.0 < value < math.inf:  # there is no eigenvector of 0, infinity or NaN
                self._vector = None
                self._memory.pop(self._key, None)
                return value
            growth = value - _product(v, image)
            v = tuple([part / norm for part in image])
            if growth <= _TURN * value:
                break
        self._vector, self._memory[self._key] = v, list(v)
        return value


def _norm(v: Vector) -> Tensor:
    parts: list[Tensor] = [torch.linalg.vector_norm(part) for part in v]
    if len(parts) > 1:
        parts = [torch.linalg.vector_norm(torch.stack(parts))]
    return parts[0]


def _product(v: Vector, w: Vector) -> float:
    pairs = [(p, q) if p.ndim == 1 else (p.flatten(), q.flatten()) for p, q in zip(v, w, strict=True)]
    return sum([float(torch.dot(p, q)) for p, q in pairs])


def _alike(v: Vector, like: Sequence[Tensor]) -> bool:
    return len(v) == len(like) and all(
        p.shape == t.shape and p.dtype is t.dtype and p.device == t.device for p, t in zip(v, like, strict=True)
    )


def power(memory: PowerMemory, key: str) -> RememberedPower:
    """The power iteration of this name, with one product per inner step if the memory is a batch's."""
    return InnerPower(memory, key) if isinstance(memory, BatchMemory) else RememberedPower(memory, key)


def variable_key(layer: int) -> str:
    """The name under which the vector of ‖W_{l+1}‖ is remembered, the curvature of x_l."""
    return f"x_{layer}"


def parameter_curvature(problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory, upper: bool) -> float:
    """λ_l ‖J_Θ f_l‖₂²/s: a guaranteed bound if `upper`, else an estimate with a margin.  Computed once while x_{l-1}
    stays.
    """
    key, x = f"Θ_{layer}", point.read(layer)
    known = memory.norms if isinstance(memory, BatchMemory) and memory.inputs.get(key) is x else {}
    if upper or key not in known or len(problem.links.users[layer]) > 1:
        bound = curvature.parameter_curvature(problem, point, layer, partial(power, memory), upper)
        if isinstance(memory, BatchMemory):
            memory.inputs[key] = x
            memory.norms[key] = bound
    else:
        bound = known[key]
    return _enlarged(bound, upper)


def variable_curvature(problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory, upper: bool) -> float:
    """λ_{l+1} ‖J_x f_{l+1}‖₂²: a guaranteed bound if `upper`, else an estimate with a margin."""
    return _enlarged(curvature.variable_curvature(problem, point, layer, partial(power, memory), upper), upper)


def _enlarged(bound: float, upper: bool) -> float:
    return bound if upper else (1.0 + MARGIN) * bound
