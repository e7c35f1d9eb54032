"""Cholesky factors of matrices that rounding may have made indefinite: one factorisation, with a floor and a guard.

A Gram matrix K = AᵀA is semi-definite, and its computed version need not be.  With u the unit of rounding, forming K
from m rows and factorising it for n columns err by E with

    ‖E‖₂ <= c(m, n) u tr K ,

since each entry of |Aᵀ||A| and of |L||Lᵀ| is at most √(K_ii K_jj), and the matrix of these has norm tr K.  The worst
case has c = m + n; errors of either sign mostly cancel, and c of about 10 is taken.  So K + tI usually has a factor for
t >= c u tr K, and each system below raises what it adds to K to such a floor.  Where that is too little, `factorise`
tries a hundred times as much, a few times.

In sample space, K = A Aᵀ, the floor is near √u.  There the step is AᵀP with P = (K + tI)⁻¹G.  The part of G in the
kernel of Aᵀ is divided by t, and cancels only in the product with Aᵀ.  With t = f tr K the floor changes the step by
about f, relatively, and the rounding errors of that part change it by about u/f.  Both are equal for f = √u.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_RAISE = 100.0  # factor by which a floor grows after a failed factorisation
_RIDGE_FLOOR = {torch.float32: (1e-6, 3e-4), torch.float64: (1e-12, 1e-8)}  # of the largest K_ii, for m >= n and m < n
_GUARD_FLOOR = {torch.float32: (1e-6, 3e-5), torch.float64: (2e-15, 1e-8)}  # of tr K, for AᵀA and for A Aᵀ
_NOTHING = 1e-30  # a mean of the diagonal below it counts as 0


class Cholesky:
    """M = LLᵀ for a symmetric matrix M (n, n), or for each of a stack (k, n, n)."""

    def __init__(self, M: Tensor) -> None:
        self.lower, info = torch.linalg.cholesky_ex(M)
        """L, in the dtype of M; meaningless if M is not definite."""
        self.definite = not bool(info.any())
        """Whether every matrix has a factor; False also if entries are not finite."""

    def to(self, dtype: torch.dtype) -> Cholesky:
        """Rounds L to `dtype`, in place."""
        self.lower = self.lower.to(dtype)
        return self

    def solve(self, B: Tensor) -> Tensor:
        """M⁻¹B for B of shape (..., n, k), in new memory."""
        return torch.cholesky_solve(B, self.lower)

    def inverse(self) -> Tensor:
        """M⁻¹."""
        return torch.cholesky_inverse(self.lower)


def factorise(system: Callable[[float], Tensor], floor: float, attempts: int) -> tuple[Cholesky, float]:
    """The factor of M(t), and t: the first of floor, 100·floor, 100²·floor, ... for which M(t) is definite.

    system    t ↦ M(t), which grows with t; called once for each attempt
    floor     > 0
    attempts  at least 1; `definite` of the factor is False where all fail, and t is then the last
    """
    t, factor = floor, Cholesky(system(floor))
    for _ in range(attempts - 1):
        if factor.definite:
            break
        t *= _RAISE
        factor = Cholesky(system(t))
    return factor, t


class Ridge:
    """G ↦ G M⁻¹ for rows G, with M = c AᵀA + diag(d), A of shape (m, n), c > 0 and d >= 0.

        m >= n   a factor of M itself, n x n
        m < n    M⁻¹ = D⁻¹ - D⁻¹ Aᵀ (I/c + A D⁻¹ Aᵀ)⁻¹ A D⁻¹, a factor of m x m

    The floor of d is relative to the largest diagonal entry of c AᵀA.  In float64 it is 1e-12 for m >= n, the worst
    case (m + n)u for a few thousand rows, and 1e-8, near √u, for m < n.  For float32 data AᵀA is formed in float32 and
    factorised in float64; the floors, 1e-6 and 3e-4, are 10u and √u of float32.

    Use it where the system is that of a step, Θ ← Θ - ∇M⁻¹: there a larger M is a proximal term towards the last
    iterate, which slows down directions that A hardly sees and leaves the fixed point as it is.
    """

    def __init__(self, A: Tensor, weight: float, diagonal: Tensor) -> None:
        self._wide = len(A) < A.shape[1]

        def system(floor: float) -> Tensor:
            self._D = diagonal.clamp(min=floor)
            if self._wide:
                self._A, self._AD = A, A / self._D
                K = (self._AD @ A.t()).double()
                K.diagonal().add_(1.0 / weight)
            else:
                K = (A.t() @ A).double().mul_(weight)
                K.diagonal().add_(self._D)
            return K

        scale = weight * float(torch.linalg.vector_norm(A, dim=0).max()) ** 2
        factor, _ = factorise(system, _RIDGE_FLOOR[A.dtype][self._wide] * scale or 1.0, attempts=8)
        self._factor = factor.to(A.dtype)

    def solve(self, G: Tensor) -> Tensor:
        """G M⁻¹ for G of shape (k, n), in new memory."""
        if not self._wide:
            return self._factor.solve(G.t()).t()
        P = G / self._D
        inner = self._factor.solve((P @ self._A.t()).t()).t()
        return P.addmm_(inner, self._AD, alpha=-1.0)


class GuardedFactor:
    """G ↦ (c K + (τ + ε) I)⁻¹ G for K = A Aᵀ (samples) or K = AᵀA, of shape (k, k), c > 0 and τ >= 0.

    ε is 0 unless τ is lost in the rounding of c K.  Then τ + ε is c tr K times 10u (float64: 2e-15), or in sample space
    times 1e-8, near √u (float32: 3e-5, a tenth of √u), and a hundred times more as long as there is no factor.  ε
    belongs to a term (ε/2)‖Θ - Θ_n‖² around the present iterate: the step is shorter, still decreases the objective,
    and has the same fixed points.

    Where K is not finite, or a solution is not, `fallback` is set and the answer is the gradient step with a bound of
    the curvature, G / (c tr K + τ), or 0 where there is no finite one.
    """

    def __init__(self, K: Tensor, weight: float, prox_weight: float, samples: bool = False) -> None:
        trace = float(K.diagonal().sum(dtype=torch.float64))
        self.curvature = weight * trace + prox_weight
        """c tr K + τ, not below the largest eigenvalue."""
        self.fallback = not math.isfinite(self.curvature)
        """Whether a gradient step has replaced the solution of the system."""
        self.added = 0.0
        """ε >= 0."""
        if self.fallback:
            return

        def system(diagonal: float) -> Tensor:
            S = K * weight
            S.diagonal().add_(diagonal)
            return S

        floor = max(prox_weight, _GUARD_FLOOR[K.dtype][samples] * weight * trace) or 1.0
        self._factor, diagonal = factorise(system, floor, attempts=4)
        self.fallback = not self._factor.definite
        if not self.fallback:
            self.added = diagonal - prox_weight

    def solve(self, G: Tensor) -> Tensor:
        """(c K + (τ + ε) I)⁻¹ G for G of shape (k, ...), in new memory."""
        if not self.fallback:
            P = self._factor.solve(G)
            if bool(P.sum().isfinite()) or bool(P.isfinite().all()):
                return P
            self.fallback = True
        return G / self.curvature if 0.0 < self.curvature < math.inf else torch.zeros_like(G)


def damped_inverse(K: Tensor, damping: float) -> tuple[Tensor, Tensor, Tensor]:
    """(K + tI)⁻¹ for each matrix of a stack, with t, and which inverses were replaced by the multiple I/(tr K + t).

    Returns the inverses (k, n, n), t (k, 1, 1) and the replaced ones (k,) as bool.  K (k, n, n) is overwritten.
    No operation waits for the device.  The result for one matrix does not depend on the others, to the last bit.

    t is `damping` times the mean of the diagonal, tr K/n, and at least 100u tr K.  For K = 0 it is 1e30, so that inputs
    that are 0 move nothing.  With this floor a factor exists unless entries are not finite; then the multiple of the
    identity replaces the inverse.

    damping   > 0
    """
    n = K.shape[-1]
    diagonal = K.diagonal(dim1=1, dim2=2)
    mean = diagonal.mean(1, keepdim=True)
    t = mean * max(damping, 100.0 * torch.finfo(K.dtype).eps * n)
    t.masked_fill_(mean < _NOTHING, 1.0 / _NOTHING)
    diagonal.add_(t)
    if K.is_cpu:  # reading `failed` costs no sync here, and LAPACK's inverse takes half the time of two products
        # One matrix at a time: LAPACK's last bits depend on the alignment in memory, which differs within a stack.
        factors = [torch.linalg.cholesky_ex(own) for own in K.unbind()]
        failed = torch.stack([info for _, info in factors]).bool()
        found = zip(factors, failed.tolist(), strict=True)
        inverse = torch.stack([torch.zeros_like(L) if none else torch.cholesky_inverse(L) for (L, _), none in found])
    else:
        # On other devices `cholesky_inverse` syncs to check the diagonal for zeros.
        lower, info = torch.linalg.cholesky_ex(K)
        failed = info.bool()
        inverse = inverse_by_triangle(lower).masked_fill_(failed[:, None, None], 0.0)
    inverse.diagonal(dim1=1, dim2=2).add_(torch.where(failed[:, None], 1.0 / (n * mean + t), 0.0))
    return inverse, t[:, :, None], failed


def inverse_by_triangle(lower: Tensor) -> Tensor:
    """(LLᵀ)⁻¹ = L⁻ᵀL⁻¹ for a stack L (k, n, n), by two products."""
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    R: Tensor = torch.linalg.solve_triangular(lower, identity.expand_as(lower), upper=False)
    return R.mT @ R
