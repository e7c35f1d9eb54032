"""Smooth odd activations, concave on the right half-line: tanh, arctan, softsign, ISRU, asinh.

Their proximal maps for a scale c other than 1 are not the activation.  With u = σ(s), Fermat's rule (Remark 2) is

    (1 - c) σ(s) + c s = v        for c <= 1,
    σ(s) + c (s - σ(s)) = v       the same, free of cancellation for c > 1,

one monotone equation per number.  By symmetry v >= 0; there σ is concave, so the left side is concave for c < 1 and
convex for c > 1, and Newton's method from a lower, respectively upper, bound of the root converges monotonically.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lifted_bregman.activations._gaps import minus_arctan, minus_log1p, minus_tanh, sinh_minus
from lifted_bregman.activations._newton import newton
from lifted_bregman.activations.base import Separable


def solve_concave(sigmoidal: Concave, w: Tensor, scale: float, precision: torch.dtype) -> Tensor:
    """Solves σ(s) + c (s - σ(s)) = w for s >= 0, elementwise, by Newton's method; returns s in the shape of w.

    The start is a bound of the root: a lower one for c < 1, otherwise an upper one.  It follows from σ(s) <= σ'(0) s,
    σ(s) <= sup σ and, for c > 1, s - σ(s) >= κ s^p on [0, 1].

    sigmoidal  σ
    w          >= 0, float64
    scale      c > 0
    precision  torch.float32 or torch.float64, which sets when Newton's method ends
    """
    # A start from which Newton's method is monotone
    c, slope, supremum = scale, sigmoidal.origin_slope, sigmoidal.supremum
    by_slope = w / (c + (1.0 - c) * slope)
    by_supremum = (w - (1.0 - c) * supremum) / c
    if c < 1.0:
        start = torch.maximum(by_slope, by_supremum)
    else:
        start = torch.minimum(by_slope, by_supremum)
        kappa, power = sigmoidal.gap_bound
        by_power = (w / (c * kappa)).pow_(1.0 / power)
        start = torch.where(by_power < 1.0, torch.minimum(start, by_power), start)
    # (1 - c) σ(s) + c s loses a factor c of the digits, which a float32 result can spare
    exact = c > 1.0 and (precision == torch.float64 or c > 1e6)

    def step(s: Tensor) -> Tensor:
        u, du = sigmoidal.value_and_slope(s)
        residual = u.add_(sigmoidal.gap(s), alpha=c) if exact else u.mul_(1.0 - c).add_(s, alpha=c)
        return residual.sub_(w).div_(du.mul_(1.0 - c).add_(c))

    return newton(step, start, precision)


class Concave(ABC):
    """What `solve_concave` needs of a function σ on s >= 0: concave, increasing, σ(0) = 0, slope at most 1."""

    @property
    @abstractmethod
    def supremum(self) -> float:
        """sup σ."""

    @property
    def origin_slope(self) -> float:
        """σ'(0)."""
        return 1.0

    @property
    @abstractmethod
    def gap_bound(self) -> tuple[float, float]:
        """(κ, p) with s - σ(s) >= κ s^p for 0 <= s <= 1."""

    @abstractmethod
    def value_and_slope(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """σ(s) and σ'(s), in new tensors."""

    @abstractmethod
    def gap(self, s: Tensor) -> Tensor:
        """s - σ(s) without cancellation."""


class _Odd(Separable, Concave):
    """An odd activation that is concave on s >= 0."""

    iterative: ClassVar[bool] = True

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        s = solve_concave(self, z.abs().double(), scale, z.dtype)
        return self.compute_map(s).to(z.dtype).copysign_(z)


@dataclass(frozen=True)
class Tanh(_Odd):
    """σ(z) = tanh z: Ψ(x) = x artanh x + ½ log(1 - x²) - ½ x² on [-1, 1] (Example 1); φ* = log cosh.

    Example:
        >>> act = lb.activations.Tanh()
        >>> act(torch.tensor([-torch.inf, 0.0, torch.inf]))
        tensor([-1.,  0.,  1.])
        >>> act.bregman(torch.tensor([0.5]), torch.tensor([0.0]))
        tensor(0.1308)
    """

    supremum = 1.0
    gap_bound = (0.238, 3.0)  # 1 - tanh 1

    def compute_map(self, z: Tensor) -> Tensor:
        return z.tanh()

    def _psi(self, x: Tensor) -> Tensor:
        y = x.double()
        inner = y * y.atanh() + 0.5 * (-y * y).log1p()
        outer = 0.5 * (torch.special.xlog1py(1.0 + y, y) + torch.special.xlog1py(1.0 - y, -y))
        return (torch.where(y.abs() < 0.5, inner, outer) - 0.5 * y * y).to(x.dtype)

    def _phi_star(self, z: Tensor) -> Tensor:
        far = z.abs() + (-2.0 * z.abs()).exp().log1p() - math.log(2.0)
        return torch.where(z.abs() < 1.0, 0.5 * z.clamp(-1.0, 1.0).sinh().square().log1p(), far)

    def _inside(self, x: Tensor) -> Tensor:
        return x.abs() <= 1.0

    def value_and_slope(self, s: Tensor) -> tuple[Tensor, Tensor]:
        u = s.tanh()
        return u, torch.addcmul(torch.ones_like(u), u, u, value=-1.0)

    def gap(self, s: Tensor) -> Tensor:
        return minus_tanh(s)


@dataclass(frozen=True)
class Arctan(_Odd):
    """σ(z) = arctan z: Ψ(x) = -log cos x - ½ x² on (-π/2, π/2); φ*(z) = z arctan z - ½ log(1 + z²).

    Example:
        >>> act = lb.activations.Arctan()
        >>> act(torch.tensor([-torch.inf, 0.0, 1.0])) / torch.pi
        tensor([-0.5000,  0.0000,  0.2500])
    """

    supremum = math.pi / 2
    gap_bound = (0.214, 3.0)  # 1 - π/4

    def compute_map(self, z: Tensor) -> Tensor:
        end = _largest_below_half_pi(z.dtype)
        return z.atan().clamp_(-end, end)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        end = _largest_below_half_pi(z.dtype)
        return super().compute_prox(z, scale).clamp_(-end, end)

    def _psi(self, x: Tensor) -> Tensor:
        y = x.double()
        near = -0.5 * (-y.sin().square()).log1p()
        return (torch.where(y.abs() < 1.0, near, -y.cos().log()) - 0.5 * y * y).to(x.dtype)

    def _phi_star(self, z: Tensor) -> Tensor:
        y = z.abs()
        log_root = torch.where(y < 1e8, 0.5 * y.clamp(max=1e8).square().log1p(), y.log())
        return y * y.atan() - log_root

    def _inside(self, x: Tensor) -> Tensor:
        return x.abs() <= _largest_below_half_pi(x.dtype)

    def value_and_slope(self, s: Tensor) -> tuple[Tensor, Tensor]:
        return s.atan(), s.square().add_(1.0).reciprocal_()

    def gap(self, s: Tensor) -> Tensor:
        return minus_arctan(s)


@dataclass(frozen=True)
class ISRU(_Odd):
    """σ(z) = z/√(1 + z²): Ψ(x) = 1 - √(1 - x²) - ½ x² on [-1, 1]; φ*(z) = √(1 + z²) - 1.

    Example:
        >>> act = lb.activations.ISRU()
        >>> act(torch.tensor([-0.75, 0.0, 0.75]))
        tensor([-0.6000,  0.0000,  0.6000])
        >>> act.conjugate(torch.tensor([0.75]))
        tensor(0.2500)
    """

    supremum = 1.0
    gap_bound = (0.292, 3.0)  # 1 - 1/√2

    def compute_map(self, z: Tensor) -> Tensor:
        y = z.clamp(-1e15, 1e15)  # beyond, σ rounds to ±1, and in float32 the square overflows
        return y / y.square().add(1.0).sqrt()

    def _psi(self, x: Tensor) -> Tensor:
        root = ((1.0 - x) * (1.0 + x)).sqrt()
        return 0.5 * (x.square() / (1.0 + root)).square()

    def _phi_star(self, z: Tensor) -> Tensor:
        return z * (z / (1.0 + torch.hypot(z, z.new_ones(()))))

    def _inside(self, x: Tensor) -> Tensor:
        return x.abs() <= 1.0

    def value_and_slope(self, s: Tensor) -> tuple[Tensor, Tensor]:
        inverse_root = s.square().add_(1.0).rsqrt_()
        return s * inverse_root, inverse_root.square().mul_(inverse_root)

    def gap(self, s: Tensor) -> Tensor:
        root = s.square().add_(1.0).sqrt_()
        return s * (s / root) * (s / (1.0 + root))


@dataclass(frozen=True)
class Softsign(Separable):
    """σ(z) = z/(1 + |z|): Ψ(x) = -|x| - log(1 - |x|) - ½ x² on (-1, 1); φ*(z) = |z| - log(1 + |z|).

    prox_{cΨ} solves a quadratic equation: u = 2v / (1 + |v| + √((1 - |v|)² + 4 c |v|)).

    Example:
        >>> act = lb.activations.Softsign()
        >>> act(torch.tensor([-3.0, 0.0, 1.0]))
        tensor([-0.7500,  0.0000,  0.5000])
    """

    def compute_map(self, z: Tensor) -> Tensor:
        end = 1.0 - torch.finfo(z.dtype).eps / 2  # in float32, 2e7/(1 + 2e7) rounds to 1, where Ψ is infinite
        return F.softsign(z).clamp_(-end, end)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        v = z.double().abs()
        root = (1.0 - v).square_().add_(v, alpha=4.0 * scale).sqrt_()
        end = 1.0 - torch.finfo(z.dtype).eps / 2
        return (2.0 * v / (1.0 + v + root)).to(z.dtype).clamp_(max=end).copysign_(z)

    def _psi(self, x: Tensor) -> Tensor:
        y = x.double()
        return (minus_log1p(-y.abs()) - 0.5 * y * y).to(x.dtype)

    def _phi_star(self, z: Tensor) -> Tensor:
        return minus_log1p(z.double().abs()).to(z.dtype)

    def _inside(self, x: Tensor) -> Tensor:
        return x.abs() < 1.0


@dataclass(frozen=True)
class Asinh(Separable):
    """σ(z) = arsinh z: Ψ(x) = cosh x - 1 - ½ x²; φ*(z) = z arsinh z - √(1 + z²) + 1.

    prox_{cΨ} solves u + c (sinh u - u) = v; the left side is convex for v >= 0, so Newton starts from an upper bound.

    Example:
        >>> act = lb.activations.Asinh()
        >>> act(torch.tensor([-0.75, 0.0, 0.75])).exp()
        tensor([0.5000, 1.0000, 2.0000])
    """

    iterative: ClassVar[bool] = True

    def compute_map(self, z: Tensor) -> Tensor:
        return z.asinh()

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        c, w = scale, z.double().abs()
        if c < 1.0:  # u <= w, and sinh u <= w/c
            start = torch.minimum(w, (w * (2.0 / c)).log1p())

            def step(u: Tensor) -> Tensor:
                residual = u.sinh().mul_(c).add_(u, alpha=1.0 - c).sub_(w)
                return residual.div_(u.cosh().mul_(c).add_(1.0 - c))

        else:  # sinh u <= w, and u³/6 <= w/c
            start = torch.minimum((2.0 * w).log1p(), (w * (6.0 / c)).pow_(1.0 / 3.0))

            def step(u: Tensor) -> Tensor:
                residual = sinh_minus(u).mul_(c).add_(u).sub_(w)
                return residual.div_(u.mul(0.5).sinh_().square_().mul_(2.0 * c).add_(1.0))

        return newton(step, start, z.dtype).to(z.dtype).copysign_(z)

    def _psi(self, x: Tensor) -> Tensor:
        half = 0.5 * x.double()
        gap = sinh_minus(half)
        return (2.0 * gap * (gap + 2.0 * half)).to(x.dtype)  # 2 sinh² h - 2 h²

    def _phi_star(self, z: Tensor) -> Tensor:
        u = z.double().asinh()
        return (z * u - 2.0 * (0.5 * u).sinh().square()).to(z.dtype)


@lru_cache
def _largest_below_half_pi(dtype: torch.dtype) -> float:
    """The largest number of `dtype` below π/2.  float64's own π/2 is below it; float32's is above."""
    end = torch.tensor(math.pi / 2, dtype=dtype)
    return float(end if float(end) <= math.pi / 2 else torch.nextafter(end, torch.zeros_like(end)))
