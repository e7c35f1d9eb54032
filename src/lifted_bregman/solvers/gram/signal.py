"""The error signal E of a term, from g = Σ J_xᵀ E of the terms that read its variable.

    x⁺ = prox_{Ψ + (ν/λ) R}( z - (ν/λ) g )          E = (λ/ν) (σ(z) - x⁺)

x⁺ minimises (λ/ν) B(x, z) + R(x) + <x, g>: the lifted energy in x, in which the terms that read x are replaced by their
tangents and the terms below weigh 1/ν times more.  ν → 0 gives back-propagation, E → σ'(z) g.  A larger ν also tells
units that are switched off which way to move.  No activation is differentiated.

ν is limited for each sample i by itself, so that its signal depends on no other sample:

    ν_i = min(ν, 0.3 ‖z_i‖/‖g_i‖)          norms over all features, ‖z_i‖ at least √(eps features)

These are functions of tensors.  `nudge` is ν/λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lifted_bregman.activations import Activation
from lifted_bregman.activations.differences import quotient

TINY = 1e-30  # stands for 0 where something is divided by
LARGEST_NUDGE = 0.3  # of the norm of z_i

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Signal:
    """E of a term."""

    E: Tensor
    """(samples, ...), so that J_Θᵀ E/m is the gradient in the term's parameters."""
    left: Function
    """H ↦ E(H) = (λ/ν) (σ(z - (ν/λ) H) - x⁺), what is left of E once the parameters have changed z by -(ν/λ) H."""


def output_signal(x: Tensor, z: Tensor, y: Tensor, weight: float, activate: Function) -> Signal:
    """E = λ (σ(z) - y) of the output, for x = σ(z)."""
    return Signal(torch.sub(x, y).mul_(weight), lambda H: (activate(z - H / weight) - y).mul_(weight))


def linear_signal(g: Tensor) -> Signal:
    """E = g, for σ = identity without a penalty."""
    return Signal(g, lambda H: g - H)


def lifted_signal(activation: Activation, activate: Function, dim: int, z: Tensor, g: Tensor, nudge: Tensor) -> Signal:
    """E = (σ(z) - σ(z - νg))/ν with all its digits, however small ν is.

    activate  computes σ, a joint one along `dim`
    nudge     (samples, 1, ..)
    """
    difference = partial(quotient, activation, dim=dim, function=activate)
    # σ(z - νH) - σ(z - νg) is the same difference at z - νH, for g - H
    return Signal(difference(z, g, nudge), lambda H: difference(torch.addcmul(z, H, nudge, value=-1.0), g - H, nudge))


def penalised_signal(x: Tensor, z: Tensor, g: Tensor, nudge: float, activate: Function, prox: Function) -> Signal:
    """E = (x - x⁺)/ν with x⁺ = prox(z - νg), for x = σ(z) and prox = prox_{Ψ + νR}."""
    target = prox(torch.sub(z, g, alpha=nudge))
    return Signal(
        torch.sub(x, target).div_(nudge), lambda H: activate(torch.sub(z, H, alpha=nudge)).sub_(target).div_(nudge)
    )


def limit_nudge(z_norms: Tensor, g: Tensor, nudge: float) -> Tensor:
    """ν_i = min(ν, 0.3 ‖z_i‖/‖g_i‖), (samples, 1, ..).

    z_norms  ‖z_i‖, (samples,).  A sample with z_i = 0 has no size: it gets that of numbers of √eps.
    """
    least = math.sqrt(torch.finfo(z_norms.dtype).eps * max(math.prod(g.shape[1:]), 1))
    nudges = z_norms.clamp(min=least).mul_(LARGEST_NUDGE).div_(sample_norms(g)).clamp_(max=nudge)
    return nudges.view(-1, *[1] * (g.ndim - 1))


def sample_norms(t: Tensor) -> Tensor:
    """‖t_i‖ of each sample, (samples,)."""
    if t.ndim == 1:
        return t.abs()
    norms: Tensor = torch.linalg.vector_norm(t, dim=tuple(range(1, t.ndim)))
    return norms


def joined(parts: Sequence[Signal]) -> Signal:
    """The signal of a batch from those of its parts, in order."""
    if len(parts) == 1:
        return parts[0]
    sizes = [len(part.E) for part in parts]

    def left(H: Tensor) -> Tensor:
        return torch.cat([part.left(rows) for part, rows in zip(parts, H.split(sizes), strict=True)])

    return Signal(torch.cat([part.E for part in parts]), left)
