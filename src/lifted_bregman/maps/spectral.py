"""The largest eigenvalue of a positive semi-definite operator: estimates from below, guarantees from above."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Vector = tuple[Tensor, ...]
"""A point of a product space, such as (weight, bias); norms are taken over all its tensors together."""
NormalOperator = Callable[[Vector], Vector]
"""v -> JᵀJ v, whose largest eigenvalue is ‖J‖₂²."""

_EPS = torch.finfo(torch.float64).eps


class PowerIteration:
    """Estimates the largest eigenvalue μ of a positive semi-definite N by v ← Nv / ‖Nv‖.

    The estimate ‖Nv‖ / ‖v‖ never exceeds μ (up to rounding).  The last v is kept, so that the next call, for an N that
    has changed a little, usually needs two products.  The first start is a fixed pseudo-random vector.  An estimate can
    stay below μ when N changes so that the old v is an eigenvector of a smaller eigenvalue: where a step size must be
    safe use a bound from above (`certified_bound`, `positive_bound`).
    """

    def __init__(self) -> None:
        self._vector: Vector | None = None

    def estimate(
        self, normal: NormalOperator, like: Sequence[Tensor], tolerance: float = 1e-4, max_steps: int = 100
    ) -> float:
        """‖Nv‖ / ‖v‖ once its relative change is below `tolerance`; `like` gives shapes, dtype and device of v."""
        v = self._vector
        if v is None or not _compatible(v, like):
            v = _random_vector(like)
        previous = 0.0
        for _ in range(max_steps):
            image = normal(v)
            value = _norm(image)
            if not (math.isfinite(value) and value > 0.0):
                self._vector = None
                return value
            v = tuple(part / value for part in image)
            if abs(value - previous) <= tolerance * value:
                break
            previous = value
        self._vector = v
        return value


def certified_bound(matrix: Tensor, estimate: float) -> float:
    """c >= ‖A‖₂², within a few per cent where `estimate` is good (costs a product A Aᵀ and a Cholesky factorisation).

    Guarantee: K = A Aᵀ (or AᵀA, whichever is smaller) is formed in float64, and c is returned only when c·I - K has a
    Cholesky factor, so that every eigenvalue of K is below c; rounding of the product and of the factorisation, at
    most rows·columns·eps relative to c each, is added to c.  When factors are refused up to min(tr K, ‖K‖_∞), that
    number, which bounds every eigenvalue, is returned itself.
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
    guess = estimate / size / size
    excess = 0.01
    c = guess * (1.0 + excess) * margin
    while 0.0 < c < ceiling:
        shifted = -K
        shifted.diagonal().add_(c / margin)
        if int(torch.linalg.cholesky_ex(shifted).info) == 0:
            return c * size * size
        excess *= 4.0
        c = guess * (1.0 + excess) * margin
    return ceiling * size * size


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


def _norm(vector: Vector) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(part)) for part in vector))


def _random_vector(like: Sequence[Tensor]) -> Vector:
    generator = torch.Generator().manual_seed(20230)
    parts = tuple(
        torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part.device, part.dtype) for part in like
    )
    length = _norm(parts)
    return tuple(part / length for part in parts)


def _compatible(vector: Vector, like: Sequence[Tensor]) -> bool:
    return len(vector) == len(like) and all(
        v.shape == t.shape and v.dtype == t.dtype and v.device == t.device for v, t in zip(vector, like, strict=True)
    )
