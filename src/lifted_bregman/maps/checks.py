"""A check of a map, for users' own and for those of the library."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from lifted_bregman.errors import CheckError, TensorError
from lifted_bregman.maps.base import LayerMap
from lifted_bregman.maps.traced import trace_chain


def check_map(layer_map: LayerMap | nn.Module, x: Tensor, tolerance: float = 1e-6) -> None:
    """Checks that a map f(x, Θ) has the properties on which the lifted problem relies.

    - It is deterministic, and treats each sample alone: f of a sample does not change with the rest of its batch.
    - Its pull-backs are the transposed Jacobians: <d, J v> = <Jᵀ d, v>, J v by central differences of `apply`, in the
      input and in each trained parameter.
    - For maps that declare themselves affine, the guaranteed curvature bounds are not below ‖J v‖²/‖v‖².

    Parameters are left as they were, bit for bit.

    Args:
        layer_map: a `LayerMap`, or an `nn.Module`, which is checked as `Map(module)`.
        x: inputs of the map in float64, (samples, ...), with at least two samples; the map's parameters in float64 too.
        tolerance: allowed violation, relative to the size of the terms compared.

    Example:
        >>> x = torch.randn(5, 3, dtype=torch.float64)
        >>> lb.check_map(nn.Linear(3, 2, dtype=torch.float64), x)
        >>> lb.check_map(nn.Dropout(), x)
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CheckError: f(x) differs between two calls; a map must be deterministic ...
    """
    if not isinstance(x, Tensor) or x.dtype != torch.float64 or x.ndim < 2 or x.shape[0] < 2:
        given = f"{tuple(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise TensorError(f"x is {given}; check_map needs float64 inputs (samples, ...) with at least two samples.")
    if isinstance(layer_map, nn.Module):
        layer_map = trace_chain(layer_map)
    # Deterministic, and each sample alone
    z = layer_map.apply(x)
    if not torch.equal(z, layer_map.apply(x)):
        raise CheckError("f(x) differs between two calls; a map must be deterministic and keep no running statistics.")
    for i in range(x.shape[0]):
        among_copies = layer_map.apply(x[i : i + 1].expand_as(x).contiguous())[0]
        if not torch.allclose(among_copies, z[i], rtol=tolerance, atol=tolerance):
            raise CheckError(f"f of sample {i} depends on the other samples of its batch; a map must treat each alone.")

    # In the input: <d, J v> = <Jᵀ d, v>, and ‖J v‖² <= bound·‖v‖²
    d, v = _directions(z, 1), _directions(x, 2)
    h = 1e-5
    pushed = (layer_map.apply(x + h * v) - layer_map.apply(x - h * v)) / (2.0 * h)
    _adjoint(d, pushed, layer_map.pull_back_input(x, d), v, tolerance, "input")
    if layer_map.affine:
        largest = float((pushed.flatten(1).square().sum(-1) / v.flatten(1).square().sum(-1)).max())
        _bounded(largest, layer_map.input_curvature(x, upper=True), "input")

    # The same in each trained parameter
    gradients = layer_map.pull_back_parameters(x, d)
    if gradients.keys() != layer_map.parameters.keys():
        raise CheckError(
            f"the parameters are {sorted(layer_map.parameters)} but the pull-back has {sorted(gradients)}; they must "
            "be the same."
        )
    for name, parameter in layer_map.parameters.items():
        direction = _directions(parameter, 3)
        pushed = _push_parameter(layer_map, parameter, direction, x, h)
        _adjoint(d, pushed, gradients[name], direction, tolerance, f"parameter {name!r}")
        if layer_map.affine:
            ratio = float(pushed.square().sum() / direction.square().sum())
            _bounded(ratio, layer_map.parameter_curvature(x, upper=True), f"parameter {name!r}")


def _push_parameter(layer_map: LayerMap, parameter: nn.Parameter, direction: Tensor, x: Tensor, h: float) -> Tensor:
    """J_Θ·direction by central differences; the parameter is restored bitwise."""
    kept = copy.deepcopy(parameter.data)
    try:
        parameter.data.copy_(kept + h * direction)
        ahead = layer_map.apply(x).clone()
        parameter.data.copy_(kept - h * direction)
        return (ahead - layer_map.apply(x)) / (2.0 * h)
    finally:
        parameter.data.copy_(kept)


def _directions(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)


def _adjoint(d: Tensor, pushed: Tensor, pulled: Tensor, v: Tensor, tolerance: float, what: str) -> None:
    if pulled.shape != v.shape:
        raise CheckError(f"the pull-back to the {what} has shape {tuple(pulled.shape)}; it must be {tuple(v.shape)}.")
    left, right = float((d * pushed).sum()), float((pulled * v).sum())
    size = float((d * pushed).abs().sum() + (pulled * v).abs().sum())
    if not abs(left - right) <= tolerance * size:
        raise CheckError(
            f"the pull-back to the {what} is not the transposed Jacobian: <d, Jv> = {left}, <Jᵀd, v> = {right}."
        )


def _bounded(ratio: float, bound: float, what: str) -> None:
    if not ratio <= bound * (1.0 + 1e-6):
        raise CheckError(f"the curvature bound of the {what} is {bound}, but ‖Jv‖²/‖v‖² reaches {ratio}.")
