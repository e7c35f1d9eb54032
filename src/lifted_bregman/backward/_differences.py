"""(σ(z) - σ(z - tG))/t, with all its digits however small t is.

The plain difference of two values near 1 keeps nothing of a tG below 1e-7 in float32, and signals of early layers are
that small.  So straight pieces have closed forms, in which G itself comes out where σ has slope 1, softmax has one
without cancellation, and other activations are evaluated in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.activations import (
    Activation,
    Box,
    LeakyReLU,
    NonNegativeSoftThreshold,
    ReLU,
    Softmax,
    SoftThreshold,
)

_LARGEST_EXPONENT = 80.0  # below the overflow of float32


def quotient(
    activation: Activation, function: Callable[[Tensor], Tensor], dim: int, z: Tensor, G: Tensor, steps: Tensor
) -> Tensor:
    """(σ(z) - σ(z - tG))/t, in the dtype of z, float32 or float64.

    activation  what σ is
    function    computes σ, a joint one along `dim`
    z, G        (samples, ...)
    steps       t > 0, (samples, 1, ..)
    """
    closed = _CLOSED.get(type(activation))
    if closed is not None and not torch._C._are_functorch_transforms_active():  # vmap has no rule for clamp_
        return closed(activation, z, G, steps.reciprocal())
    if type(activation) is Softmax:
        return _softmax(z, steps * G, dim).div_(steps)
    z_, t = z.double(), steps.double()
    return (function(z_) - function(z_ - t * G)).div_(t).to(z.dtype)


def _relu(z: Tensor, G: Tensor, inverse: Tensor) -> Tensor:
    # min(G, z/t) where z >= 0, and min(G - z/t, 0) below
    scaled = z * inverse
    return scaled.clamp(max=0.0).neg_().add_(G).clamp_(max=scaled.clamp_(min=0.0))


def _leaky_relu(activation: LeakyReLU, z: Tensor, G: Tensor, inverse: Tensor) -> Tensor:
    # σ(z) = s z + (1 - s) max(z, 0)
    return _relu(z, G, inverse).mul_(1.0 - activation.slope).add_(G, alpha=activation.slope)


def _clipped(z: Tensor, G: Tensor, inverse: Tensor, low: float, high: float) -> Tensor:
    """Of the projection x of z onto [low, high]: G - (z - x)/t, limited to [(x - high)/t, (x - low)/t]."""
    x = z.clamp(low, high)
    return (G - (z - x).mul_(inverse)).clamp_(min=(x - high).mul_(inverse), max=(x - low).mul_(inverse))


def _box(activation: Box, z: Tensor, G: Tensor, inverse: Tensor) -> Tensor:
    return _clipped(z, G, inverse, activation.low, activation.high)


def _soft_threshold(activation: SoftThreshold, z: Tensor, G: Tensor, inverse: Tensor) -> Tensor:
    # σ(z) = z - (the projection of z onto [-threshold, threshold])
    return G - _clipped(z, G, inverse, -activation.threshold, activation.threshold)


def _softmax(z: Tensor, d: Tensor, dim: int) -> Tensor:
    """softmax(z) - softmax(z - d): x_j (M - m_j)/(1 + M) with x = σ(z), m_j = e^{s - d_j} - 1 and M = Σ x_k m_k, for any s.

    s = Σ x_k d_k makes M >= 0 (Jensen), so that nothing cancels in 1 + M.
    """
    x = torch.softmax(z, dim)
    s = (x * d).sum(dim, keepdim=True)
    m = torch.expm1((s - d).clamp(max=_LARGEST_EXPONENT))
    M = (x * m).sum(dim, keepdim=True)
    return x * (M - m) / (1.0 + M)


_CLOSED: dict[type[Activation], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    ReLU: lambda activation, z, G, inverse: _relu(z, G, inverse),
    NonNegativeSoftThreshold: lambda activation, z, G, inverse: _relu(z - activation.threshold, G, inverse),
    LeakyReLU: _leaky_relu,
    Box: _box,
    SoftThreshold: _soft_threshold,
}
