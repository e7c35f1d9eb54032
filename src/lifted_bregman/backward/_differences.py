"""σ(z) - σ(z - d), with all its digits however small d is.

The plain difference of two values near 1 keeps nothing of a d below 1e-7 in float32, and signals of early layers are
that small.  So straight pieces have closed forms, in which d itself comes out where σ has slope 1, and other
activations are evaluated in float64.
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


def difference(activation: Activation, function: Callable[[Tensor], Tensor], dim: int, z: Tensor, d: Tensor) -> Tensor:
    """σ(z) - σ(z - d), in the dtype of z, float32 or float64.

    activation  what σ is
    function    computes σ, a joint one along `dim`
    """
    closed = _CLOSED.get(type(activation))
    if closed is not None:
        return closed(activation, z, d)
    if type(activation) is Softmax:
        return _softmax(z, d, dim)
    z_ = z.double()
    return (function(z_) - function(z_ - d)).to(z.dtype)


def _relu(activation: ReLU, z: Tensor, d: Tensor) -> Tensor:
    # min(d, z) where z >= 0, and min(d - z, 0) below
    return torch.minimum(d - z.clamp(max=0.0), z.clamp(min=0.0))


def _leaky_relu(activation: LeakyReLU, z: Tensor, d: Tensor) -> Tensor:
    # σ(z) = s z + (1 - s) max(z, 0)
    s = activation.slope
    return s * d + (1.0 - s) * torch.minimum(d - z.clamp(max=0.0), z.clamp(min=0.0))


def _clipped(z: Tensor, d: Tensor, low: float, high: float) -> Tensor:
    """Of the projection x of z onto [low, high]: d - (z - x), limited to [x - high, x - low]."""
    x = z.clamp(low, high)
    return torch.minimum(torch.maximum(d - (z - x), x - high), x - low)


def _box(activation: Box, z: Tensor, d: Tensor) -> Tensor:
    return _clipped(z, d, activation.low, activation.high)


def _soft_threshold(activation: SoftThreshold, z: Tensor, d: Tensor) -> Tensor:
    # σ(z) = z - (the projection of z onto [-threshold, threshold])
    return d - _clipped(z, d, -activation.threshold, activation.threshold)


def _non_negative_soft_threshold(activation: NonNegativeSoftThreshold, z: Tensor, d: Tensor) -> Tensor:
    shifted = z - activation.threshold
    return torch.minimum(d - shifted.clamp(max=0.0), shifted.clamp(min=0.0))


def _softmax(z: Tensor, d: Tensor, dim: int) -> Tensor:
    """x_j (M - m_j)/(1 + M) with x = σ(z), m_j = e^{s - d_j} - 1 and M = Σ x_k m_k, for any s.

    s = Σ x_k d_k makes M >= 0 (Jensen), so that nothing cancels in 1 + M.
    """
    x = torch.softmax(z, dim)
    s = (x * d).sum(dim, keepdim=True)
    m = torch.expm1((s - d).clamp(max=_LARGEST_EXPONENT))
    M = (x * m).sum(dim, keepdim=True)
    return x * (M - m) / (1.0 + M)


_CLOSED: dict[type[Activation], Callable[[Any, Tensor, Tensor], Tensor]] = {
    ReLU: _relu,
    LeakyReLU: _leaky_relu,
    Box: _box,
    SoftThreshold: _soft_threshold,
    NonNegativeSoftThreshold: _non_negative_soft_threshold,
}
