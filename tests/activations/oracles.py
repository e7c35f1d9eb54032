"""Independent oracles in mpmath: scalar activations as plain functions, and prox_{cΨ} by bisection of Fermat's rule.

Nothing here imports the library's mathematics: the functions σ are written from their definitions, and the exact
minimiser of ½(u - v)² + cΨ(u) is σ(s) with (1 - c)σ(s) + c s = v, found by bisection with 70 digits.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import torch

mp.mp.dps = 70

Scalar = Callable[[mp.mpf], mp.mpf]


def sigma(activation) -> Scalar:
    kind = type(activation).__name__
    if kind == "FromScalar":
        kind = {"tanh": "Tanh", "hardsigmoid": "HardSigmoid"}[activation.function.__name__]
    if kind == "Identity":
        return lambda s: s
    if kind == "ReLU":
        return lambda s: max(s, mp.mpf(0))
    if kind == "LeakyReLU":
        return lambda s: s if s > 0 else mp.mpf(activation.slope) * s
    if kind == "Box":
        return lambda s: min(max(s, mp.mpf(activation.low)), mp.mpf(activation.high))
    if kind == "HardSigmoid":
        return lambda s: min(max(s / 6 + mp.mpf(1) / 2, mp.mpf(0)), mp.mpf(1))
    if kind == "SoftThreshold":
        return lambda s: mp.sign(s) * max(abs(s) - mp.mpf(activation.threshold), mp.mpf(0))
    if kind == "NonNegativeSoftThreshold":
        return lambda s: max(s - mp.mpf(activation.threshold), mp.mpf(0))
    if kind == "Tanh":
        return mp.tanh
    if kind == "Sigmoid":
        return lambda s: 1 / (1 + mp.exp(-s))
    if kind == "Softsign":
        return lambda s: s / (1 + abs(s))
    if kind == "Arctan":
        return mp.atan
    if kind == "ISRU":
        return lambda s: s / mp.sqrt(1 + s * s)
    if kind == "Asinh":
        return mp.asinh
    if kind == "ELU":
        return lambda s: s if s > 0 else mp.mpf(activation.alpha) * mp.expm1(s)
    if kind == "Softplus":
        return lambda s: mp.log1p(mp.exp(s))
    raise KeyError(kind)


def prox(function: Scalar, v: float, scale: float) -> mp.mpf:
    """The exact minimiser of ½(u - v)² + scale·Ψ(u), σ = prox_Ψ the given function."""
    v, c = mp.mpf(v), mp.mpf(scale)

    def left_side(s):
        return (1 - c) * function(s) + c * s

    gap = v - left_side(v)  # the slope of the left side lies between min(1, c) and max(1, c)
    ends = v + gap / max(1, c), v + gap / min(1, c)
    low, high = (end + widen * mp.mpf(10) ** -40 * abs(gap) for end, widen in ((min(ends), -1), (max(ends), 1)))
    for _ in range(220):
        if low == high:
            break
        middle = (low + high) / 2
        if left_side(middle) > v:
            high = middle
        else:
            low = middle
        if high - low <= mp.mpf(10) ** -45 * abs(low):
            break
    if function(low) == 0 or function(high) == 0:  # at a kink: σ is flat up to the root, or from it on
        return mp.mpf(0)
    return function((low + high) / 2)


def ulps(got: float, exact: mp.mpf, dtype: torch.dtype) -> float:
    """|got - exact| in units in the last place of the exact value, subnormal numbers included."""
    digits, lowest = (24, -149) if dtype == torch.float32 else (53, -1074)
    if exact == 0:
        return float(abs(mp.mpf(got)) / mp.mpf(2) ** lowest)
    exponent = int(mp.floor(mp.log(abs(exact), 2)))
    return float(abs(mp.mpf(got) - exact) / mp.mpf(2) ** max(exponent - digits + 1, lowest))


def phi(activation) -> Scalar:
    """φ = ½x² + Ψ in closed form, for x in the interior or at a finite end of the domain."""
    kind = type(activation).__name__
    half = mp.mpf(1) / 2
    if kind in ("Identity", "ReLU", "Box"):
        return lambda x: half * x * x
    if kind == "LeakyReLU":
        return lambda x: half * x * x if x >= 0 else half * x * x / mp.mpf(activation.slope)
    if kind == "SoftThreshold":
        return lambda x: half * x * x + mp.mpf(activation.threshold) * abs(x)
    if kind == "NonNegativeSoftThreshold":
        return lambda x: half * x * x + mp.mpf(activation.threshold) * x
    if kind == "Tanh":
        return lambda x: mp.log(2) if abs(x) == 1 else x * mp.atanh(x) + half * mp.log(1 - x * x)
    if kind == "Sigmoid":
        return lambda x: mp.mpf(0) if x in (0, 1) else x * mp.log(x) + (1 - x) * mp.log(1 - x)
    if kind == "Softsign":
        return lambda x: -abs(x) - mp.log(1 - abs(x))
    if kind == "Arctan":
        return lambda x: -mp.log(mp.cos(x))
    if kind == "ISRU":
        return lambda x: 1 - mp.sqrt(1 - x * x)
    if kind == "Asinh":
        return lambda x: mp.cosh(x) - 1
    if kind == "ELU":
        a = mp.mpf(activation.alpha)
        return lambda x: half * x * x if x >= 0 else (a if x == -a else (x + a) * mp.log(1 + x / a) - x)
    if kind == "Softplus":
        return lambda x: half * x * x + mp.polylog(2, mp.exp(-x)) - mp.pi**2 / 6 if x else mp.mpf(0)
    raise KeyError(kind)


def phi_star(activation) -> Scalar:
    """φ* in closed form."""
    kind = type(activation).__name__
    half = mp.mpf(1) / 2
    if kind == "Identity":
        return lambda z: half * z * z
    if kind == "ReLU":
        return lambda z: half * max(z, 0) ** 2
    if kind == "LeakyReLU":
        return lambda z: half * z * z * (1 if z >= 0 else mp.mpf(activation.slope))
    if kind == "Box":
        project = sigma(activation)
        return lambda z: z * project(z) - half * project(z) ** 2
    if kind == "SoftThreshold":
        return lambda z: half * max(abs(z) - mp.mpf(activation.threshold), 0) ** 2
    if kind == "NonNegativeSoftThreshold":
        return lambda z: half * max(z - mp.mpf(activation.threshold), 0) ** 2
    if kind == "Tanh":
        return lambda z: mp.log(mp.cosh(z))
    if kind == "Sigmoid":
        return lambda z: mp.log(1 + mp.exp(z))
    if kind == "Softsign":
        return lambda z: abs(z) - mp.log(1 + abs(z))
    if kind == "Arctan":
        return lambda z: z * mp.atan(z) - half * mp.log(1 + z * z)
    if kind == "ISRU":
        return lambda z: mp.sqrt(1 + z * z) - 1
    if kind == "Asinh":
        return lambda z: z * mp.asinh(z) - mp.sqrt(1 + z * z) + 1
    if kind == "ELU":
        return lambda z: half * z * z if z >= 0 else mp.mpf(activation.alpha) * (mp.exp(z) - 1 - z)
    if kind == "Softplus":
        return lambda z: -mp.re(mp.polylog(2, -mp.exp(z)))
    raise KeyError(kind)
