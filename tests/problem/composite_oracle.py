"""The argmin of ½‖u - v‖² + aΨ(u) + bR(u) by brute force.

It has its own formulas for potentials, penalties and domains, and minimises by golden-section search: in one
dimension, or nested in two (a pair of features, or three on the simplex).  It shares no code with the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import spence

from lifted_bregman import activations as act
from lifted_bregman import penalties as pen
from lifted_bregman.activations import Activation

Array = NDArray[np.longdouble]
FAR = 35.0  # proximal maps are non-expansive: nothing below leads further out


def xlog(x: Array) -> Array:
    return np.where(x > 0, x * np.log(np.where(x > 0, x, 1)), 0)


def scalar_case(activation: Activation) -> tuple[float, float, Callable[[Array], Array]]:
    """The ends of the domain and Ψ inside it."""
    match activation:
        case act.Identity():
            return -FAR, FAR, lambda x: 0 * x
        case act.ReLU():
            return 0, FAR, lambda x: 0 * x
        case act.LeakyReLU(slope):
            return -FAR, FAR, lambda x: np.where(x < 0, (1 / slope - 1) * x**2 / 2, 0)
        case act.Box(low, high):
            return low, high, lambda x: 0 * x
        case act.SoftThreshold(threshold):
            return -FAR, FAR, lambda x: threshold * abs(x)
        case act.NonNegativeSoftThreshold(threshold):
            return 0, FAR, lambda x: threshold * x
        case act.Tanh():
            return -1, 1, lambda x: (xlog(1 + x) + xlog(1 - x)) / 2 - x**2 / 2
        case act.Sigmoid():
            return 0, 1, lambda x: xlog(x) + xlog(1 - x) - x**2 / 2
        case act.Softsign():
            return -1 + 1e-12, 1 - 1e-12, lambda x: -abs(x) - np.log1p(-abs(x)) - x**2 / 2
        case act.Arctan():
            end = math.pi / 2 - 1e-12
            return -end, end, lambda x: -np.log(np.cos(x)) - x**2 / 2
        case act.ISRU():
            return -1, 1, lambda x: 1 - np.sqrt(1 - x**2) - x**2 / 2
        case act.Asinh():
            return -FAR, FAR, lambda x: np.cosh(x) - 1 - x**2 / 2
        case act.ELU(alpha):

            def elu(x: Array) -> Array:
                y = np.minimum(x, 0)
                return alpha * xlog(1 + y / alpha) - y - y**2 / 2

            return -alpha, FAR, elu
        case act.Softplus():
            return 0, FAR, lambda x: spence(-np.expm1(-np.maximum(x, 0).astype(float)))
        case act.FromScalar(function=torch.tanh):
            return scalar_case(act.Tanh())
        case act.FromScalar(function=torch.nn.functional.hardsigmoid):
            return 0, 1, lambda x: 3 * x**2 - 3 * x - x**2 / 2
    raise KeyError(activation)


def joint_case(activation: Activation) -> tuple[float, float, Callable[[Array], Array]]:
    """The ends of each component's domain and Ψ of a vector (last axis); infinity outside."""
    match activation:
        case act.Softmax():
            return 0, 1, lambda x: (xlog(x) - x**2 / 2).sum(-1)
        case act.Sparsemax():
            return 0, 1, lambda x: 0 * x.sum(-1)
        case act.GroupSoftThreshold(threshold):
            return -FAR, FAR, lambda x: threshold * np.sqrt((x**2).sum(-1))
        case act.BallProjection(radius):
            return -radius, radius, lambda x: np.where((x**2).sum(-1) <= radius**2 * (1 + 1e-15), 0, np.inf)
    low, high, psi = scalar_case(activation)
    return low, high, lambda x: psi(x).sum(-1)


