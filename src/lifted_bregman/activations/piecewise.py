"""Piecewise linear activations.  Every quantity is in closed form, without cancellation.

For each, D_Ψ(x, σ(z)) with the subgradient z - σ(z) is written as a sum of non-negative terms, so that the Bregman loss
½(x - σ(z))² + D_Ψ (Theorem 10, item 3) keeps full relative accuracy however close x is to σ(z).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman.activations.base import Separable
from lifted_bregman.errors import SettingError


class _Piecewise(Separable):
    """Shared evaluation of the Bregman loss: ½(x - u)² + D_Ψ(x, u) with u = σ(z)."""

    def _bregman_terms(self, x: Tensor, z: Tensor) -> Tensor:
        u = self.compute_map(z)
        terms = (x - u).square_().mul_(0.5).add_(self._divergence(x, z, u))
        return torch.where(self._inside(x), terms, math.inf)

    def _divergence(self, x: Tensor, z: Tensor, u: Tensor) -> Tensor:
        """D_Ψ(x, u) with subgradient z - u, for x in the domain: >= 0, and 0 at x = u."""
        raise AssertionError  # pragma: no cover


@dataclass(frozen=True)
class Identity(_Piecewise):
    """σ(z) = z: Ψ = 0.  Its Bregman loss is ½‖x - z‖².

    Example:
        >>> act = lb.activations.Identity()
        >>> act.bregman(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]))
        tensor(12.5000)
    """

    def compute_map(self, z: Tensor) -> Tensor:
        return z.clone()

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return z.clone()

    def _psi(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def _phi_star(self, z: Tensor) -> Tensor:
        return 0.5 * z.square()

    def _divergence(self, x: Tensor, z: Tensor, u: Tensor) -> Tensor:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class ReLU(_Piecewise):
    """σ(z) = max(z, 0): Ψ is the indicator of x >= 0 (Example 1).

    B(x, z) = ½(x - max(z, 0))² + x max(-z, 0).

    Example:
        >>> act = lb.activations.ReLU()
        >>> act(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
        >>> act.bregman(torch.tensor([1.0]), torch.tensor([-2.0]))
        tensor(2.5000)
        >>> act.contains(torch.tensor([-1.0]))
        tensor(False)
    """

    def compute_map(self, z: Tensor) -> Tensor:
        return z.relu()

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return z.relu()  # a projection: the scale of an indicator is immaterial

    def _psi(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def _phi_star(self, z: Tensor) -> Tensor:
        return 0.5 * z.relu().square()

    def _inside(self, x: Tensor) -> Tensor:
        return (x >= 0) & x.isfinite()

    def _divergence(self, x: Tensor, z: Tensor, u: Tensor) -> Tensor:
        return x * (-z).relu_()


@dataclass(frozen=True)
class LeakyReLU(_Piecewise):
    """σ(z) = z for z >= 0 and slope·z below, 0 < slope <= 1: Ψ(x) = ½ (1/slope - 1) min(x, 0)².

    Example:
        >>> act = lb.activations.LeakyReLU(slope=0.5)
        >>> act(torch.tensor([-2.0, 3.0]))
        tensor([-1.,  3.])
        >>> act.potential(torch.tensor([-1.0]))
        tensor(0.5000)
    """

    slope: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < positive(self.slope, "slope") <= 1.0:
            raise SettingError(
                f"slope is {self.slope!r}; a leaky ReLU is a proximal map only for a slope in (0, 1]: above 1 it is "
                "not 1-Lipschitz.  Use ReLU() for slope 0."
            )

    @property
    def _excess(self) -> float:
        return (1.0 - self.slope) / self.slope

    def compute_map(self, z: Tensor) -> Tensor:
        return F.leaky_relu(z, self.slope)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return F.leaky_relu(z, 1.0 / (1.0 + scale * self._excess))

    def _psi(self, x: Tensor) -> Tensor:
        return 0.5 * self._excess * x.clamp(max=0.0).square()

    def _phi_star(self, z: Tensor) -> Tensor:
        return 0.5 * z * self.compute_map(z)

    def _divergence(self, x: Tensor, z: Tensor, u: Tensor) -> Tensor:
        # Ψ is ½ k min(x, 0)², so D is ½ k (min(x, 0) - min(u, 0))², plus -k u x where u < 0 < x
        below_x, below_u = x.clamp(max=0.0), u.clamp(max=0.0)
        return self._excess * (0.5 * (below_x - below_u).square() - below_u * x.clamp(min=0.0))


@dataclass(frozen=True)
class Box(_Piecewise):
    """σ(z) = min(max(z, low), high): Ψ is the indicator of [low, high].

    The default is the hard tanh; `Box(0, 6)` is ReLU6.  B(x, z) = ½(x - σ(z))² + |z - σ(z)| |x - σ(z)|.

    Example:
        >>> act = lb.activations.Box(0.0, 6.0)
        >>> act(torch.tensor([-1.0, 2.0, 7.0]))
        tensor([0., 2., 6.])
        >>> act.bregman(torch.tensor([1.0]), torch.tensor([-2.0]))
        tensor(2.5000)
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise SettingError(
                f"low is {self.low!r} and high is {self.high!r}; a box needs two finite numbers with low < high "
                "(use ReLU() for [0, ∞))."
            )

    def compute_map(self, z: Tensor) -> Tensor:
        return z.clamp(self.low, self.high)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return z.clamp(self.low, self.high)

    def _psi(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def _phi_star(self, z: Tensor) -> Tensor:
        u = self.compute_map(z)
        return u * (z - 0.5 * u)

    def _inside(self, x: Tensor) -> Tensor:
        return x == self.compute_map(x)  # the ends are those of the working precision

    def _divergence(self, x: Tensor, z: Tensor, u: Tensor) -> Tensor:
        return ((z - u) * (x - u)).abs_()


@dataclass(frozen=True)
class SoftThreshold(_Piecewise):
    """σ(z) = sign(z) max(|z| - threshold, 0): Ψ(x) = threshold |x| (Example 1).

    B(x, z) = ½(x - σ(z))² + threshold |x| - p x with p = min(max(z, -threshold), threshold).

    Example:
        >>> act = lb.activations.SoftThreshold(0.5)
        >>> act(torch.tensor([-2.0, 0.3, 1.0]))
        tensor([-1.5000,  0.0000,  0.5000])
        >>> act.potential(torch.tensor([-2.0, 1.0]))
        tensor(1.5000)
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        positive(self.threshold, "threshold")

    def compute_map(self, z: Tensor) -> Tensor:
        return self.compute_prox(z, 1.0)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return shrink(z, self.threshold, scale)

    def _psi(self, x: Tensor) -> Tensor:
        return self.threshold * x.abs()

    def _phi_star(self, z: Tensor) -> Tensor:
        return 0.5 * self.compute_map(z).square()

    def _divergence(self, x: Tensor, z: Tensor, u: Tensor) -> Tensor:
        subgradient = z.clamp(-self.threshold, self.threshold)
        return x.abs() * (self.threshold - x.sign() * subgradient)


@dataclass(frozen=True)
class NonNegativeSoftThreshold(_Piecewise):
    """σ(z) = max(z - threshold, 0): Ψ(x) = threshold·x for x >= 0, infinite below.

    B(x, z) = ½(x - σ(z))² + x max(threshold - z, 0).

    Example:
        >>> act = lb.activations.NonNegativeSoftThreshold(0.5)
        >>> act(torch.tensor([-2.0, 0.3, 1.0]))
        tensor([0.0000, 0.0000, 0.5000])
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        positive(self.threshold, "threshold")

    def compute_map(self, z: Tensor) -> Tensor:
        return self.compute_prox(z, 1.0)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return shrink(z, self.threshold, scale).relu_()

    def _psi(self, x: Tensor) -> Tensor:
        return self.threshold * x

    def _phi_star(self, z: Tensor) -> Tensor:
        return 0.5 * self.compute_map(z).square()

    def _inside(self, x: Tensor) -> Tensor:
        return (x >= 0) & x.isfinite()

    def _divergence(self, x: Tensor, z: Tensor, u: Tensor) -> Tensor:
        return x * (self.threshold - z).relu_()


def shrink(z: Tensor, threshold: float, scale: float) -> Tensor:
    """The soft threshold of z at the exact product t = threshold·scale, to the last digit even where |z| is close to t.

    t is split into three numbers of z's dtype, the first rounded down.  |z| minus the first is exact near the kink, and
    subtracting the rest keeps every digit of a small result: in float32 with a threshold of 0.09 the naive difference
    has an absolute error of 7e-9, however small the result is.
    """
    coarse, middle, fine = _split(threshold, scale, z.dtype)
    u = F.softshrink(z, coarse)
    if middle != 0.0:
        sign = u.sign()
        u.sub_(sign, alpha=middle).sub_(sign, alpha=fine)
    return u


@lru_cache(maxsize=256)
def _split(threshold: float, scale: float, dtype: torch.dtype) -> tuple[float, float, float]:
    """threshold·scale as a sum of three numbers; cached, because each step of a network needs the same few."""
    exact = Fraction(threshold) * Fraction(scale)
    if exact > (largest := torch.finfo(dtype).max):  # then it is above every number, as the largest is
        return largest, 0.0, 0.0
    coarse = _round_down(exact, dtype)
    middle = _round_down(exact - Fraction(coarse), dtype)
    return coarse, middle, float(exact - Fraction(coarse) - Fraction(middle))


def _round_down(value: Fraction, dtype: torch.dtype) -> float:
    rounded = torch.tensor(float(value), dtype=dtype)
    if Fraction(float(rounded)) > value:
        rounded = torch.nextafter(rounded, torch.zeros_like(rounded))
    return float(rounded)
