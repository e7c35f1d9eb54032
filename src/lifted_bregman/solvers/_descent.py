"""One proximal gradient step on a parameter block, in place, and on a variable block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lifted_bregman._linalg import norm
from lifted_bregman._no_graph import no_graph
from lifted_bregman.maps import Dense
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.shard import WHOLE, Shard, join_norms
from lifted_bregman.solvers._factored_dense import FactoredDense
from lifted_bregman.solvers._packing import rows


class ParameterSteps(NamedTuple):
    """Step sizes t and proximal weights τ of Θ_l; parameters of two or more dimensions are weights, others biases."""

    weight: float
    bias: float
    weight_pull: float = 0.0
    """τ of the weights."""
    bias_pull: float = 0.0
    """τ of the biases."""


@no_graph
def descend(
    problem: LiftedProblem, point: Point, layer: int, steps: ParameterSteps, anchor: Mapping[str, Tensor]
) -> None:
    """Θ_l ← prox_{tP_l}( (1 - tτ)Θ_l + tτΘ_l⁰ - t ∇_{Θ_l}H ), in place.

    Without a P_l no tensor of a weight's size is allocated, unless ranks share the samples and have to sum the
    gradient.  A weight in sample space stores Θ_l⁰ itself and needs no anchor; its ranks gather the rows of d_l.
    """
    f = problem.network[layer].map
    parameters = {name: p.detach() for name, p in f.parameters.items()}
    if not parameters:
        return
    t, t_bias, tau, tau_bias = steps
    in_samples = isinstance(f, FactoredDense)
    # dense layer without P_l: one product adds -t ∇H and t τ Θ⁰ to the scaled weight
    if isinstance(f, Dense) and not problem.has_parameter_prox(layer) and (point.shard.whole or in_samples):
        problem.work.parameter_gradients += 1
        share, x = problem.weight(layer) / point.samples, point.read(layer)
        d = point.shard.all_rows(point.weigh(point.residual(layer)))
        if d.ndim != 2:
            d = d.reshape(-1, d.shape[-1])
        if isinstance(f, FactoredDense):
            f.move(x, d, scale=-t * share, decay=1.0 - t * tau)
        elif "weight" in parameters:
            weight = parameters["weight"].addmm_(d.t(), rows(f, x), beta=1.0 - t * tau, alpha=-t * share)
            if t * tau > 0.0:
                weight.add_(anchor["weight"], alpha=t * tau)
        if "bias" in parameters:
            bias, pull = parameters["bias"], t_bias * tau_bias
            if pull > 0.0:
                bias.lerp_(anchor["bias"], pull)
            bias.add_(d.sum(0), alpha=-t_bias * share)
        point.parameters_changed(layer)
        return
    # any other map: Θ ← (1 - tτ)Θ - t ∇H; biases apart if their t or τ differs
    apart: dict[str, Tensor] = {}
    if (t, tau) != (t_bias, tau_bias):
        apart = {name: torch.zeros_like(p) for name, p in parameters.items() if p.ndim < 2}
    problem.accumulate_parameter_gradient(point, layer, parameters | apart, scale=-t, decay=1.0 - t * tau)
    # + t τ Θ⁰, then prox_{tP_l}
    for name, p in parameters.items():
        pull = t * tau
        if name in apart:
            pull = t_bias * tau_bias
            p.mul_(1.0 - pull).add_(apart[name], alpha=t_bias / t)
        if pull > 0.0:
            p.add_(anchor[name], alpha=pull)
    if problem.has_parameter_prox(layer):
        for name, value in problem.parameter_prox(layer, parameters, t).items():
            parameters[name].copy_(value)
    point.parameters_changed(layer)


@no_graph
def moved_variable(problem: LiftedProblem, point: Point, layer: int, t: float) -> Tensor:
    """prox_{tG_l}( x_l - t ∇_{x_l}H ), in new memory."""
    ahead = torch.sub(point.x[layer], problem.variable_gradient(point, layer), alpha=t)
    return problem.variable_prox(layer, ahead, t)


def rms(residual: Tensor, shard: Shard = WHOLE) -> float:
    """‖d‖/√s over the samples of the batch; it is not finite once a run has diverged."""
    (length,) = join_norms(shard, norm(residual))
    return length / math.sqrt(shard.samples(len(residual)))
