"""Functions for FromScalar, accurate and inaccurate ones, with their closed forms in mpmath."""

from __future__ import annotations

import functools
from collections.abc import Callable

import mpmath as mp
import torch
import torch.nn.functional as F
from torch import Tensor

from lifted_bregman.activations import FromScalar

Scalar = Callable[[mp.mpf], mp.mpf]
made = functools.cache(FromScalar)


def softshrink(z: Tensor) -> Tensor:
    return F.softshrink(z, 0.3)


def softplus(z: Tensor) -> Tensor:
    return F.softplus(z, threshold=40.0)  # torch's own default switches to z at 20, too early for float64


def celu(z: Tensor) -> Tensor:
    return F.celu(z, 0.7)


def wave(z: Tensor) -> Tensor:
    return 0.5 * z + 0.4 * z.sin()


def constant(z: Tensor) -> Tensor:
    return torch.full_like(z, 0.3)


def steps(z: Tensor) -> Tensor:
    """Plateaus of length 1 and ramps of slope 1, between -4 and 4."""
    z = z.clamp(-8.0, 7.0)
    cell = (z / 2.0).floor()
    return cell + (z - 2.0 * cell).clamp(0.0, 1.0)


def naive_tanh(z: Tensor) -> Tensor:
    """All digits are lost near 0: 1 - e is rounded to a multiple of 1e-16."""
    e = (-2.0 * z.abs()).exp()
    return ((1.0 - e) / (1.0 + e)).copysign(z)


def naive_isru(z: Tensor) -> Tensor:
    return z / (1.0 + z * z).sqrt()  # falls to 0 where z² overflows


def naive_squareplus(z: Tensor) -> Tensor:
    return 0.5 * ((z * z + 4.0).sqrt() + z)  # cancels for z < 0: not monotone in the last digits


def mp_softplus(t: mp.mpf) -> mp.mpf:
    return mp.log1p(mp.exp(t))


SEVENTH = mp.mpf(0.7)
SHIFT = mp.mpf(0.3)

# σ, φ* with φ*(0) = 0, and φ where it has a closed form
SIGMA: dict[Callable[[Tensor], Tensor], Scalar] = {
    torch.tanh: mp.tanh,
    torch.sigmoid: lambda s: 1 / (1 + mp.exp(-s)),
    torch.relu: lambda s: max(s, mp.mpf(0)),
    softshrink: lambda s: mp.sign(s) * max(abs(s) - SHIFT, mp.mpf(0)),
    F.hardsigmoid: lambda s: min(max(s / 6 + mp.mpf(1) / 2, mp.mpf(0)), mp.mpf(1)),
    F.logsigmoid: lambda s: -mp_softplus(-s),
    softplus: mp_softplus,
    celu: lambda s: s if s > 0 else SEVENTH * mp.expm1(s / SEVENTH),
}
CONJUGATE: dict[Callable[[Tensor], Tensor], Scalar] = {
    torch.tanh: lambda z: mp.log(mp.cosh(z)),
    torch.sigmoid: lambda z: mp_softplus(z) - mp.log(2),
    torch.relu: lambda z: max(z, mp.mpf(0)) ** 2 / 2,
    softshrink: lambda z: max(abs(z) - SHIFT, mp.mpf(0)) ** 2 / 2,
    F.hardsigmoid: lambda z: (max(min(z, mp.mpf(3)) + 3, mp.mpf(0)) ** 2 - 9) / 12 + max(z - 3, mp.mpf(0)),
    F.logsigmoid: lambda z: -(mp.polylog(2, -mp.exp(-z)) + mp.pi**2 / 12).real,
    softplus: lambda z: -(mp.polylog(2, -mp.exp(z)) + mp.pi**2 / 12).real,
    celu: lambda z: z * z / 2 if z > 0 else SEVENTH * (SEVENTH * mp.expm1(z / SEVENTH) - z),
    wave: lambda z: z * z / 4 + mp.mpf(0.4) * (1 - mp.cos(z)),
}
PHI: dict[Callable[[Tensor], Tensor], Scalar] = {
    torch.tanh: lambda x: x * mp.atanh(x) + mp.log(1 - x * x) / 2,
    torch.sigmoid: lambda x: x * mp.log(x) + (1 - x) * mp.log(1 - x) + mp.log(2),
    torch.relu: lambda x: x * x / 2,
    softshrink: lambda x: x * x / 2 + SHIFT * abs(x),
    F.hardsigmoid: lambda x: 3 * x * x - 3 * x + mp.mpf(3) / 4,
    celu: lambda x: x * x / 2 if x > 0 else SEVENTH * ((x + SEVENTH) * mp.log(1 + x / SEVENTH) - x),
}


def name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
