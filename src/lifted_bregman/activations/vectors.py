"""Activations that rescale a whole vector: group soft threshold and projection onto a ball."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman.activations.base import Joint

_TINY = torch.finfo(torch.float64).tiny
_FAR = 1e100  # squares of norms below it do not overflow float64


def _plain_norm(x: Tensor, accumulate: torch.dtype = torch.float64) -> Tensor:
    """‖x‖₂ over the last dimension in float64, with the dimension kept; infinite where the squares overflow."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=accumulate)
    return norm.double()


def _norm(x: Tensor, accumulate: torch.dtype = torch.float64) -> Tensor:
    """`_plain_norm`, finite also where the squares overflow."""
    norm = _plain_norm(x, accumulate)
    if bool(norm.isinf().any()):
        size = x.detach().double().abs().amax(-1, keepdim=True)
        size = torch.where(norm.isinf() & size.isfinite(), size, 1.0)
        norm = size * _plain_norm(x.double() / size)
    return norm


def _pairwise_norm(x: Tensor) -> Tensor:
    """`_norm` in x's own precision.  Its rounding grows like log n: `sum` adds in pairs, and `vector_norm` does not."""
    squares = x.square().sum(-1, keepdim=True).double()
    if not bool(squares.isfinite().all()):
        return _norm(x)
    return squares.clamp(min=_TINY).sqrt()


def _sum_of_squares(x: Tensor) -> tuple[Tensor, Tensor]:
    """‖x‖² over the last dimension as high + low, with twice the digits of float64."""
    shifted = x * 134217729.0  # 2^27 + 1: Dekker's splitting
    head = shifted - (shifted - x)
    tail = x - head
    high = x * x
    low = ((head * head - high) + 2.0 * head * tail) + tail * tail
    while high.shape[-1] > 1:
        if high.shape[-1] % 2:
            high, low = torch.nn.functional.pad(high, (0, 1)), torch.nn.functional.pad(low, (0, 1))
        a, b = high[..., ::2], high[..., 1::2]
        high = a + b
        back = high - a
        low = low[..., ::2] + low[..., 1::2] + ((a - (high - back)) + (b - back))
    return high, low


@dataclass(frozen=True)
class GroupSoftThreshold(Joint):
    """σ(z) = z max(1 - threshold/‖z‖₂, 0), the vector z = the last dimension: Ψ(x) = threshold ‖x‖₂.

    φ*(z) = ½ max(‖z‖ - threshold, 0)².  The threshold is not scaled by the square root of the group's size.

    Example:
        >>> act = lb.activations.GroupSoftThreshold(threshold=1.0)
        >>> act(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        tensor([[2.4000, 3.2000],
                [0.0000, 0.0000]])
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        positive(self.threshold, "threshold")

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        # with t = threshold·scale, 1 - t/‖z‖ = (‖z‖² - t²) / (‖z‖ (‖z‖ + t)), which keeps its digits near the kink
        t = self.threshold * scale
        norm = self._norm_near_kink(z, t)
        if t >= _FAR or bool((norm >= _FAR).any()):
            return z * (1.0 - t / norm.clamp(min=_TINY)).clamp(min=0.0).to(z.dtype)
        exact = (Fraction(self.threshold) * Fraction(scale)) ** 2
        high, low = _sum_of_squares(z) if z.dtype == torch.float64 else (norm.square(), 0.0)
        difference = (high - float(exact)) + (low - float(exact - Fraction(float(exact))))
        factor = difference.clamp(min=0.0) / (norm * (norm + t)).clamp(min=_TINY)
        return z * factor.to(z.dtype)

    def _norm_near_kink(self, z: Tensor, kink: float) -> Tensor:
        """‖z‖₂ in float64; accumulated in float64 where it is close to the kink, else in z's own precision."""
        norm = _norm(z, z.dtype)
        near = ((norm - kink).abs() < 0.25 * norm).squeeze(-1)
        if z.dtype == torch.float32 and bool(near.any()):
            norm = norm.clone()
            norm[near] = _norm(z[near])
        return norm

    def compute_potential(self, x: Tensor) -> Tensor:
        return torch.where(self.compute_contains(x), self.threshold * _norm(x).squeeze(-1), math.inf).to(x.dtype)

    def compute_conjugate(self, z: Tensor) -> Tensor:
        return (0.5 * (_norm(z) - self.threshold).clamp(min=0.0).square()).squeeze(-1).to(z.dtype)

    def compute_contains(self, x: Tensor) -> Tensor:
        return x.isfinite().all(-1)

    def compute_bregman(self, x: Tensor, z: Tensor) -> Tensor:
        # D_Ψ = threshold ‖x‖ - <p, x> with p = z - σ(z), ‖p‖ <= threshold; for parallel x and p it is 0 up to rounding
        x_, z_ = x.double(), z.double()
        u = self.compute_prox(z_, 1.0)
        divergence = self.threshold * _norm(x_).squeeze(-1) - ((z_ - u) * x_).sum(-1)
        value = 0.5 * (x_ - u).square().sum(-1) + divergence.clamp(min=0.0)
        value = torch.where((x == self.compute_map(z)).all(-1), 0.0, value)
        return torch.where(self.compute_contains(x), value, math.inf).to(x.dtype)


