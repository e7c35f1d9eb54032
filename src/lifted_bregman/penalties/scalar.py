"""Sums of penalties that act on each number alone, as one function of a number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lifted_bregman.penalties.vectors import L1, Bounds, NonNegative, Penalty, SquaredL2


@dataclass(frozen=True)
class Scalar:
    """g(u) = a|u| + ½b u² on [low, high], infinity outside, summed over numbers: L1, SquaredL2, NonNegative and Bounds.

    prox_{tg}(v) = clip( sign(v) max(|v| - ta, 0) / (1 + tb), low, high )

    which is exact, because the proximal map of a convex function of one number on an interval is the one without the
    interval, clipped.
    """

    l1: float = 0.0
    """a >= 0, the weight of |u|."""
    l2: float = 0.0
    """b >= 0, the weight of ½u²."""
    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def of(cls, penalty: Penalty) -> Scalar | None:
        """g of an `L1`, `SquaredL2`, `Bounds` or `NonNegative` penalty; None for any other."""
        if type(penalty) is L1:
            return cls(l1=float(penalty.weight))
        if type(penalty) is SquaredL2:
            return cls(l2=float(penalty.weight))
        if type(penalty) in (Bounds, NonNegative):
            return cls(low=float(penalty.low), high=float(penalty.high))  # type: ignore[attr-defined]
        return None

    def __add__(self, other: Scalar) -> Scalar:
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Scalar(self.l1 + other.l1, self.l2 + other.l2, low, high)

    def prox(self, v: Tensor, step: float) -> Tensor:
        """prox_{step·g}(v), of each number."""
        if self.l1 > 0.0:
            v = v.abs().sub_(step * self.l1).clamp_(min=0.0).copysign_(v)
        if self.l2 > 0.0:
            v = v / (1.0 + step * self.l2)
        return v if math.isinf(self.low) and math.isinf(self.high) else v.clamp(self.low, self.high)

    def value(self, u: Tensor) -> Tensor:
        """g of each number."""
        terms = self.l1 * u.abs() + 0.5 * self.l2 * u.square()
        return torch.where((u >= self.low) & (u <= self.high), terms, math.inf)

    def split_slope(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """r as (r_in, rest), with u ↦ r_in u + g(u) bounded from below and r_in the nearest such number."""
        grows = self.l2 > 0.0
        least = -math.inf if grows or self.high < math.inf else -self.l1
        most = math.inf if grows or self.low > -math.inf else self.l1
        inside = r.clamp(least, most)
        return inside, r - inside

    def least_value(self, r: Tensor) -> Tensor:
        """min_u r u + g(u) = -g*(-r) of each number, for r that `split_slope` gave."""
        if self.l2 > 0.0:
            u = ((-r).abs().sub(self.l1).clamp_(min=0.0).copysign(-r) / self.l2).clamp(self.low, self.high)
            return r * u + self.value(u)
        # g is linear on both sides of 0: the minimum is at 0, or the number of [low, high] nearest to it, or at an end
        ends = [min(max(0.0, self.low), self.high), *(end for end in (self.low, self.high) if math.isfinite(end))]
        return torch.stack([r * end + self.l1 * abs(end) for end in ends]).amin(0)
