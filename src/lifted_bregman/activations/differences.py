"""Difference quotients (σ(z) - σ(z - tG))/t of activations, without cancellation for small t.

In float32 the plain difference of two values near 1 loses a tG below 1e-7, which is the size of signals in early
layers.  Piecewise linear activations and softmax have closed forms here; a piece of slope 1 gives G itself.  Other
activations are evaluated in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.activations.base import Activation
from lifted_bregman.activations.piecewise import (
    Box,
    Identity,
    LeakyReLU,
    NonNegativeSoftThreshold,
    ReLU,
    SoftThreshold,
)
from lifted_bregman.activations.simplex import Softmax

_LARGEST_EXPONENT = {torch.float32: 80.0, torch.float64: 700.0}  # below overflow: shifts of softmax are limited to it


def quotient(
    activation: Activation,
    z: Tensor,
    G: Tensor,
    steps: Tensor,
    *,
    dim: int = -1,
    function: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """(σ(z) - σ(z - tG))/t: the signal that σ passes down in place of σ'(z) G.

    It tends to σ'(z) G for t → 0, and its norm is at most ‖G‖, because σ is 1-Lipschitz.  Called without autograd.

    activation  σ, a joint one along `dim`
    z, G        (samples, ...), float32 or float64, of one dtype
    steps       t > 0, (samples, 1, ..) or (), of that dtype
    function    σ as the model computes it; `activation` by default
    """
    closed = _CLOSED.get(type(activation))
    if closed is not None and not torch._C._are_functorch_transforms_active():  # vmap has no rule for clamp_
        return closed(activation, z, G, steps.reciprocal())
    if type(activation) is Softmax:
        return _softmax(z, steps * G, dim).div_(steps)
    z_, t = z.double(), steps.double()
    sigma = function or (lambda values: _along(activation, values, dim))
    return (sigma(z_) - sigma(z_ - t * G)).div_(t).to(z.dtype)


def _along(activation: Activation, z: Tensor, dim: int) -> Tensor:
    if not activation.joint or dim == -1:
        return activation.compute_map(z)
    return activation.compute_map(z.movedim(dim, -1)).movedim(-1, dim)


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
    """softmax(z) - softmax(z - d).

    It is x_j (M - m_j)/(1 + M) with x = softmax(z), m_j = e^{s - d_j} - 1 and M = Σ x_k m_k, for any s.
    s = Σ x_k d_k makes M >= 0 (Jensen), so that nothing cancels in 1 + M.
    """
    x = torch.softmax(z, dim)
    s = (x * d).sum(dim, keepdim=True)
    m = torch.expm1((s - d).clamp(max=_LARGEST_EXPONENT[z.dtype]))
    M = (x * m).sum(dim, keepdim=True)
    return x * (M - m) / (1.0 + M)


_CLOSED: dict[type[Activation], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    Identity: lambda activation, z, G, inverse: G.clone(),
    ReLU: lambda activation, z, G, inverse: _relu(z, G, inverse),
    NonNegativeSoftThreshold: lambda activation, z, G, inverse: _relu(z - activation.threshold, G, inverse),
    LeakyReLU: _leaky_relu,
    Box: _box,
    SoftThreshold: _soft_threshold,
}
