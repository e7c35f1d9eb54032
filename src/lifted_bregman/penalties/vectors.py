"""Penalties R on auxiliary variables and on weights: their value and their proximal map.

prox_{tR}(x) = argmin_u ½‖u - x‖² + t R(u)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._device import SUPPORTED_DTYPES
from lifted_bregman.errors import CompatibilityError, SettingError, TensorError


class Penalty(ABC):
    """A convex function R of a vector, the last dimension of a tensor (..., n), float32 or float64, on any device.

    A subclass is a frozen dataclass with two methods:

    - `compute_value(x)`: R(x), one number per vector; infinity where a constraint is violated;
    - `compute_prox(x, scale)`: prox_{scale·R}(x) for every scale > 0, in the shape and dtype of x.

    These two suffice on weights, and on variables whose activation is `Identity`.  Other activations need the proximal
    map of Ψ + R, which `register_prox` takes.  `lb.check_penalty` tests both.

    Example:
        >>> penalty = lb.penalties.L1(0.1) + lb.penalties.NonNegative()
        >>> penalty.prox(torch.tensor([-1.0, 0.05, 1.0]), 1.0)
        tensor([0.0000, 0.0000, 0.9000])
    """

    constraint: ClassVar[bool] = False
    """Whether R is 0 or infinity.  The variables satisfy such a constraint; the outputs of the network need not."""

    of_matrices: ClassVar[bool] = False
    """Whether R is a function of a matrix, the last two dimensions; such penalties are for parameters only."""

    def value(self, x: Tensor) -> Tensor:
        """R(x), one number per vector; infinity where a constraint is violated."""
        self._require(x)
        with torch.no_grad():
            return self.compute_value(x)

    tensor_scale: ClassVar[bool] = False
    """Whether the class itself defines a `compute_prox` that takes a tensor () as scale, without a device sync."""

    def prox(self, x: Tensor, scale: float | Tensor = 1.0) -> Tensor:
        """prox_{scale·R}(x) = argmin_u ½‖u - x‖² + scale·R(u), for scale > 0.

        A tensor () on the device of x as scale is not checked, and with `tensor_scale` not copied to the host.
        """
        self._require(x)
        if not (isinstance(scale, Tensor) and vars(type(self)).get("tensor_scale")):
            scale = positive(float(scale) if isinstance(scale, Tensor) else scale, "scale")
        with torch.no_grad():
            return self.compute_prox(x, scale)  # type: ignore[arg-type]

    @abstractmethod
    def compute_value(self, x: Tensor) -> Tensor:
        """R(x), (...), for a tensor (..., n) that was checked; infinity where a constraint is violated."""

    @abstractmethod
    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        """prox_{scale·R}(x), in the shape and dtype of x, for scale > 0."""

    def __add__(self, other: Penalty) -> Penalty:
        """R + other, a `Sum`; refused where the proximal map of the sum is not known."""
        if not isinstance(other, Penalty):
            return NotImplemented
        from lifted_bregman.penalties.sums import Sum

        return Sum(self, other)

    def _require(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or x.dtype not in SUPPORTED_DTYPES or x.ndim == 0:
            given = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise TensorError(
                f"{type(self).__name__} was given {given}; it takes a float32 or float64 tensor whose last dimension "
                "is the vector that is penalised."
            )


@dataclass(frozen=True)
class L1(Penalty):
    """R(x) = weight ‖x‖₁; prox_{tR}(x) = sign(x) max(|x| - t·weight, 0).

    Example:
        >>> penalty = lb.penalties.L1(0.5)
        >>> x = torch.tensor([-2.0, 0.3, 1.0])
        >>> penalty.value(x)
        tensor(1.6500)
        >>> penalty.prox(x, 1.0)
        tensor([-1.5000,  0.0000,  0.5000])
    """

    tensor_scale: ClassVar[bool] = True

    weight: float

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def compute_value(self, x: Tensor) -> Tensor:
        return self.weight * x.abs().sum(-1)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        coarse, rest = split_product(self.weight, scale, x.dtype)
        return x.abs().sub_(coarse).sub_(rest).clamp_(min=0.0).copysign_(x)


@dataclass(frozen=True)
class SquaredL2(Penalty):
    """R(x) = ½ weight ‖x‖²; prox_{tR}(x) = x / (1 + t·weight).

    Example:
        >>> penalty = lb.penalties.SquaredL2(1.0)
        >>> penalty.value(torch.tensor([3.0, 4.0]))
        tensor(12.5000)
        >>> penalty.prox(torch.tensor([3.0, 4.0]), 1.0)
        tensor([1.5000, 2.0000])
    """

    tensor_scale: ClassVar[bool] = True

    weight: float

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def compute_value(self, x: Tensor) -> Tensor:
        return 0.5 * self.weight * x.square().sum(-1)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        return x / (1.0 + scale * self.weight)


@dataclass(frozen=True)
class GroupL2(Penalty):
    """R(x) = weight Σ_g ‖x_g‖₂ over contiguous groups of the last dimension; prox_{tR} shrinks each ‖x_g‖ by t·weight.

    weight      >= 0, not multiplied by the square root of the group's size
    group_size  the length of a group, a divisor of the last dimension; the whole dimension by default

    Example:
        >>> penalty = lb.penalties.GroupL2(1.0, group_size=2)
        >>> x = torch.tensor([3.0, 4.0, 0.3, 0.4])
        >>> penalty.value(x)
        tensor(5.5000)
        >>> penalty.prox(x, 1.0)
        tensor([2.4000, 3.2000, 0.0000, 0.0000])
    """

    tensor_scale: ClassVar[bool] = True

    weight: float
    group_size: int | None = None

    def __post_init__(self) -> None:
        require_weight(self.weight)
        if self.group_size is not None and (not isinstance(self.group_size, int) or self.group_size < 1):
            raise SettingError(
                f"group_size is {self.group_size!r}; it must be a whole number >= 1, or None for all features."
            )

    def groups(self, x: Tensor) -> Tensor:
        """x (..., n) seen as (..., groups, group size)."""
        features = x.shape[-1]
        size = features if self.group_size is None else self.group_size
        if features and features % size:
            raise CompatibilityError(
                f"GroupL2 has groups of {size} and was given {features} features; the group size must divide the "
                f"number of features: choose one of {[d for d in range(1, features + 1) if features % d == 0]}."
            )
        return x.reshape(*x.shape[:-1], features // max(size, 1), size)

    def compute_value(self, x: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.groups(x), dim=-1, dtype=torch.float64)
        return (self.weight * norms.sum(-1)).to(x.dtype)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        groups = self.groups(x)
        norm: Tensor = torch.linalg.vector_norm(groups, dim=-1, keepdim=True, dtype=torch.float64)
        coarse, rest = split_product(self.weight, scale, torch.float64)
        shrunk = norm.sub(coarse).sub_(rest).clamp_(min=0.0)
        factor = shrunk / norm.clamp(min=torch.finfo(torch.float64).tiny)
        return (groups * factor).to(x.dtype).flatten(-2)


@dataclass(frozen=True)
class Bounds(Penalty):
    """R(x) = 0 if low <= x <= high in every component, else infinity; prox is the projection min(max(x, low), high).

    low, high  numbers with low <= high; one may be infinite

    Example:
        >>> penalty = lb.penalties.Bounds(-1.0, 1.0)
        >>> penalty.prox(torch.tensor([-2.0, 0.3, 1.0]), 1.0)
        tensor([-1.0000,  0.3000,  1.0000])
        >>> penalty.value(torch.tensor([2.0]))
        tensor(inf)
    """

    constraint: ClassVar[bool] = True
    tensor_scale: ClassVar[bool] = True

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (self.low <= self.high and self.low < math.inf and self.high > -math.inf):
            raise SettingError(
                f"low is {self.low!r} and high is {self.high!r}; a box needs two numbers with low <= high."
            )

    def compute_value(self, x: Tensor) -> Tensor:
        inside = (x >= self.low) & (x <= self.high)
        return torch.where(inside.all(-1), 0.0, math.inf).to(x.dtype)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        return x.clamp(self.low, self.high)


@dataclass(frozen=True)
class NonNegative(Penalty):
    """R(x) = 0 if x >= 0 in every component, else infinity; prox is max(x, 0).

    Example:
        >>> lb.penalties.NonNegative().prox(torch.tensor([-2.0, 1.0]), 1.0)
        tensor([0., 1.])
    """

    constraint: ClassVar[bool] = True
    tensor_scale: ClassVar[bool] = True
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = math.inf

    def compute_value(self, x: Tensor) -> Tensor:
        return torch.where((x >= 0.0).all(-1), 0.0, math.inf).to(x.dtype)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        return x.clamp(min=0.0)


def split_product(weight: float, scale: float | Tensor, dtype: torch.dtype) -> tuple[Any, Any]:
    """weight·scale as coarse + rest: coarse is rounded to `dtype`, rest is the exact product less coarse.

    |x| - coarse is exact near the kink of a threshold, and subtracting the rest keeps every digit of a small result.
    For a tensor () as scale the product is computed in float64.
    """
    if isinstance(scale, Tensor):
        whole = scale.double() * weight
        rounded = whole.to(dtype)
        return rounded, whole - rounded
    product = Fraction(float(weight)) * Fraction(scale)
    try:
        coarse = float(torch.tensor(float(product), dtype=dtype))
    except OverflowError:
        return math.inf, 0.0
    return (coarse, float(product - Fraction(coarse))) if math.isfinite(coarse) else (coarse, 0.0)


def require_weight(weight: float) -> None:
    """Raises unless `weight` is a finite number >= 0."""
    try:
        valid = 0.0 <= float(weight) < math.inf
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise SettingError(f"weight is {weight!r}; it must be a finite number >= 0.")
