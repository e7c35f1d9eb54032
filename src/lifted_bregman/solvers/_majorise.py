"""The majorise-minimise step on a parameter block of a dense layer, in place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lifted_bregman._linalg import GuardedFactor
from lifted_bregman._no_graph import no_graph
from lifted_bregman.maps import Dense
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.curvature import step_for
from lifted_bregman.solvers._batch_memory import BatchMemory
from lifted_bregman.solvers._descent import ParameterSteps, descend
from lifted_bregman.solvers._factored_dense import FactoredDense
from lifted_bregman.solvers._packing import design, unpacked


@no_graph
def majorise(
    problem: LiftedProblem,
    point: Point,
    layer: int,
    prox_weight: float,
    anchor: Mapping[str, Tensor],
    memory: BatchMemory,
) -> None:
    """Θ_l ← argmin of the quadratic majorant of the block's objective, with curvature (λ_l/s) AᵀA + τI.

    The objective is E + (τ/2)‖Θ_l - Θ_l⁰‖² and A holds the columns of [X_{l-1} 1] that are trained.  If the
    system has no finite solution, a gradient step with a bound of the curvature is taken and counted in the memory.
    """
    f, x = problem.network[layer].map, point.read(layer)
    assert isinstance(f, Dense)
    if not f.parameters:
        return
    known, factor = memory.factors.get(layer, (None, None))
    if factor is None or known is not x:
        curvature = problem.weight(layer) / point.samples
        factor = _factor(f, point, x, curvature, prox_weight)
        memory.factors[layer] = (x, factor)
    in_samples = isinstance(f, FactoredDense)
    move = _in_samples if in_samples else _in_weights
    moved = not factor.fallback and move(problem, point, layer, prox_weight, anchor, factor)
    if not moved:
        memory.fallbacks += 1
        t = step_for(1.0, factor.curvature, point)
        descend(problem, point, layer, ParameterSteps(t, t, prox_weight, prox_weight), anchor)


def _factor(f: Dense, point: Point, x: Tensor, curvature: float, prox_weight: float) -> GuardedFactor:
    if isinstance(f, FactoredDense):
        K = f.gram(x)
        if "bias" in f.parameters:
            K = K + 1.0
        root = _root(_all_weights(point), K)
        return GuardedFactor(K if root is None else root * K * root.t(), curvature, prox_weight, samples=True)
    A = design(f, x)
    root = _root(point.weights, A)
    if root is not None:
        A = A * root
    K = A.t() @ A
    point.shard.all_sum(K)
    return GuardedFactor(K, curvature, prox_weight)


def _in_samples(
    problem: LiftedProblem,
    point: Point,
    layer: int,
    tau: float,
    anchor: Mapping[str, Tensor],
    factor: GuardedFactor,
) -> bool:
    """Θ - Θ⁰ ← γ(Θ - Θ⁰) + AᵀC, C = (cK + (τ + ε)I)⁻¹ c ( (1 - γ)(Z - Z⁰) - d ), γ = ε/(τ + ε), where Z = AΘ.

    With ε = 0 earlier factors have the weight γ = 0, so that C has as many rows as the batch after any number of steps.
    """
    f, x, d = problem.network[layer].map, point.read(layer), point.residual(layer)
    assert isinstance(f, FactoredDense)
    problem.work.parameter_gradients += 1
    d, curvature = d.reshape(-1, d.shape[-1]), problem.weight(layer) / point.samples
    kept = factor.added / (tau + factor.added)
    G = point.shard.all_rows(f.shift(x).mul_(1.0 - kept).sub_(d).mul_(curvature), f.each(x))
    root = _root(_all_weights(point), G)
    C = factor.solve(G if root is None else G * root)
    if factor.fallback:
        return False
    if root is not None:
        C = C * root
    f.move(x, C, scale=1.0, decay=kept)
    if "bias" in f.parameters:
        torch.lerp(anchor["bias"], f.module.bias.detach(), kept, out=f.module.bias.detach()).add_(C.sum(0))
    point.parameters_changed(layer)
    return True


def _in_weights(
    problem: LiftedProblem,
    point: Point,
    layer: int,
    tau: float,
    anchor: Mapping[str, Tensor],
    factor: GuardedFactor,
) -> bool:
    """Θ ← Θ - ∇ (cAᵀA + (τ + ε)I)⁻¹."""
    f = problem.network[layer].map
    assert isinstance(f, Dense)
    parameters = {name: p.detach() for name, p in f.parameters.items()}
    slope = problem.parameter_gradient(point, layer)
    if tau > 0.0:
        for name, p in parameters.items():
            slope[name].add_(p, alpha=tau).sub_(anchor[name], alpha=tau)
    packed = torch.cat([slope[name].view(len(p), -1) for name, p in _ordered(parameters)], 1)
    step = factor.solve(packed.t()).t()
    if factor.fallback:
        return False
    for name, part in unpacked(f, step).items():
        parameters[name].sub_(part)
    point.parameters_changed(layer)
    return True


def _root(weights: Tensor | None, matrix: Tensor) -> Tensor | None:
    """√w_i of each row as a column."""
    if weights is None:
        return None
    return weights.repeat_interleave(len(matrix) // max(1, len(weights))).sqrt()[:, None]


def _all_weights(point: Point) -> Tensor | None:
    return None if point.weights is None else point.shard.all_rows(point.weights)


def _ordered(parameters: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(name, parameters[name]) for name in ("weight", "bias") if name in parameters]
