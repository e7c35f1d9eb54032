"""The error signal E of a term, from g = Σ J_xᵀ E of the terms that read its variable.

    x⁺ = prox_{Ψ + (ν/λ) R}( z - (ν/λ) g )          E = (λ/ν) (σ(z) - x⁺)

x⁺ minimises (λ/ν) B(x, z) + R(x) + <x, g>: the lifted energy in x, in which the terms that read x are replaced by their
tangents and the terms below weigh 1/ν times more.  ν → 0 gives back-propagation, E → σ'(z) g.  With a larger ν, units
that are switched off receive a signal too.  No activation is differentiated.

ν is limited for each sample i by itself, so that its signal depends on no other sample:

    ν_i = min(ν, 0.3 ‖z_i‖/‖g_i‖)          norms over all features, ‖z_i‖ at least √(eps features)

These are functions of tensors.  `nudge` is ν/λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lifted_bregman.activations import Activation
from lifted_bregman.activations.differences import quotient

LARGEST_NUDGE = 0.3
"""How far a nudge moves z_i at most, relative to the norm of z_i."""

Function = Callable[[Tensor], Tensor]


def output_signal(x: Tensor, y: Tensor, weight: float) -> Tensor:
    """E = λ (σ(z) - y) of the output, for x = σ(z)."""
    return torch.sub(x, y).mul_(weight)


def lifted_signal(activation: Activation, activate: Function, dim: int, z: Tensor, g: Tensor, nudge: Tensor) -> Tensor:
    """E = (σ(z) - σ(z - νg))/ν with all its digits, however small ν is.

    activate  computes σ, a joint one along `dim`
    nudge     (samples, 1, ..)
    """
    return quotient(activation, z, g, nudge, dim=dim, function=activate)


def penalised_signal(x: Tensor, z: Tensor, g: Tensor, nudge: float, prox: Function) -> Tensor:
    """E = (x - x⁺)/ν with x⁺ = prox(z - νg), for x = σ(z) and prox = prox_{Ψ + νR}."""
    return torch.sub(x, prox(torch.sub(z, g, alpha=nudge))).div_(nudge)


def limit_nudge(z_norms: Tensor, g: Tensor, nudge: float) -> Tensor:
    """ν_i = min(ν, 0.3 ‖z_i‖/‖g_i‖), (samples, 1, ..).

    z_norms  ‖z_i‖, (samples,); for z_i = 0 the norm of a sample whose numbers are all √eps
    """
    nudges = z_norms.clamp(min=least_norm(g, z_norms.dtype)).mul_(LARGEST_NUDGE).div_(sample_norms(g)).clamp_(max=nudge)
    return nudges.view(-1, *[1] * (g.ndim - 1))


def least_norm(z: Tensor, precision: torch.dtype) -> float:
    """The lower bound of ‖z_i‖: the norm of a sample whose numbers are all √eps."""
    return math.sqrt(torch.finfo(precision).eps * max(math.prod(z.shape[1:]), 1))


def sample_norms(t: Tensor) -> Tensor:
    """‖t_i‖ of each sample, (samples,)."""
    if t.ndim == 1:
        return t.abs()
    norms: Tensor = torch.linalg.vector_norm(t, dim=tuple(range(1, t.ndim)))
    return norms
