"""Lipschitz constants of block gradients, with the power iterations' vectors in the solver's state.

A warm start makes a number depend on the past, so the past has to be saved with the state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from lifted_bregman.maps import PowerIteration
from lifted_bregman.maps.spectral import NormalOperator
from lifted_bregman.problem import LiftedProblem, Point, curvature
from lifted_bregman.problem.span import number

MARGIN = 0.01
"""Added, relatively, to a power iteration's estimate, which comes from below."""

PowerMemory = dict[str, list[Tensor]]
"""The last vector of each power iteration, by name of the block."""


class RememberedPower(PowerIteration):
    """A power iteration that starts from `memory[key]` and leaves its last vector there."""

    def __init__(self, memory: PowerMemory, key: str) -> None:
        self._memory, self._key = memory, key
        self._vector = tuple(memory[key]) if key in memory else None

    def estimate(
        self, normal: NormalOperator, like: Sequence[Tensor], tolerance: float = 1e-4, max_steps: int = 100
    ) -> float:
        value = super().estimate(normal, like, tolerance, max_steps)
        if self._vector is None:
            self._memory.pop(self._key, None)
        else:
            self._memory[self._key] = list(self._vector)
        return value


def parameter_curvature(problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory, upper: bool) -> float:
    """λ_l ‖J_Θ f_l‖₂²/s, the Lipschitz constant of ∇_{Θ_l}H: a guaranteed bound if `upper`, else an estimate.

    With the point's weights, as `LiftedProblem.parameter_curvature` has them.
    """
    powers = partial(RememberedPower, memory)
    return _enlarged(curvature.parameter_curvature(problem, point, layer, powers, upper), upper)


def variable_curvature(problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory, upper: bool) -> float:
    """λ_{l+1} ‖J_x f_{l+1}‖₂², the Lipschitz constant of the gradient in x_l of a sample's smooth part.

    Where the process above has layer l + 1, it is the number that it sends by `lend_curvature`.
    """
    if layer in problem.span.lent:
        return float(problem.span.from_above(number(0.0)))
    powers = partial(RememberedPower, memory)
    return _enlarged(curvature.variable_curvature(problem, point, layer, powers, upper), upper)


def lend_curvature(problem: LiftedProblem, point: Point, memory: PowerMemory, upper: bool) -> None:
    """Sends `variable_curvature` of the variable that is borrowed to the process that moves it."""
    for layer in problem.span.borrowed:
        problem.span.send_below(number(variable_curvature(problem, point, layer, memory, upper)))


def step_for(factor: float, bound: float, point: Point) -> float:
    """factor / bound, kept finite and positive where there is no curvature at all, or where a run has diverged."""
    eps = torch.finfo(point.dtype).eps
    return factor / min(max(bound, eps), eps**-4) if math.isfinite(bound) else factor * eps**4


def _enlarged(bound: float, upper: bool) -> float:
    return bound if upper else (1.0 + MARGIN) * bound
