"""The curvature of blocks: Lipschitz constants of their gradients, also with sample weights and several ranks.

    Θ_l:  (1/s) Σ_t λ_t ‖J_Θ f_t‖₂² over the terms t in which Θ_l occurs, in most networks the term l alone
    x_l:  Σ_t λ_t ‖J_x f_t‖₂² over the terms t that read x_l; in a chain λ_{l+1} ‖J_x f_{l+1}‖₂²

No other constant occurs, because σ is 1-Lipschitz.  The squared norms are guaranteed bounds if `upper`, else estimates
from below by power iterations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lifted_bregman._linalg import FollowedPower, NormalOperator, PowerIteration, RememberedPower, Vector, squared_norm
from lifted_bregman._no_graph import no_graph
from lifted_bregman.maps import Borrowing, Dense, LayerMap
from lifted_bregman.maps.base import Inputs
from lifted_bregman.problem.blocks import Block, ParameterBlock
from lifted_bregman.problem.border import number
from lifted_bregman.problem.point import Point
from lifted_bregman.problem.shard import WHOLE, Shard, sum_numbers

if TYPE_CHECKING:
    from lifted_bregman.problem.lifted import LiftedProblem

MARGIN = 0.01
"""The relative amount added to a power iteration's estimate, which is from below."""
PowerMemory = dict[int, dict[str, list[Tensor]]]
"""By term t, the last vector of each power iteration on f_t: "Θ_l" for its parameters, "x_v" for an input.

A solver saves it in its state, because results of a warm start depend on earlier steps.
"""


class FollowedMemory(PowerMemory):
    """The memory during the inner steps of one batch, in which a power iteration takes one product at each step."""

    def __init__(self, memory: PowerMemory) -> None:
        super().__init__({term: dict(vectors) for term, vectors in memory.items()})
        self.norms: dict[int, float] = {}
        """The last curvature of Θ_l, by l."""
        self.inputs: dict[int, Inputs] = {}
        """What f_l read when that curvature was computed, by l."""


def power(memory: PowerMemory, term: int, name: str) -> RememberedPower:
    """The power iteration of this name on f_t."""
    vectors = memory.setdefault(term, {})
    return FollowedPower(vectors, name) if isinstance(memory, FollowedMemory) else RememberedPower(vectors, name)


def variable_key(variable: int) -> str:
    """The name of the power iteration for ‖J_x f_t‖ in the variable x_v; for a dense map ‖W_t‖."""
    return f"x_{variable}"


# Blocks


def parameter_curvature(
    problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory, upper: bool, margin: float = MARGIN
) -> float:
    """The Lipschitz constant of ∇_{Θ_l}H: a guaranteed bound if `upper`, else an estimate, enlarged by `margin`.

    During the inner steps of a batch an estimate is computed once as long as f_l reads the same.
    """
    x, users = point.read(layer), problem.links.users[layer]
    inner = memory if isinstance(memory, FollowedMemory) else None
    if inner is not None and inner.inputs.get(layer) is x and not upper and len(users) == 1:
        return _enlarged(inner.norms[layer], upper, margin)
    total = 0.0
    for term in users:
        f = problem.network[term].map
        if term != layer:
            assert isinstance(f, Borrowing)
            f = f.base
        iteration = power(memory, term, f"Θ_{layer}")
        norm = _squared_parameter_norm(f, point.read(term), iteration, upper, point.weights, point.shard)
        total += problem.weight(term) * norm / point.samples
    if inner is not None:
        inner.inputs[layer], inner.norms[layer] = x, total
    return _enlarged(total, upper, margin)


def variable_curvature(
    problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory, upper: bool, margin: float = MARGIN
) -> float:
    """The Lipschitz constant of the gradient in x_l of a sample's smooth part, as for `parameter_curvature`.

    If the rank above holds layer l + 1, it sends the number by `lend_curvature`.
    """
    if layer in problem.partition.lent:
        return float(problem.border.from_above(number(0.0)))
    total = 0.0
    for term in problem.links.readers[layer]:
        which, iteration = problem.links.inputs[term].index(layer), power(memory, term, variable_key(layer))
        norm = squared_input_norm(problem.network[term].map, point.read(term), iteration, upper, point.shard, which)
        total += problem.weight(term) * norm
    return _enlarged(total, upper, margin)


