"""What the inner steps of one batch know from each other: norms, inputs, factorisations, and maps in sample space."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lifted_bregman.networks import LayerMap
from lifted_bregman.networks.spectral import NormalOperator, Vector
from lifted_bregman.problem import Evaluation, LiftedProblem
from lifted_bregman.problem.blocks import above, below
from lifted_bregman.problem.curvature import squared_parameter_norm
from lifted_bregman.solvers._curvature import MARGIN, PowerMemory, RememberedPower
from lifted_bregman.solvers._sample_space import GuardedFactor

_TURN = 1e-3  # 1 - cos of the angle by which one product may turn the vector


class BatchMemory(dict[str, list[Tensor]]):
    """The vectors of the power iterations, with what holds for the present batch only."""

    def __init__(self, memory: PowerMemory) -> None:
        super().__init__(memory)
        self.norms: dict[str, float] = {}
        """The last estimate of each block."""
        self.inputs: dict[str, Tensor] = {}
        """The x_{l-1} to which a norm of Θ_l belongs."""
        self.factors: dict[int, tuple[Tensor, GuardedFactor]] = {}
        """x_{l-1} and the factor made from it, by layer."""
        self.fallbacks = 0


class InnerPower(RememberedPower):
    """A power iteration that takes one product where the last step has left a good vector.

    For a unit vector v, 1 - cos(v, Nv) = (‖Nv‖ - <v, Nv>)/‖Nv‖ is by how much the estimate has grown from the Rayleigh
    quotient to the norm, half a step of the iteration.  Where that is above 0.1 % the iteration goes on, and it runs
    as usual where there is no vector yet.
    """

    def __init__(self, memory: BatchMemory, key: str) -> None:
        super().__init__(memory, key)
        self._norms = memory.norms

    def estimate(
        self, normal: NormalOperator, like: Sequence[Tensor], tolerance: float = 1e-4, max_steps: int = 100
    ) -> float:
        start, value = self._vector, math.inf
        if start is not None:
            value = super().estimate(normal, like, math.inf)
        if start is None or _turn(start, self._vector) > _TURN:
            value = super().estimate(normal, like, _TURN if start is not None else tolerance, max_steps)
        self._norms[self._key] = value
        return value


def _turn(start: Vector | None, end: Vector | None) -> float:
    if start is None or end is None:  # there is no eigenvector of 0, infinity or NaN
        return 0.0
    if [part.shape for part in start] != [part.shape for part in end]:  # of a batch of another size
        return 1.0
    return 1.0 - sum(float(torch.linalg.vecdot(s, e)) for s, e in zip(start, end, strict=True))


def power(memory: PowerMemory, key: str) -> RememberedPower:
    """The power iteration of this name, with one product per inner step if the memory is a batch's."""
    return InnerPower(memory, key) if isinstance(memory, BatchMemory) else RememberedPower(memory, key)


def variable_key(layer: int) -> str:
    """The name under which the vector of ‖W_{l+1}‖ is remembered, the curvature of x_l."""
    return f"x_{layer}"


def parameter_curvature(
    problem: LiftedProblem, point: Evaluation, layer: int, memory: PowerMemory, upper: bool
) -> float:
    """λ_l ‖J_Θ f_l‖₂²/s: a guaranteed bound if `upper`, else an estimate with a margin.  Computed once while x_{l-1}
    stays.
    """
    key, x = f"Θ_{layer}", point.x[below(layer)]
    known = memory.norms if isinstance(memory, BatchMemory) and memory.inputs.get(key) is x else {}
    if upper or key not in known:
        f: LayerMap = problem.network[layer].map
        norm = squared_parameter_norm(f, x, power(memory, key), upper, point.weights)
        if isinstance(memory, BatchMemory):
            memory.inputs[key] = x
            memory.norms.setdefault(key, norm)  # where no power iteration was needed
    else:
        norm = known[key]
    return _enlarged(problem.weight(layer) * norm / point.samples, upper)


def variable_curvature(
    problem: LiftedProblem, point: Evaluation, layer: int, memory: PowerMemory, upper: bool
) -> float:
    """λ_{l+1} ‖J_x f_{l+1}‖₂²: a guaranteed bound if `upper`, else an estimate with a margin."""
    f = problem.network[above(layer)].map
    norm = f.input_curvature(point.x[layer], power(memory, variable_key(layer)), upper)
    return _enlarged(problem.weight(above(layer)) * norm, upper)


def _enlarged(bound: float, upper: bool) -> float:
    return bound if upper else (1.0 + MARGIN) * bound
