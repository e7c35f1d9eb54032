"""Linear systems with M = c AᵀA + diag(d), factorised once on the smaller side of A."""

from __future__ import annotations

import torch
from torch import Tensor

from lifted_bregman.maps import Dense

_FLOOR = {torch.float32: (1e-6, 3e-4), torch.float64: (1e-12, 1e-8)}  # for m >= n and m < n
_ATTEMPTS = 8


class Ridge:
    """G ↦ G M⁻¹ for rows G, with M = c AᵀA + diag(d), A of shape (m, n), c > 0 and d >= 0.

        m >= n   a Cholesky factor of M itself, n x n
        m < n    M⁻¹ = D⁻¹ - D⁻¹ Aᵀ (I/c + A D⁻¹ Aᵀ)⁻¹ A D⁻¹, a Cholesky factor of m x m

    Entries of d below a small multiple of M's largest diagonal entry (float64: 1e-12 for m >= n, and 1e-8, the square
    root of the rounding, for m < n, where digits cancel) are raised to it, so that M is definite for any A.  Use it
    where the system is that of a step, Θ ← Θ - ∇M⁻¹: there a larger M is a proximal term towards the last iterate,
    which slows down directions that A hardly sees and leaves the fixed point as it is.
    """

    def __init__(self, A: Tensor, weight: float, diagonal: Tensor) -> None:
        self._wide = len(A) < A.shape[1]
        scale = weight * float(torch.linalg.vector_norm(A, dim=0).max()) ** 2
        floor = _FLOOR[A.dtype][self._wide] * scale or 1.0
        for _ in range(_ATTEMPTS):
            self._D = diagonal.clamp(min=floor)
            if self._wide:
                self._A, self._AD = A, A / self._D
                K = (self._AD @ A.t()).double()
                K.diagonal().add_(1.0 / weight)
            else:
                K = (A.t() @ A).double().mul_(weight)
                K.diagonal().add_(self._D)
            factor, info = torch.linalg.cholesky_ex(K)
            if int(info) == 0:
                break
            floor *= 100.0  # rounding of AᵀA exceeded it
        self._factor = factor.to(A.dtype)

    def solve(self, G: Tensor) -> Tensor:
        """G M⁻¹, for G of shape (k, n), in new memory."""
        if not self._wide:
            return torch.cholesky_solve(G.t(), self._factor).t()
        P = G / self._D
        inner = torch.cholesky_solve((P @ self._A.t()).t(), self._factor).t()
        return P.addmm_(inner, self._AD, alpha=-1.0)


def rows(f: Dense, x: Tensor) -> Tensor:
    """The inputs of a dense map as rows (m, in)."""
    return x.flatten(1) if f.flatten else x.reshape(-1, x.shape[-1])


def design(f: Dense, x: Tensor) -> Tensor:
    """[X 1], or the part of it that belongs to trained parameters: z = [X 1] Θᵀ + (what is frozen)."""
    x, trained = rows(f, x), f.parameters
    parts = [x] if "weight" in trained else []
    if "bias" in trained:
        parts.append(x.new_ones(len(x), 1))
    return torch.cat(parts, 1)


def packed(f: Dense) -> Tensor:
    """Θ = [W b] as one matrix (out, n) in the order of `design`, in new memory."""
    return torch.cat([p.detach().view(len(p), -1) for p in _ordered(f).values()], 1)


def unpacked(f: Dense, theta: Tensor) -> dict[str, Tensor]:
    """Views of a packed matrix by name, in the shapes of the parameters."""
    views, start = {}, 0
    for name, p in _ordered(f).items():
        width = p.numel() // len(p)
        part = theta[:, start : start + width]
        views[name] = part[:, 0] if p.ndim == 1 else part
        start += width
    return views


def weight_columns(f: Dense, like: Tensor) -> Tensor:
    """1 for the columns of `design` that belong to the weight, 0 for the bias."""
    sizes = [(p.numel() // len(p), 1.0 if p.ndim > 1 else 0.0) for p in _ordered(f).values()]
    return torch.cat([like.new_full((width,), value) for width, value in sizes])


def _ordered(f: Dense) -> dict[str, Tensor]:
    trained = f.parameters
    return {name: trained[name] for name in ("weight", "bias") if name in trained}
