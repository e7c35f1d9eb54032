"""The trained parameters of a problem, and copies of them, as tensors by layer and name."""

from __future__ import annotations

import torch
from torch import Tensor

from lifted_bregman.problem import LiftedProblem

LayerTensors = dict[int, dict[str, Tensor]]
"""One tensor for each trained parameter, by layer and name."""


def parameters_in_place(problem: LiftedProblem) -> LayerTensors:
    """The trained parameters themselves, of the layers that this process has."""
    return {
        layer: {name: p.detach() for name, p in problem.network[layer].map.parameters.items()}
        for layer in problem.partition.terms
    }


def copy_parameters(problem: LiftedProblem) -> LayerTensors:
    """New copies of the trained parameters."""
    return {layer: {name: p.clone() for name, p in own.items()} for layer, own in parameters_in_place(problem).items()}


def zero_parameters(problem: LiftedProblem) -> LayerTensors:
    """Zeros in the shapes of the trained parameters."""
    zeros = copy_parameters(problem)
    set_to_zero(zeros)
    return zeros


def overwrite(target: LayerTensors, source: LayerTensors) -> None:
    """target ← source, in place."""
    torch._foreach_copy_(tensor_list(target), tensor_list(source))


def accumulate(target: LayerTensors, source: LayerTensors, share: float) -> None:
    """target ← target + share·source, in place."""
    torch._foreach_add_(tensor_list(target), tensor_list(source), alpha=share)


def set_to_zero(target: LayerTensors) -> None:
    """target ← 0, in place."""
    torch._foreach_zero_(tensor_list(target))


def tensor_list(tensors: LayerTensors) -> list[Tensor]:
    """All tensors, in the order of the layers and of their parameters."""
    return [value for own in tensors.values() for value in own.values()]


def flatten(tensors: LayerTensors) -> Tensor:
    """All numbers as one new tensor (n,)."""
    return torch.cat([t.reshape(-1) for t in tensor_list(tensors)])


def unflatten(flat: Tensor, like: LayerTensors) -> LayerTensors:
    """Views of a tensor (n,) in the shapes of `like`; the inverse of `flatten`."""
    parts = iter(flat.split([t.numel() for t in tensor_list(like)]))
    return {layer: {name: next(parts).view_as(t) for name, t in own.items()} for layer, own in like.items()}
