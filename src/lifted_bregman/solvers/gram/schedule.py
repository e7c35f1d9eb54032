"""What depends on the number k of the step: when the distance is updated, and how the iterates are averaged.

    V ← V - Δ     Θ̄ ← (1 - c_k) Θ̄ + c_k V     Θ ← (1 - β) V + β Θ̄          c_k = (1 + r)/(k + r)

V is the fast iterate, Θ̄ the average of its path with weights ~ k^r, and Θ, where the signals are computed, lies between
them.  The noise of the batches averages out without a schedule that has to know the end (Defazio et al. 2024).  Θ̄ is
not stored: it is Θ + (Θ - V)(1 - β)/β.
"""

from __future__ import annotations

import torch
from torch import Tensor


def updates_distance(k: int) -> bool:
    """Whether step k >= 1 updates r_k: all steps up to 15 do, then every 2nd, 4th, 8th, .. as their number doubles."""
    return not k % (1 << max(0, k.bit_length() - 4))


def average_share(k: int, power: float) -> float:
    """c_k, the share of V in the average after step k >= 1."""
    return (1.0 + power) / (k + power)


def to_average(theta: list[Tensor], fast: list[Tensor], beta: float) -> None:
    """Θ ← Θ̄ in place, before V moves."""
    torch._foreach_lerp_(theta, fast, (beta - 1.0) / beta)


def from_average(theta: list[Tensor], fast: list[Tensor], beta: float, share: float) -> None:
    """From Θ̄ to the new Θ in place, after V has moved: the average takes V in, and Θ is between the two."""
    torch._foreach_lerp_(theta, fast, 1.0 - beta * (1.0 - share))
