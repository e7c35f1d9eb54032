"""Eigenvalues and singular values: guaranteed bounds from above, functions of them, and least squares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lifted_bregman._linalg.cholesky import Cholesky
from lifted_bregman._linalg.power import NormalOperator

_EPS = torch.finfo(torch.float64).eps


def certified_bound(matrix: Tensor, estimate: float) -> float:
    """c >= ‖A‖₂², within a few per cent where `estimate` is good (costs a product A Aᵀ and a Cholesky factorisation).

    Guarantee: K = A Aᵀ (or AᵀA, whichever is smaller) is formed in float64, and c is returned only when c·I - K has a
    Cholesky factor, so that every eigenvalue of K is below c; rounding of the product and of the factorisation, at
    most rows·columns·eps relative to c each, is added to c.  If no c below min(tr K, ‖K‖_∞) has a factor, that number,
    which bounds every eigenvalue, is returned.
    """
    A = matrix.detach().double()
    size = float(A.abs().max()) if A.numel() else 0.0
    if size == 0.0 or not math.isfinite(size):
        return size * size
    A = A / size  # so that squares neither overflow nor vanish
    rows, columns = A.shape
    K = A @ A.t() if rows <= columns else A.t() @ A
    margin = 1.0 + 4.0 * rows * columns * _EPS
    ceiling = min(float(K.trace()), float(K.abs().sum(0).max())) * margin
    # Try c 1 %, 4 %, 16 %, .. above the estimate until c·I - K is definite
    guess = estimate / size / size
    excess = 0.01
    c = guess * (1.0 + excess) * margin
    while 0.0 < c < ceiling:
        shifted = -K
        shifted.diagonal().add_(c / margin)
        if Cholesky(shifted).definite:
            return c * size * size
        excess *= 4.0
        c = guess * (1.0 + excess) * margin
    return ceiling * size * size


def squared_norm(matrix: Tensor) -> float:
    """c >= ‖A‖₂²: the largest eigenvalue of the smaller of A Aᵀ and AᵀA, for matrices with a short side.

    The product is formed in float64; rounding of it and of the eigenvalue, at most rows·columns·eps each, is added.
    """
    A = _wide(matrix.detach()).double()
    size = float(A.abs().max()) if A.numel() else 0.0
    if size == 0.0 or not math.isfinite(size):
        return size * size
    A = A / size  # so that squares neither overflow nor vanish
    largest = float(torch.linalg.eigvalsh(A @ A.t())[-1])
    return largest * (1.0 + 4.0 * A.numel() * _EPS) * size * size


def positive_bound(normal: NormalOperator, like: Sequence[Tensor], steps: int = 8) -> float:
    """max_i (Nv)_i / v_i >= μ for an operator N without negative entries, in float64.

    Guarantee (Collatz-Wielandt): for such N the inequality holds for every positive v.  v ← Nv improves it; the
    smallest bound met is returned, enlarged by the rounding of N's sums.
    """
    v = tuple(torch.ones_like(part, dtype=torch.float64) for part in like)
    best = math.inf
    count = sum(part.numel() for part in v)
    for _ in range(steps):
        image = normal(v)
        best = min(best, max(float((new / old).max()) for new, old in zip(image, v, strict=True)))
        largest = max(float(part.max()) for part in image)
        if not (math.isfinite(largest) and largest > 0.0):
            break
        # A floor keeps v positive where N has an empty row.
        v = tuple(part / largest + 1e-6 for part in image)
    return best * (1.0 + 4.0 * count * _EPS)


def singular_values(x: Tensor) -> Tensor:
    """σ_1 >= σ_2 >= ... of each matrix of x (..., rows, columns), in float64.

    For float64 the singular value decomposition is computed.  For float32 it is the eigenvalues of the Gram matrix of
    the smaller side, formed in float64: squaring leaves the singular values an error of 1e-8 of the largest, less than
    the matrix itself carries.
    """
    if x.dtype == torch.float64:
        values: Tensor = torch.linalg.svdvals(x)
        return values
    eigenvalues: Tensor = torch.linalg.eigvalsh(_gram(_wide(x)))
    return eigenvalues.clamp(min=0.0).sqrt().flip(-1)


def map_singular_values(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """U diag(f(σ)) Vᵀ for each matrix U diag(σ) Vᵀ of x, in the dtype of x; computed as `singular_values` are.

    function  f, of a tensor of σ in float64 in any order, with f(0) = 0
    """
    if x.dtype == torch.float64:
        U, sigma, Vt = torch.linalg.svd(x, full_matrices=False)
        mapped: Tensor = (U * function(sigma)[..., None, :]) @ Vt
        return mapped
    A = _wide(x)
    eigenvalues, U = torch.linalg.eigh(_gram(A))
    sigma = eigenvalues.clamp(min=0.0).sqrt()
    factor = function(sigma) / sigma.clamp(min=torch.finfo(torch.float64).tiny)
    result: Tensor = ((U * factor[..., None, :]) @ U.mT).to(x.dtype) @ A
    return result if A is x else result.mT.contiguous()


def least_squares(A: Tensor, D: Tensor, ridge: float) -> Tensor:
    """argmin_P ½‖AP - D‖² + (ridge/2)‖P‖², the shortest if there are several, from the smaller of AᵀA and AAᵀ.

    Eigenvalues up to max(m, n) u times the largest are rounding errors of the product and count as 0.

    A      (m, n)
    D      (m, k)
    ridge  >= 0
    """
    wide = A.shape[0] < A.shape[1]
    values, vectors = torch.linalg.eigh(A @ A.t() if wide else A.t() @ A)
    negligible = torch.finfo(A.dtype).eps * max(A.shape) * values[-1]
    inverse = torch.where(values > negligible, 1.0 / (values + ridge), 0.0)
    right = D if wide else A.t() @ D
    solved: Tensor = vectors @ (inverse[:, None] * (vectors.t() @ right))
    return A.t() @ solved if wide else solved


def _wide(x: Tensor) -> Tensor:
    """x or its transpose, with no more rows than columns."""
    return x if x.shape[-2] <= x.shape[-1] else x.mT


def _gram(a: Tensor) -> Tensor:
    b = a.double()
    gram: Tensor = b @ b.mT
    return gram
