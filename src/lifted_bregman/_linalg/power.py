"""Power iterations: estimates from below of the largest eigenvalue of a positive semi-definite operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lifted_bregman._linalg.norms import joint_norm

Vector = tuple[Tensor, ...]
"""A point of a product space, such as (weight, bias); norms are taken over all its tensors together."""
NormalOperator = Callable[[Vector], Vector]
"""v -> JᵀJ v, whose largest eigenvalue is ‖J‖₂²."""
PowerVectors = dict[str, list[Tensor]]
"""The last vector of each power iteration, by name."""

_TURN = 1e-3  # 1 - cos of the angle by which one product may turn the vector of a `FollowedPower`


class PowerIteration:
    """Estimates the largest eigenvalue μ of a positive semi-definite N by v ← Nv / ‖Nv‖.

    The estimate ‖Nv‖ / ‖v‖ never exceeds μ (up to rounding).  The last v is kept, so that the next call, for an N that
    has changed a little, usually needs two products.  The first start is a fixed pseudo-random vector.  The estimate
    stays below μ if the old v is an eigenvector of a smaller eigenvalue of the new N: for step sizes that must be safe
    use a bound from above (`certified_bound`, `positive_bound`).

    Example:
        >>> from lifted_bregman.maps import PowerIteration
        >>> N = torch.diag(torch.tensor([1.0, 2.0, 5.0]))
        >>> round(PowerIteration().estimate(lambda v: [N @ v[0]], [torch.ones(3)]), 2)
        5.0
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
            value = joint_norm(image)
            if not (math.isfinite(value) and value > 0.0):
                self._vector = None
                return value
            v = tuple(part / value for part in image)
            if abs(value - previous) <= tolerance * value:
                break
            previous = value
        self._vector = v
        return value


class RememberedPower(PowerIteration):
    """A power iteration that starts from `memory[key]` and stores its last vector there."""

    def __init__(self, memory: PowerVectors, key: str) -> None:
        self._memory, self._key = memory, key
        self._vector = tuple(memory[key]) if key in memory else None

    def estimate(
        self, normal: NormalOperator, like: Sequence[Tensor], tolerance: float = 1e-4, max_steps: int = 100
    ) -> float:
        value = super().estimate(normal, like, tolerance, max_steps)
        self._remember()
        return value

    def _remember(self) -> None:
        if self._vector is None:
            self._memory.pop(self._key, None)
        else:
            self._memory[self._key] = list(self._vector)


class FollowedPower(RememberedPower):
    """A remembered power iteration that takes one product if the stored vector is still good.

    For a unit vector v, 1 - cos(v, Nv) = (‖Nv‖ - <v, Nv>)/‖Nv‖ is the relative growth of the estimate in half a step,
    from the Rayleigh quotient to the norm.  The iteration continues while it is above 0.1 %.  Without a stored vector
    it is `PowerIteration.estimate`.
    """

    def estimate(
        self, normal: NormalOperator, like: Sequence[Tensor], tolerance: float = 1e-4, max_steps: int = 100
    ) -> float:
        v = self._vector
        if v is None or not _compatible(v, like):
            return super().estimate(normal, like, tolerance, max_steps)
        value = 0.0
        for _ in range(max_steps):
            image = normal(v)
            length = _length(image)
            value = float(length)
            if not 0.0 < value < math.inf:  # there is no eigenvector of 0, infinity or NaN
                self._vector = None
                break
            growth = value - _product(v, image)
            v = self._vector = tuple([part / length for part in image])
            if growth <= _TURN * value:
                break
        self._remember()
        return value


def _length(v: Vector) -> Tensor:
    """√(Σ ‖v_i‖₂²) over the tensors of v, as a tensor (): dividing by it needs no copy to the host."""
    parts: list[Tensor] = [torch.linalg.vector_norm(part) for part in v]
    if len(parts) > 1:
        parts = [torch.linalg.vector_norm(torch.stack(parts))]
    return parts[0]


def _product(v: Vector, w: Vector) -> float:
    pairs = [(p, q) if p.ndim == 1 else (p.flatten(), q.flatten()) for p, q in zip(v, w, strict=True)]
    return sum([float(torch.dot(p, q)) for p, q in pairs])


def _random_vector(like: Sequence[Tensor]) -> Vector:
    generator = torch.Generator().manual_seed(20230)
    parts = tuple(
        torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part.device, part.dtype) for part in like
    )
    length = joint_norm(parts)
    return tuple(part / length for part in parts)


def _compatible(vector: Vector, like: Sequence[Tensor]) -> bool:
    return len(vector) == len(like) and all(
        v.shape == t.shape and v.dtype == t.dtype and v.device == t.device for v, t in zip(vector, like, strict=True)
    )
