"""The error signal E of a term, from g = Σ J_xᵀ E of the terms that read its variable.

    x⁺ = prox_{Ψ + (ν/λ) R}( z - (ν/λ) g )          E = (λ/ν) (σ(z) - x⁺)

x⁺ minimises (λ/ν) B(x, z) + R(x) + <x, g>: the lifted energy in x, in which the terms that read x are replaced by their
tangents and the terms below weigh 1/ν times more.  ν → 0 gives back-propagation, E → σ'(z) g.  A larger ν also tells
units that are switched off which way to move.  No activation is differentiated.

These are functions of tensors.  `nudge` is ν/λ: a number, or a tensor that multiplies z by broadcasting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-30  # stands for 0 where something is divided by

Prox = Callable[[Tensor], Tensor]
"""v ↦ prox(v)."""


@dataclass(frozen=True, eq=False)
class Signal:
    """E of a term, with what it was computed from."""

    E: Tensor
    """(samples, ...), so that J_Θᵀ E/m is the gradient in the term's parameters."""
    target: Tensor
    """x⁺, of the shape of E; y for the output."""
    nudge: Tensor | float
    """ν/λ; 1/λ for the output."""


def output_signal(x: Tensor, y: Tensor, weight: float) -> Signal:
    """E_L = λ (σ(z) - y), for x = σ(z)."""
    nudge = 1.0 / weight
    return Signal(torch.sub(x, y).div_(nudge), y, nudge)


def lifted_signal(x: Tensor, z: Tensor, g: Tensor, nudge: Tensor | float, prox: Prox) -> Signal:
    """E = (x - x⁺)/ν with x⁺ = prox(z - νg), for x = σ(z)."""
    target = prox(shifted(z, g, nudge))
    return Signal(torch.sub(x, target).div_(nudge), target, nudge)


def linear_signal(z: Tensor, g: Tensor, nudge: Tensor | float) -> Signal:
    """The same for σ = identity without a penalty, where E = g: without the rounding of the quotient."""
    return Signal(g, shifted(z, g, nudge), nudge)


def remaining_signal(signal: Signal, z: Tensor, activate: Prox, H: Tensor) -> Tensor:
    """E(H) = (σ(z - νH) - x⁺)/ν, what is left of a signal when the parameters have changed z by -νH."""
    return activate(shifted(z, H, signal.nudge)).sub(signal.target).div_(signal.nudge)


def limit_nudge(reach: Tensor, size: Tensor, nudge: float) -> Tensor:
    """min(ν, reach/size): so that νg, for g of that size, is no longer than `reach` > 0.

    It is above 0 also where a signal has overflowed, which the loop notices after the step.
    """
    return (reach / size).clamp_(TINY, nudge)


def shifted(z: Tensor, g: Tensor, nudge: Tensor | float) -> Tensor:
    """z - νg."""
    return torch.addcmul(z, g, nudge, value=-1.0) if isinstance(nudge, Tensor) else torch.sub(z, g, alpha=nudge)


def joined(parts: Sequence[Signal]) -> Signal:
    """The signal of a batch from those of its parts, in order."""
    if len(parts) == 1:
        return parts[0]
    E, target = (torch.cat([getattr(part, name) for part in parts]) for name in ("E", "target"))
    nudges = [torch.as_tensor(p.nudge, dtype=E.dtype, device=E.device) for p in parts]
    one_each = [n.expand(len(p.E)).view(-1, *[1] * (E.ndim - 1)) for n, p in zip(nudges, parts, strict=True)]
    return Signal(E, target, torch.cat(one_each))
