"""Copies of the parameters that a solver keeps: made once, then overwritten."""

from __future__ import annotations

import torch
from torch import Tensor

from lifted_bregman.problem import LiftedProblem

Anchor = dict[int, dict[str, Tensor]]
"""One tensor for each trained parameter, by layer and name."""


def live(problem: LiftedProblem) -> Anchor:
    """The trained parameters themselves, of the layers that this process has."""
    return {
        layer: {name: p.detach() for name, p in problem.network[layer].map.parameters.items()}
        for layer in problem.partition.terms
    }


def copied(problem: LiftedProblem) -> Anchor:
    """New copies of the trained parameters."""
    return {layer: {name: p.clone() for name, p in own.items()} for layer, own in live(problem).items()}


def overwrite(target: Anchor, source: Anchor) -> None:
    """target ← source, in place."""
    torch._foreach_copy_(tensors(target), tensors(source))


def accumulate(target: Anchor, source: Anchor, share: float) -> None:
    """target ← target + share·source, in place."""
    torch._foreach_add_(tensors(target), tensors(source), alpha=share)


def clear(target: Anchor) -> None:
    """target ← 0, in place."""
    torch._foreach_zero_(tensors(target))


def tensors(anchor: Anchor) -> list[Tensor]:
    """All tensors, in a fixed order."""
    return [value for own in anchor.values() for value in own.values()]