def penalty_value(penalty: pen.Penalty, x: Array) -> Array:
    """R(x) over the last axis; constraints are put into the ranges of the search instead."""
    match penalty:
        case pen.L1(weight):
            return weight * abs(x).sum(-1)
        case pen.SquaredL2(weight):
            return weight * (x**2).sum(-1) / 2
        case pen.GroupL2(weight, None):
            return weight * np.sqrt((x**2).sum(-1))
        case pen.NonNegative() | pen.Bounds():
            return 0 * x.sum(-1)
    raise KeyError(penalty)


def limits(penalty: pen.Penalty) -> tuple[float, float]:
    match penalty:
        case pen.NonNegative():
            return 0, math.inf
        case pen.Bounds(low, high):
            return low, high
    return -math.inf, math.inf


def golden(objective: Callable[[Array], Array], low: Array, high: Array, steps: int) -> tuple[Array, Array]:
    """Minimiser and minimum of convex functions, elementwise, by golden-section search; the ends are candidates too."""
    ratio = (np.sqrt(np.longdouble(5)) - 1) / 2
    candidates = [low, high]
    low, high = low.copy(), high.copy()
    inner = [high - ratio * (high - low), low + ratio * (high - low)]
    values = [objective(inner[0]), objective(inner[1])]
    for _ in range(steps):
        left = values[0] <= values[1]
        low, high = np.where(left, low, inner[0]), np.where(left, inner[1], high)
        fresh = np.where(left, high - ratio * (high - low), low + ratio * (high - low))
        value = objective(fresh)
        inner = [np.where(left, fresh, inner[1]), np.where(left, inner[0], fresh)]
        values = [np.where(left, value, values[1]), np.where(left, values[0], value)]
    candidates.append((low + high) / 2)
    results = [objective(candidate) for candidate in candidates]
    best = np.argmin(results, axis=0)
    return np.choose(best, candidates), np.min(results, axis=0)


def brute_force(activation: Activation, penalty: pen.Penalty, v: Array, a: Array, b: Array) -> Array:
    """argmin_u ½‖u - v‖² + aΨ(u) + bR(u) for rows of two features, on the simplex of three; a, b go with the rows."""
    low, high, psi = joint_case(activation)
    least, most = limits(penalty)
    low, high = max(low, least, -6.0), min(high, most, 6.0)
    on_simplex = isinstance(activation, act.Softmax | act.Sparsemax)

    def objective(u: Array) -> Array:
        return ((u - v) ** 2).sum(-1) / 2 + a * psi(u) + b * penalty_value(penalty, u)

    def second_range(first: Array) -> tuple[Array, Array]:
        if on_simplex:  # low <= 1 - first - second <= high
            return np.maximum(low, 1 - first - high), np.minimum(high, 1 - first - low)
        if isinstance(activation, act.BallProjection):
            half = np.sqrt(np.maximum(activation.radius**2 - first**2, 0))
            return np.maximum(low, -half), np.minimum(high, half)
        return np.full_like(first, low), np.full_like(first, high)

    def complete(first: Array, second: Array) -> Array:
        return np.stack([first, second, 1 - first - second] if on_simplex else [first, second], axis=-1)

    def inner(first: Array) -> tuple[Array, Array]:
        return golden(lambda second: objective(complete(first, second)), *second_range(first), steps=46)

    first_low, first_high = low, high
    if on_simplex:
        first_low, first_high = max(low, 1 - 2 * high), min(high, 1 - 2 * low)
    ends = (np.full(v.shape[0], end, dtype=np.longdouble) for end in (first_low, first_high))
    first, _ = golden(lambda u: inner(u)[1], *ends, steps=46)
    return complete(first, inner(first)[0])


def brute_force_scalar(activation: Activation, penalty: pen.Penalty, v: Array, a: float, b: float) -> Array:
    low, high, psi = scalar_case(activation)
    least, most = limits(penalty)
    ends = (np.full(v.shape, end, dtype=np.longdouble) for end in (max(low, least), min(high, most)))

    def objective(u: Array) -> Array:
        return (u - v) ** 2 / 2 + a * psi(u) + b * penalty_value(penalty, u[..., None])

    return golden(objective, *ends, steps=80)[0]
