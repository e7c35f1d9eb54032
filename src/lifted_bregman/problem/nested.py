"""The objective of the network with an autograd graph, for back-propagation.

Back-propagation baselines differentiate activations by these functions; under `forbid_activation_derivatives` they
raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import mse_loss

from lifted_bregman.activations import Activation, Identity
from lifted_bregman.graph import Layer, ModelInput
from lifted_bregman.graph.terms import sum_features
from lifted_bregman.losses import bregman_loss
from lifted_bregman.maps import Borrowing, Dense, LayerMap
from lifted_bregman.maps.base import Inputs
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.problem.shard import WHOLE, Shard
from lifted_bregman.problem.subgradients import minimal_subgradient

if TYPE_CHECKING:
    from lifted_bregman.problem.lifted import LiftedProblem


def nested_objective(
    problem: LiftedProblem,
    X: ModelInput,
    Y: Tensor,
    parameter_penalties: bool = True,
    weights: Tensor | None = None,
    watch: Callable[[Tensor, Tensor], None] | None = None,
) -> Tensor:
    """`problem.objective` with a graph: mean loss plus penalties at the forward pass; X and Y come from `prepare`.

        (1/s) Σ_i w_i [ ℓ(y, z_L) + Σ_{l<L} R_l(x_l) ] + Σ_l P_l(Θ_l),   x_l = σ_l(f_l(x_{l-1}, Θ_l))

    weights are the w_i, (s,), None for all equal to 1.  The mean is over the samples given, without those of other
    ranks.  Derivatives are autograd's; at a kink of an activation torch chooses one, and of a penalty the shortest
    subgradient is taken.  `watch` is called with the objective and z_L, without their graphs.
    """
    network = problem.network
    values: list[Any] = [X]
    per_sample = []
    for layer in hidden_layers(problem.depth):
        own = network[layer]
        x = differentiable_activation(own, own.map.evaluate(network.read(values, layer)))
        values.append(x)
        if layer in problem.penalties:
            per_sample.append(sum_features(differentiable_penalty(problem.penalties[layer], own.arrange(x))))
    top, below = network[problem.depth], network.read(values, problem.depth)
    z = top.map.evaluate(below)
    if weights is None and isinstance(top.activation, Identity):  # ½‖y - z_L‖² in one kernel, forward and backward
        value = mse_loss(z, Y, reduction="sum") * (0.5 / len(X))
    else:
        loss = _output_loss(top, z, Y)
        value = (loss if weights is None else weights * loss).mean()
    for penalty in per_sample:
        value = value + (penalty if weights is None else weights * penalty).mean()
    if parameter_penalties and problem.parameter_penalties:
        value = value + differentiable_parameter_penalty(problem)
    if watch is not None:
        watch(value.detach(), z.detach())
    return value


def nested_gradient(
    problem: LiftedProblem,
    X: ModelInput,
    Y: Tensor,
    parameters: Sequence[Tensor],
    parameter_penalties: bool = True,
    weights: Tensor | None = None,
    factor: float | None = None,
    watch: Callable[[Tensor, Tensor], None] | None = None,
    shard: Shard = WHOLE,
) -> tuple[Tensor, list[Tensor]]:
    """The nested objective over the samples of the batch, and its gradient, times `factor` if there is one.

    `watch` is called with the objective and z_L of the samples given.
    """
    share = len(X) / max(1, shard.samples(len(X)))  # the weight of this rank's mean in that of the batch
    if share == 0.0:
        value, gradient = Y.new_zeros(()), [torch.zeros_like(p) for p in parameters]
    else:
        if share < 1.0:
            factor = share if factor is None else share * factor
        with torch.enable_grad():
            value = nested_objective(problem, X, Y, parameter_penalties, weights, watch)
            gradient = list(torch.autograd.grad(value if factor is None else value * factor, parameters))
        value = value.detach() * share
    shard.all_sum(value, *gradient)
    return value, gradient


def differentiable_activation(layer: Layer, z: Tensor) -> Tensor:
    """σ(z) with an autograd graph; z itself for the identity."""
    if isinstance(layer.activation, Identity):
        return z
    try:
        module = _module(layer.activation)
    except TypeError:  # a user's activation without a hash
        module = layer.activation.as_module()
    u: Tensor = module(layer.arrange(z))
    return layer.restore(u)


@lru_cache
def _module(activation: Activation) -> nn.Module:
    return activation.as_module()


def differentiable_loss(problem: LiftedProblem, x: Inputs, Y: Tensor) -> Tensor:
    """ℓ(y, z_L) of each sample; its gradient in z_L is σ_L(z_L) - y, without a derivative of σ_L.

    x  what f_L reads: x_{L-1} in a chain
    """
    top = problem.network[problem.depth]
    return _output_loss(top, top.map.evaluate(x), Y)


def _output_loss(top: Layer, z: Tensor, Y: Tensor) -> Tensor:
    return sum_features(bregman_loss(top.arrange(Y), top.arrange(z), top.activation))


def differentiable_penalty(penalty: Penalty, x: Tensor) -> Tensor:
    """R(x) with `minimal_subgradient` as its derivative."""
    value: Tensor = _PenaltyFunction.apply(x, penalty)  # type: ignore[no-untyped-call]
    return value


class _PenaltyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, penalty: Penalty) -> Tensor:
        ctx.save_for_backward(x)
        ctx.penalty = penalty
        return penalty.value(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        (g,) = gradients  # one number for each vector, or for each matrix
        return g.view(*g.shape, *[1] * (x.ndim - g.ndim)) * minimal_subgradient(ctx.penalty, x), None


def differentiable_parameter_penalty(problem: LiftedProblem) -> Tensor | float:
    """Σ_l P_l(Θ_l), of weights as (units, rest) matrices."""
    total: Tensor | float = 0.0
    for layer, penalty in problem.parameter_penalties.items():
        f = problem.network[layer].map
        for parameter in f.parameters.values():
            if parameter.ndim > 1:
                total = total + differentiable_penalty(penalty, f.unit_rows(parameter)).sum()
    return total


def not_differentiable(problem: LiftedProblem, penalties: bool = True) -> str | None:
    """Why autograd cannot differentiate the objective, as part of a sentence; None if it can.

    penalties  whether the objective includes penalties
    """
    for layer in layers(problem.depth):
        layer_map = problem.network[layer].map
        base = layer_map.base if isinstance(layer_map, Borrowing) else layer_map
        if type(base).evaluate is LayerMap.evaluate:
            return f"autograd does not know the map {type(base).__name__} of layer {layer}"
    if not trained_parameters(problem):
        return "every parameter has requires_grad=False"
    if not penalties:
        return None
    if problem.anchors:
        return "the network's own objective has no proximal term (τ/2)‖Θ - Θ⁰‖²"
    for kind, of in (("penalties", problem.penalties), ("parameter_penalties", problem.parameter_penalties)):
        for layer, penalty in of.items():
            if penalty.constraint:
                return f"{kind}[{layer}] = {penalty} is a constraint, which has no subgradients to follow"
            if minimal_subgradient.dispatch(type(penalty)) is minimal_subgradient.dispatch(object):
                return f"no subgradient of {kind}[{layer}] = {penalty} is known"
    return None


def trained_parameters(problem: LiftedProblem) -> list[Tensor]:
    """The trained parameters of all layers, from layer 1 up."""
    found: list[Tensor] = []
    for layer in layers(problem.depth):
        layer_map = problem.network[layer].map
        if isinstance(layer_map, Dense):  # faster than `parameters`, which matters in steps of small networks
            own = layer_map.module._parameters.values()
            found += [p for p in own if p is not None and p.requires_grad]
        else:
            found += layer_map.parameters.values()
    return found
