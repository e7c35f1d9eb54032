"""Activations onto the probability simplex, which couple the last dimension: softmax and sparsemax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman.activations.base import Joint

JOINT_LIMIT = 12
"""Newton iterations on all components and the multiplier of softmax's proximal map at once, before the safeguard."""
MULTIPLIER_LIMIT = 40
"""Newton iterations on the multiplier in the safeguarded solve; each solves every component by Newton's method."""
COMPONENT_LIMIT = 40
"""Newton iterations on a component in the safeguarded solve."""


_MASKED = -1e30
"""Takes the place of -inf, a masked component, in equations; its exponential is 0 too."""


class _Simplex(Joint):
    """Shared: the domain is the probability simplex."""

    def compute_contains(self, x: Tensor) -> Tensor:
        # rounding n numbers to the working precision moves their sum by at most half a unit each
        slack = 4.0 * torch.finfo(x.dtype).eps * math.sqrt(x.shape[-1])
        return (x >= 0.0).all(-1) & ((x.sum(-1, dtype=torch.float64) - 1.0).abs() <= slack)


@dataclass(frozen=True)
class Softmax(_Simplex):
    """σ(z)_j = e^{z_j} / Σ_k e^{z_k}: Ψ(x) = Σ x_j log x_j - ½ x_j² on the simplex (Example 1); φ* = log-sum-exp.

    B(x, z) = Σ x_j (log x_j - z_j) + log Σ e^{z_j}, the Kullback-Leibler divergence of x from softmax(z).  Components
    z_j = -inf, as masks of attention have them, are left out: σ(z)_j = 0 there, and B is infinite for x_j > 0.

    prox_{cΨ}(v): Fermat's rule with a multiplier ν for Σ u = 1 is (1 - c) u_j + c log u_j = v_j - ν.  With y = log u,
    a = (1 - c)/c, e = (v - max v)/c and m = (ν - max v)/c this is

        y_j + a e^{y_j} = e_j - m,    Σ e^{y_j} = 1,    y <= 0,    m >= -a.

    For c > 1, a is near -1 and both sides are shifted by a: e^y - 1 keeps the digits that y + a e^y loses near y = 0.

    Example:
        >>> act = lb.activations.Softmax()
        >>> act(torch.tensor([[0.0, 0.0], [-torch.inf, 5.0]]))
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]])
        >>> act.bregman(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
        tensor([0.6931])
    """

    iterative: ClassVar[bool] = True

    def compute_map(self, z: Tensor) -> Tensor:
        return z.softmax(-1)

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        a = (1.0 - scale) / scale
        # float32 holds log u, and a u beside it, to 1e-6 only for moderate scales and dimensions
        v = z if 0.05 <= scale <= 100.0 and z.shape[-1] <= 1024 else z.double()
        e = (v - v.amax(-1, keepdim=True)).div_(scale).nan_to_num_(nan=math.nan, neginf=_MASKED)
        u, settled = _softmax_prox_joint(e, a)
        if not bool(settled.all()):
            u[~settled] = _softmax_prox_nested(e[~settled].double(), a).to(u.dtype)
        return u.to(z.dtype)

    def compute_potential(self, x: Tensor) -> Tensor:
        y = x.double()
        value = torch.special.xlogy(y, y).sum(-1) - 0.5 * y.square().sum(-1)
        return torch.where(self.compute_contains(x), value, math.inf).to(x.dtype)

    def compute_conjugate(self, z: Tensor) -> Tensor:
        return z.logsumexp(-1)

    def compute_bregman(self, x: Tensor, z: Tensor) -> Tensor:
        x_, z_ = x.double(), z.double()
        product = torch.where(x_ == 0.0, 0.0, x_ * z_.log_softmax(-1))  # 0 also where z is -inf, a masked place
        divergence = (torch.special.xlogy(x_, x_) - product).sum(-1)
        u = self.compute_map(z)
        half_square = 0.5 * (x_ - u).square().sum(-1)
        value = torch.where((x == u).all(-1), 0.0, torch.maximum(divergence, half_square))
        return torch.where(self.compute_contains(x), value, math.inf).to(x.dtype)


def _softmax_prox_joint(e: Tensor, a: float) -> tuple[Tensor, Tensor]:
    """u by Newton's method on (y, m) at once, and which samples have converged.

    Each iteration linearises y + a e^y and log Σ e^y and eliminates the multiplier m.  It converges in 3 to 6
    iterations unless c is tiny.
    """
    last_step = 1e-4 if e.dtype == torch.float32 else 1e-10  # the error left is about its square
    y = (e / (1.0 + max(a, 0.0))).log_softmax(-1)
    for _ in range(JOINT_LIMIT):
        # Residual and slope of each component equation
        u = y.exp()
        slope = torch.mul(u, a).add_(1.0)
        residual = torch.sub(e, y).sub_(u if a > 0.0 else torch.expm1(y), alpha=a)
        # m from the linearised constraint log Σ e^y = 0, then the Newton step in y
        weight = u / slope
        total, top = u.sum(-1, keepdim=True), u.amax(-1)
        m = (torch.linalg.vecdot(weight, residual).unsqueeze(-1) + total * total.log()) / weight.sum(-1, keepdim=True)
        move = residual.sub_(m).div_(slope)
        y.add_(move).clamp_(max=0.0)
        change = move.mul_(u).abs_().amax(-1) / top
        if bool((change <= last_step).all()):
            break
    u = y.exp_()
    total = u.sum(-1, keepdim=True)
    settled = (change <= last_step) & ((total - 1.0).abs() <= last_step).squeeze(-1)
    return u.div_(total), settled


