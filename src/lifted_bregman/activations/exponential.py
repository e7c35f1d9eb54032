"""Smooth activations defined by exponentials: sigmoid, softplus, ELU.

Sigmoid and softplus have an exponential tail: u = e^s for s → -∞.  In prox_{cΨ} an error of one rounding unit in s ~
v/c would be hundreds of units in u, so in float64 the last Newton step is taken with a compensated residual and applied
to u itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman.activations._gaps import expm1_minus, minus_log1p, polynomial
from lifted_bregman.activations._newton import newton, product_minus
from lifted_bregman.activations.base import Separable
from lifted_bregman.activations.smooth import Concave, solve_concave
from lifted_bregman.errors import SettingError


@dataclass(frozen=True)
class Sigmoid(Separable):
    """σ(z) = 1/(1 + e^{-z}): Ψ(x) = x log x + (1 - x) log(1 - x) - ½ x² on [0, 1]; φ* = softplus.

    prox_{cΨ}: (1 - c) σ(s) + c s = v.  Centred, (1 - c)(σ(s) - ½) + c s = v - (1 - c)/2 is odd in s, and Newton's
    method on |s| converges monotonically as for tanh.

    Example:
        >>> act = lb.activations.Sigmoid()
        >>> z = torch.tensor([0.0])
        >>> act(z), act.prox(z, scale=1.0)
        (tensor([0.5000]), tensor([0.5000]))
        >>> act.conjugate(z)
        tensor(0.6931)
    """

    iterative: ClassVar[bool] = True

    def compute_map(self, z: Tensor) -> Tensor:
        lowest = _LOWEST_EXPONENT[z.dtype]
        # torch's e^{-z} overflows before e^z underflows; the minimum is read on the CPU, where that costs no sync
        if not z.is_cpu or (z.numel() and float(z.detach().amin()) < lowest):
            return torch.where(z < lowest, z.clamp(max=lowest).exp(), z.sigmoid())
        return z.sigmoid()

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        c, v = scale, z.double()
        centred = v - 0.5 * (1.0 - c)
        w = centred.abs()
        by_slope, by_supremum = w / (0.25 * (1.0 - c) + c), (w - 0.5 * (1.0 - c)) / c
        start = torch.maximum(by_slope, by_supremum) if c < 1.0 else torch.minimum(by_slope, by_supremum)
        w.add_(0.5 * (1.0 - c))

        def step(s: Tensor) -> Tensor:
            q = s.sigmoid()
            slope = torch.addcmul(q, q, q, value=-1.0).mul_(1.0 - c).add_(c)
            return q.mul_(1.0 - c).add_(s, alpha=c).sub_(w).div_(slope)

        s = newton(step, start, z.dtype).copysign_(centred)
        u = self.compute_map(s)
        if z.dtype == torch.float64:
            complement = self.compute_map(-s)
            residual = product_minus(c, s, v).add_(u, alpha=1.0 - c)
            slope = (u * complement).mul_(1.0 - c).add_(c)
            u.mul_(1.0 - complement * residual / slope)
        return u.to(z.dtype)

    def _psi(self, x: Tensor) -> Tensor:
        y = x.double()
        entropy: Tensor = torch.special.xlogy(y, y) + torch.special.xlog1py(1.0 - y, -y)
        return (entropy - 0.5 * y * y).to(x.dtype)

    def _phi_star(self, z: Tensor) -> Tensor:
        return softplus(z)

    def _inside(self, x: Tensor) -> Tensor:
        return (x >= 0.0) & (x <= 1.0)


@dataclass(frozen=True)
class Softplus(Separable):
    """σ(z) = log(1 + e^z): Ψ(x) = Li₂(e^{-x}) - π²/6 on x >= 0; φ*(z) = -Li₂(-e^z).

    prox_{cΨ}: since s - σ(s) = -σ(-s), the equation is σ(s) - c σ(-s) = v, convex in s for c < 1 and concave for c > 1;
    min(v, v/c) and max(v, v/c) are the bounds of its root from which Newton's method is monotone.

    Example:
        >>> act = lb.activations.Softplus()
        >>> act(torch.tensor([0.0, 50.0]))
        tensor([ 0.6931, 50.0000])
    """

    iterative: ClassVar[bool] = True

    def compute_map(self, z: Tensor) -> Tensor:
        return softplus(z)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        c, v = scale, z.double()
        start = torch.minimum(v, v / c) if c < 1.0 else torch.maximum(v, v / c)

        def step(s: Tensor) -> Tensor:
            residual = softplus(s)
            if z.dtype == torch.float64 or c > 1e6:
                residual.sub_(softplus(-s), alpha=c)
            else:  # σ(-s) = σ(s) - s loses a factor c of the digits, which a float32 result can spare
                residual.mul_(1.0 - c).add_(s, alpha=c)
            return residual.sub_(v).div_(s.sigmoid().mul_(1.0 - c).add_(c))

        s = newton(step, start, z.dtype, floor=1.0)
        u = softplus(s)
        if z.dtype == torch.float64:
            left = product_minus(c, s, v).add_(u, alpha=1.0 - c)  # the same residual, exact where c s ~ v
            right = (u - v).sub_(softplus(-s), alpha=c)
            slope = s.sigmoid()
            u.sub_(slope * torch.where(s < 0.0, left, right) / (slope * (1.0 - c) + c))
        return u.to(z.dtype)

    def _psi(self, x: Tensor) -> Tensor:
        y = x.double()
        low = y.clamp(1e-320, _LOG2)
        near = low * low.expm1().log() - _dilogarithm_part(low) - 0.5 * low * low
        u = -(-(-y.clamp(min=_LOG2)).exp()).log1p()
        far = u - 0.25 * u * u + _bernoulli_part(u) - _SIXTH_PI_SQUARE
        return torch.where(y <= 0.0, 0.0, torch.where(y <= _LOG2, near, far)).to(x.dtype)

    def _phi_star(self, z: Tensor) -> Tensor:
        y = z.double()
        below = _dilogarithm_part((-y.abs()).exp().log1p())  # φ*(-|z|)
        return torch.where(y <= 0.0, below, _SIXTH_PI_SQUARE + 0.5 * y * y - below).to(z.dtype)

    def _inside(self, x: Tensor) -> Tensor:
        return (x >= 0.0) & x.isfinite()


@dataclass(frozen=True)
class ELU(Separable):
    """σ(z) = z for z >= 0 and α (e^z - 1) below, 0 < α <= 1: φ(x) = (x + α) log(1 + x/α) - x on [-α, 0).

    prox_{cΨ}(v) = v for v >= 0.  For v < 0, with t = -s >= 0, the equation is that of a concave α (1 - e^{-t}).

    Example:
        >>> act = lb.activations.ELU()
        >>> act(torch.tensor([-torch.inf, 0.0, 2.0]))
        tensor([-1.,  0.,  2.])
        >>> act.potential(torch.tensor([2.0]))
        tensor(0.)
    """

    iterative: ClassVar[bool] = True
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < positive(self.alpha, "alpha") <= 1.0:
            raise SettingError(
                f"alpha is {self.alpha!r}; ELU is a proximal map only for alpha in (0, 1]: above 1 its slope exceeds 1."
            )

    def compute_map(self, z: Tensor) -> Tensor:
        return F.elu(z, self.alpha)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        branch = _Saturation(self.alpha)
        t = solve_concave(branch, z.double().clamp(max=0.0).neg_(), scale, z.dtype)
        return torch.where(z > 0.0, z, t.neg_().expm1_().mul_(self.alpha).to(z.dtype))

    def _psi(self, x: Tensor) -> Tensor:
        t = (x.double() / self.alpha).clamp(-1.0, 0.0)
        below = torch.special.xlog1py(t, t) - minus_log1p(t)
        below = torch.where(t <= -1.0, 1.0, below)  # 0 log 0 - (-1)
        return torch.where(x > 0.0, 0.0, self.alpha * below - 0.5 * (self.alpha * t).square()).to(x.dtype)

    def _phi_star(self, z: Tensor) -> Tensor:
        y = z.double()
        return torch.where(y > 0.0, 0.5 * y * y, self.alpha * expm1_minus(y.clamp(max=0.0))).to(z.dtype)

    def _inside(self, x: Tensor) -> Tensor:
        return (x >= _rounded(-self.alpha, x.dtype)) & x.isfinite()


@dataclass(frozen=True)
class _Saturation(Concave):
    """t ↦ α (1 - e^{-t}): the negative side of ELU, reflected."""

    alpha: float
    gap_bound = (0.367, 2.0)  # e^{-1}, for α = 1; a smaller α has a larger gap

    @property
    def supremum(self) -> float:
        return self.alpha

    @property
    def origin_slope(self) -> float:
        return self.alpha

    def value_and_slope(self, s: Tensor) -> tuple[Tensor, Tensor]:
        decay = s.neg().expm1_().mul_(-self.alpha)
        return decay, self.alpha - decay

    def gap(self, s: Tensor) -> Tensor:
        return expm1_minus(-s).mul_(self.alpha).add_(s, alpha=1.0 - self.alpha)


_LOWEST_EXPONENT = {torch.float32: -87.0, torch.float64: -708.0}
_LOG2 = math.log(2.0)
_SIXTH_PI_SQUARE = math.pi**2 / 6.0
# B_{2k} / (2k + 1)! for k = 1..9, with the Bernoulli numbers B_2 = 1/6, B_4 = -1/30, ...
_BERNOULLI = [
    number / math.factorial(2 * k + 1)
    for k, number in enumerate(
        [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798], start=1
    )
]


def softplus(z: Tensor) -> Tensor:
    """log(1 + e^z); torch's own default switches to z at 20, too early for float64."""
    return F.softplus(z, threshold=40.0)


def _bernoulli_part(u: Tensor) -> Tensor:
    """S(u) = Σ B_{2k} u^{2k+1} / (2k + 1)!, for 0 <= u <= log 2."""
    square = u.square()
    return u * square * polynomial(square, _BERNOULLI)


def _dilogarithm_part(x: Tensor) -> Tensor:
    """D(x) = x + x²/4 + S(x) = -Li₂(1 - e^x), for 0 <= x <= log 2."""
    return x + 0.25 * x * x + _bernoulli_part(x)


@lru_cache
def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=dtype))