@dataclass(frozen=True)
class BallProjection(Joint):
    """σ(z) = z min(1, radius/‖z‖₂): Ψ is the indicator of the ball ‖x‖₂ <= radius.

    φ*(z) = ½‖z‖² inside the ball, radius ‖z‖ - ½ radius² outside.

    Example:
        >>> act = lb.activations.BallProjection(radius=1.0)
        >>> act(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        positive(self.radius, "radius")

    def compute_map(self, z: Tensor) -> Tensor:
        factor = self.radius / _pairwise_norm(z).clamp(min=self.radius)
        if bool((factor < torch.finfo(z.dtype).tiny).any()):  # it would lose its digits
            return (z.double() * factor).to(z.dtype)
        return z * factor.to(z.dtype)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return self.compute_map(z)  # a projection: the scale of an indicator is immaterial

    def compute_potential(self, x: Tensor) -> Tensor:
        return torch.where(self.compute_contains(x), 0.0, math.inf).to(x.dtype)

    def compute_conjugate(self, z: Tensor) -> Tensor:
        norm = _norm(z)
        inside = norm.clamp(max=self.radius)
        return (inside * (norm - 0.5 * inside)).squeeze(-1).to(z.dtype)

    def compute_contains(self, x: Tensor) -> Tensor:
        # Rounding of the projection itself, eps/2 for each operation: the root of squares added in pairs is off by
        # (1 + log2 n) eps/4, the factor and its product by eps.  The bound is more than twice that: torch adds in runs.
        rounding = (4.0 + 0.5 * math.log2(max(x.shape[-1], 1))) * torch.finfo(x.dtype).eps
        norm = _norm(x) if x.dtype == torch.float32 else _pairwise_norm(x)
        return (norm <= self.radius * (1.0 + rounding)).squeeze(-1)

    def compute_bregman(self, x: Tensor, z: Tensor) -> Tensor:
        # D_Ψ = <σ(z) - x, z - σ(z)> = (‖z‖ - r)(r - <x, z>/‖z‖) outside the ball, 0 inside
        x_, z_ = x.double(), z.double()
        norm = _norm(z_)
        beyond = (norm - self.radius).clamp(min=0.0)
        cosine_part = self.radius - (x_ * (z_ / norm.clamp(min=self.radius))).sum(-1, keepdim=True)
        u = self.compute_map(z)
        value = 0.5 * (x_ - u).square().sum(-1) + (beyond * cosine_part.clamp(min=0.0)).squeeze(-1)
        value = torch.where((x == u).all(-1), 0.0, value)
        return torch.where(self.compute_contains(x), value, math.inf).to(x.dtype)
