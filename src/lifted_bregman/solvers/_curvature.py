"""Lipschitz constants of block gradients, with the power iterations' vectors in the solver's state.

`problem.curvature` has the formulas.  Here each constant gets the power iteration of its name in a memory, which is the
solver's own or, during the inner steps of one batch, a `BatchMemory`; estimates from below are enlarged.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from lifted_bregman._linalg import FollowedPower, PowerMemory, RememberedPower
from lifted_bregman.problem import LiftedProblem, Point, curvature
from lifted_bregman.problem.blocks import Block, ParameterBlock
from lifted_bregman.problem.span import number
from lifted_bregman.solvers._batch_memory import BatchMemory

MARGIN = 0.01
"""Added, relatively, to a power iteration's estimate, which comes from below."""


def power(memory: PowerMemory, key: str) -> RememberedPower:
    """The power iteration of this name, with one product per inner step if the memory is a batch's."""
    return FollowedPower(memory, key) if isinstance(memory, BatchMemory) else RememberedPower(memory, key)


def parameter_curvature(problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory, upper: bool) -> float:
    """λ_l ‖J_Θ f_l‖₂²/s, the Lipschitz constant of ∇_{Θ_l}H: a guaranteed bound if `upper`, else an estimate.

    With the point's weights, as `LiftedProblem.parameter_curvature` has them.  An estimate is computed once for a batch
    as long as x_{l-1} is the same.
    """
    key, x = curvature.parameter_key(layer), point.read(layer)
    batch = memory if isinstance(memory, BatchMemory) else None
    known = None if batch is None or batch.inputs.get(key) is not x else batch.norms.get(key)
    if known is not None and not upper and len(problem.links.users[layer]) == 1:
        return _enlarged(known, upper)
    bound = curvature.parameter_curvature(problem, point, layer, partial(power, memory), upper)
    if batch is not None:
        batch.inputs[key], batch.norms[key] = x, bound
    return _enlarged(bound, upper)


def variable_curvature(problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory, upper: bool) -> float:
    """λ_{l+1} ‖J_x f_{l+1}‖₂², the Lipschitz constant of the gradient in x_l of a sample's smooth part.

    Where the process above has layer l + 1, it is the number that it sends by `lend_curvature`.
    """
    if layer in problem.span.lent:
        return float(problem.span.from_above(number(0.0)))
    return _enlarged(curvature.variable_curvature(problem, point, layer, partial(power, memory), upper), upper)


def lend_curvature(problem: LiftedProblem, point: Point, memory: PowerMemory, upper: bool) -> None:
    """Sends `variable_curvature` of the variable that is borrowed to the process that moves it."""
    for layer in problem.span.borrowed:
        problem.span.send_below(number(variable_curvature(problem, point, layer, memory, upper)))


def best_curvature(problem: LiftedProblem, point: Point, block: Block, memory: PowerMemory) -> float:
    """A guaranteed bound where every map in question is affine; else twice the estimate, for its Jacobian changes."""
    of_parameters = isinstance(block, ParameterBlock)
    terms = problem.links.users[block.layer] if of_parameters else problem.links.readers[block.layer]
    upper = all(problem.network[term].map.affine for term in terms)
    bound = (parameter_curvature if of_parameters else variable_curvature)(problem, point, block.layer, memory, upper)
    return bound if upper else 2.0 * bound


def step_for(factor: float, bound: float, point: Point) -> float:
    """factor / bound, kept finite and positive where there is no curvature at all, or where a run has diverged."""
    eps = torch.finfo(point.dtype).eps
    return factor / min(max(bound, eps), eps**-4) if math.isfinite(bound) else factor * eps**4


def _enlarged(bound: float, upper: bool) -> float:
    return bound if upper else (1.0 + MARGIN) * bound
