"""Differences between a function and its leading term, without cancellation near 0.

The potentials of activations with slope 1 at the origin contain such differences: φ*(z) = z - log(1 + z) for
softsign, s - tanh(s) in the proximal map with a scale above 1, and so on.  Evaluated as written they lose all digits as
the argument goes to 0.  All are float64 elementwise functions with a relative error of a few units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_SINH = [1.0 / math.factorial(2 * k + 1) for k in range(1, 14)]
_EXPM1 = [1.0 / math.factorial(k) for k in range(2, 22)]
_ATANH = [1.0 / (2 * k + 1) for k in range(1, 19)]
_ARCTAN = [(-1.0) ** (k + 1) / (2 * k + 1) for k in range(1, 12)]


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """c_0 + c_1 x + c_2 x² + ... by Horner's rule."""
    value = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value.mul_(x).add_(coefficient)
    return value


def sinh_minus(x: Tensor) -> Tensor:
    """sinh(x) - x, by its series for |x| < 2."""
    near = x.clamp(-2.0, 2.0)
    square = near.square()
    return torch.where(x.abs() < 2.0, near * square * polynomial(square, _SINH), x.sinh() - x)


def expm1_minus(x: Tensor) -> Tensor:
    """exp(x) - 1 - x, by its series for |x| < 1."""
    near = x.clamp(-1.0, 1.0)
    return torch.where(x.abs() < 1.0, near.square() * polynomial(near, _EXPM1), x.expm1() - x)


def minus_log1p(x: Tensor) -> Tensor:
    """x - log(1 + x).  With y = x/(2 + x) it is x y - 2 (artanh y - y), used for |x| < ½."""
    near = x.clamp(-0.5, 0.5)
    y = near / (2.0 + near)
    square = y.square()
    series = near * y - 2.0 * y * square * polynomial(square, _ATANH)
    return torch.where(x.abs() < 0.5, series, x - x.log1p())


def minus_tanh(x: Tensor) -> Tensor:
    """x - tanh(x) for x >= 0, by Lambert's continued fraction tanh x = x/(1 + x²/(3 + x²/(5 + ...))) for x < 1."""
    near = x.clamp(max=1.0)
    square = near.square()
    fraction = torch.full_like(x, 21.0)
    for odd in range(19, 1, -2):
        torch.div(square, fraction, out=fraction).add_(odd)
    torch.div(square, fraction, out=fraction)  # q in tanh x = x / (1 + q)
    return torch.where(x < 1.0, near * fraction / (1.0 + fraction), x - x.tanh())


def minus_arctan(x: Tensor) -> Tensor:
    """x - arctan(x) for x >= 0: half the angle, t = x/(1 + √(1+x²)), gives x - arctan x = x t² + 2 (t - arctan t)."""
    half = _half_angle(x.clamp(max=1.0))
    quarter = _half_angle(half)
    square = quarter.square()
    series = quarter * square * polynomial(square, _ARCTAN)
    near = x.clamp(max=1.0) * half.square() + 2.0 * (half * square + 2.0 * series)
    return torch.where(x < 1.0, near, x - x.atan())


def _half_angle(tangent: Tensor) -> Tensor:
    return tangent / (1.0 + (1.0 + tangent.square()).sqrt())