def lend_curvature(problem: LiftedProblem, point: Point, memory: PowerMemory, upper: bool) -> None:
    """Sends `variable_curvature` of each borrowed variable to the rank that moves it."""
    for layer in problem.partition.borrowed:
        problem.border.send_below(number(variable_curvature(problem, point, layer, memory, upper)))


def best_curvature(problem: LiftedProblem, point: Point, block: Block, memory: PowerMemory) -> float:
    """The curvature of a block: a guaranteed bound if all its maps are affine; else twice an estimate, for safety."""
    of_parameters = isinstance(block, ParameterBlock)
    terms = problem.links.users[block.layer] if of_parameters else problem.links.readers[block.layer]
    upper = all(problem.network[term].map.affine for term in terms)
    bound = (parameter_curvature if of_parameters else variable_curvature)(problem, point, block.layer, memory, upper)
    return bound if upper else 2.0 * bound


def weight_curvature(problem: LiftedProblem, point: Point, layer: int, columns: slice) -> float:
    """A bound λ_l ‖diag(√w) X_S‖₂²/s of the curvature in W_l[:, S], for a dense map and the units S = `columns`."""
    f = problem.network[layer].map
    assert isinstance(f, Dense)
    A = f.rows(point.read(layer))[:, columns]
    if point.weights is not None:
        A = A * point.weights.repeat_interleave(len(A) // max(1, len(point.weights))).sqrt()[:, None]
    return problem.weight(layer) * squared_norm(A) / point.samples


def unit_curvature(problem: LiftedProblem, layer: int, units: slice) -> float:
    """A bound Σ_t λ_t ‖W_t[:, S]‖₂² of the curvature in the units S of a sample's x_l, over dense readers t."""
    total = 0.0
    for term in problem.links.readers[layer]:
        f = problem.network[term].map
        assert isinstance(f, Dense)
        total += problem.weight(term) * squared_norm(f.module.weight[:, units])
    return total


def step_for(factor: float, bound: float, point: Point) -> float:
    """factor / bound, kept finite and positive if the curvature is 0, or if the run has diverged."""
    eps = torch.finfo(point.dtype).eps
    return factor / min(max(bound, eps), eps**-4) if math.isfinite(bound) else factor * eps**4


def _enlarged(bound: float, upper: bool, margin: float) -> float:
    return bound if upper else (1.0 + margin) * bound


# Maps


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
def _squared_parameter_norm(
    f: LayerMap, x: Inputs, power: PowerIteration, upper: bool, weights: Tensor | None, shard: Shard
) -> float:
    """‖diag(√w) J_Θ f‖₂² over all samples of the batch.

    With weights it is exact for a dense map; for any other map it is the bound max_i w_i ‖J_Θ f‖₂².
    """
    x, weights, power = over_all_samples(x, weights, power, upper, shard)
    summed = isinstance(power, _SummedPower)
    if isinstance(f, Dense):
        norm = f.parameter_curvature(x, power, upper, weights)
        # For a bias alone the norm is Σ w_i over this rank's rows; without a power iteration ranks are summed here
        return sum_numbers(shard, norm)[0] if summed and f.parameters.keys() == {"bias"} else norm
    if weights is None:
        return f.parameter_curvature(x, power, upper)
    return float((shard.all_rows(weights) if summed else weights).max()) * f.parameter_curvature(x, power, upper)


def over_all_samples(
    x: Inputs, weights: Tensor | None, power: PowerIteration, upper: bool, shard: Shard
) -> tuple[Inputs, Tensor | None, PowerIteration]:
    """The arguments of a norm over all samples of the batch.

    These are the rows of all ranks if a bound is needed or gathering is cheap; otherwise the rows of this rank, and a
    power iteration that adds up the products of all ranks.
    """
    if shard.whole:
        return x, weights, power
    several = isinstance(x, tuple)
    if upper or several or shard.rows_are_cheap(x):
        x = tuple(shard.all_rows(rows, keep=True) for rows in x) if several else shard.all_rows(x, keep=True)
        return x, None if weights is None else shard.all_rows(weights), power
    return x, weights, _SummedPower(power, shard)


class _SummedPower(PowerIteration):
    """A power iteration on the sum of the operators of all ranks, with the same vectors on each."""

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