def _softmax_prox_nested(e: Tensor, a: float) -> Tensor:
    """The safeguarded solve: m by Newton's method on Σ e^{y(m)} = 1, y(m) by Newton's method on every component.

    Σ e^{y(m)} - 1 is convex and decreasing in m, and non-negative at m = -a: the iteration is monotone.  y + a e^y is
    convex for a > 0 and concave for a < 0 (on y <= 0), and starts from an upper, respectively lower, bound of y.
    """
    shift, exponential = (a, torch.exp) if a > 0.0 else (0.0, torch.expm1)
    m = torch.full_like(e[..., :1], -shift)
    eps = torch.finfo(e.dtype).eps
    for _ in range(MULTIPLIER_LIMIT):
        # y(m) by Newton's method, from a bound
        t = e - m
        bounds = (t - shift) / (1.0 + a), t - shift + a
        y = torch.minimum(*bounds) if a > 0.0 else torch.maximum(*bounds)
        for _ in range(COMPONENT_LIMIT):
            u = y.exp()
            move = (y + a * exponential(y) - t) / (1.0 + a * u)
            y = (y - move).clamp_(max=0.0)
            if float((move.abs() - 1e-9 * y.abs()).max()) <= 0.0:
                break
        # Newton step in m on Σ e^{y(m)} - 1
        u = y.exp()
        excess = u.sum(-1, keepdim=True) - 1.0
        step = excess / (u / (1.0 + a * u)).sum(-1, keepdim=True)
        m = m + step
        if float(excess.abs().max()) <= eps * math.sqrt(e.shape[-1]):
            break
    return u / u.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Sparsemax(_Simplex):
    """σ(z) = the Euclidean projection of z onto the simplex: Ψ is its indicator.

    The projection is max(z - τ, 0) with the threshold τ that makes it sum to 1; Newton's method on that piecewise
    linear convex equation, from τ = max z - 1, is monotone and ends after finitely many steps, at most one per
    component.

    Example:
        >>> act = lb.activations.Sparsemax()
        >>> act(torch.tensor([[0.0, 0.5, 2.0], [0.5, 1.0, 0.0]]))
        tensor([[0.0000, 0.0000, 1.0000],
                [0.2500, 0.7500, 0.0000]])
    """

    def compute_map(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            support = _sparsemax_support(z)
        # written with the support held fixed, so that autograd sees the threshold's own dependence on z
        count = support.sum(-1, keepdim=True)
        shifted = z - z.detach().amax(-1, keepdim=True)
        threshold = ((shifted * support).sum(-1, keepdim=True) - 1.0) / count
        return (shifted - threshold).clamp(min=0.0) * support

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return self.compute_map(z)  # a projection: the scale of an indicator is immaterial

    def compute_potential(self, x: Tensor) -> Tensor:
        return torch.where(self.compute_contains(x), 0.0, math.inf).to(x.dtype)

    def compute_conjugate(self, z: Tensor) -> Tensor:
        u = self.compute_map(z)
        return (u * (z - 0.5 * u)).sum(-1)

    def compute_bregman(self, x: Tensor, z: Tensor) -> Tensor:
        # D_Ψ = <σ(z) - x, z - σ(z)>; z - σ(z) is the threshold τ on the support and z off it; σ(z) and x sum to 1:
        # what is left is Σ x_j (τ - z_j) over the components off the support, all of them >= 0
        u = self.compute_map(z)
        shifted = z - z.amax(-1, keepdim=True)
        threshold = -u.amax(-1, keepdim=True)
        below = torch.where(u > 0.0, 0.0, (threshold - shifted).clamp(min=0.0))
        value = 0.5 * (x - u).square().sum(-1) + (x * below).sum(-1)
        return torch.where(self.compute_contains(x), value, math.inf)


def _sparsemax_support(z: Tensor) -> Tensor:
    """1 where the projection of z onto the simplex is positive, else 0, in z's dtype."""
    shifted = z - z.amax(-1, keepdim=True)
    threshold = torch.full_like(shifted[..., :1], -1.0)
    for _ in range(z.shape[-1]):
        support = (shifted > threshold).to(z.dtype)
        count = support.sum(-1, keepdim=True)
        higher = ((shifted * support).sum(-1, keepdim=True) - 1.0) / count
        if not bool((higher > threshold).any()):
            break
        threshold = torch.maximum(threshold, higher)
    return support
