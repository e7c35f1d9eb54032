"""The curvature of blocks: Lipschitz constants of their gradients, also where samples have weights or are shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from lifted_bregman._linalg import NormalOperator, PowerIteration, Vector
from lifted_bregman._no_graph import no_graph
from lifted_bregman.maps import Borrowing, Dense, LayerMap
from lifted_bregman.maps.base import Inputs
from lifted_bregman.problem.point import Point
from lifted_bregman.problem.shard import WHOLE, Shard, sum_numbers

if TYPE_CHECKING:
    from lifted_bregman.problem.lifted import LiftedProblem

Powers = Callable[[str], PowerIteration]
"""The power iteration of each name: "Θ_3" or "x_2", and "x_2.5" for term 5 where several read x_2."""


def parameter_key(layer: int) -> str:
    """The name of the power iteration for the curvature of Θ_l."""
    return f"Θ_{layer}"


def variable_key(layer: int) -> str:
    """The name of the power iteration for the curvature of x_l, in a chain that of ‖W_{l+1}‖."""
    return f"x_{layer}"


def parameter_curvature(problem: LiftedProblem, point: Point, layer: int, powers: Powers, upper: bool) -> float:
    """(1/s) Σ_t λ_t ‖J_Θ f_t‖₂² over the terms t in which Θ_l occurs, in most networks the term l alone."""
    total = 0.0
    for term in problem.links.users[layer]:
        f = problem.network[term].map
        if term != layer:
            assert isinstance(f, Borrowing)
            f = f.base
        key = parameter_key(layer) if term == layer else f"{parameter_key(layer)}.{term}"
        norm = squared_parameter_norm(f, point.read(term), powers(key), upper, point.weights, point.shard)
        total += problem.weight(term) * norm / point.samples
    return total


def variable_curvature(problem: LiftedProblem, point: Point, layer: int, powers: Powers, upper: bool) -> float:
    """Σ_t λ_t ‖J_x f_t‖₂² over the terms t that read x_l; in a chain λ_{l+1} ‖J_x f_{l+1}‖₂²."""
    total = 0.0
    for number, term in enumerate(problem.links.readers[layer]):
        f, which = problem.network[term].map, problem.links.inputs[term].index(layer)
        key = variable_key(layer) if number == 0 else f"{variable_key(layer)}.{term}"
        norm = squared_input_norm(f, point.read(term), powers(key), upper, point.shard, which)
        total += problem.weight(term) * norm
    return total


class SharedPower(PowerIteration):
    """A power iteration on the sum of the operators of all ranks, with the same vectors on each.

    power  whose vector is used and kept
    """

    def __init__(self, power: PowerIteration, shard: Shard) -> None:
        self._power, self._shard = power, shard

    def estimate(
        self, normal: NormalOperator, like: Sequence[Tensor], tolerance: float = 1e-4, max_steps: int = 100
    ) -> float:
        def summed(v: Vector) -> Vector:
            image = tuple(part.clone() for part in normal(v))
            self._shard.all_sum(*image)
            return image

        return self._power.estimate(summed, like, tolerance, max_steps)


@no_graph
def squared_input_norm(
    f: LayerMap, x: Inputs, power: PowerIteration, upper: bool, shard: Shard = WHOLE, which: int = 0
) -> float:
    """‖J_x f‖₂² of one sample, the largest over all samples of the batch where they differ.

    which  the input in question, where f reads several
    """

    def of_all(x: Tensor) -> Tensor:
        # An affine map has the same Jacobian at every x, of which only the shape is read.
        return x.new_zeros(1, *x.shape[1:]) if f.affine else shard.all_rows(x, keep=True)

    if not shard.whole:
        x = tuple(map(of_all, x)) if isinstance(x, tuple) else of_all(x)
    return f.input_curvature(x, power, upper, which)


@no_graph
def squared_parameter_norm(
    f: LayerMap,
    x: Inputs,
    power: PowerIteration,
    upper: bool,
    weights: Tensor | None = None,
    shard: Shard = WHOLE,
) -> float:
    """‖diag(√w) J_Θ f‖₂² over all samples of x: an estimate from below, or a guaranteed bound if `upper`.

    Without weights it is `f.parameter_curvature`.  With them it is exact for a dense map; for any other it is max_i w_i
    times the number without weights, which is not below.

    The samples are those of the whole batch.
    """
    x, weights, power = over_all_samples(x, weights, power, upper, shard)
    summed = isinstance(power, SharedPower)
    if isinstance(f, Dense):
        norm = f.parameter_curvature(x, power, upper, weights)
        # Of a bias alone the norm is Σ w_i over the rows here, without a power iteration that adds up those of all.
        return sum_numbers(shard, norm)[0] if summed and f.parameters.keys() == {"bias"} else norm
    if weights is None:
        return f.parameter_curvature(x, power, upper)
    return float((shard.all_rows(weights) if summed else weights).max()) * f.parameter_curvature(x, power, upper)


def over_all_samples(
    x: Inputs, weights: Tensor | None, power: PowerIteration, upper: bool, shard: Shard
) -> tuple[Inputs, Tensor | None, PowerIteration]:
    """The arguments of a norm over all samples: the rows of all ranks, or those here and a `SharedPower`.

    Rows are gathered for a bound from above, and where that is cheap.
    """
    if shard.whole:
        return x, weights, power
    several = isinstance(x, tuple)
    if upper or several or shard.rows_are_cheap(x):
        x = tuple(shard.all_rows(rows, keep=True) for rows in x) if several else shard.all_rows(x, keep=True)
        return x, None if weights is None else shard.all_rows(weights), power
    return x, weights, SharedPower(power, shard)
