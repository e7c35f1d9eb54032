"""Equations for the proximal map of a potential and a penalty, solved for all samples at once.

Samples, or their groups, are rows w (m, n) of float64.  A function that is given `rows` is evaluated for the rows with
these indices only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lifted_bregman.activations import Activation, Separable, Sparsemax
from lifted_bregman.activations.roots import increasing_root


def as_rows(v: Tensor) -> Tensor:
    """v as rows of float64, with 0 for NaN."""
    return v.double().masked_fill(v.isnan(), 0.0).reshape(-1, v.shape[-1])


def finished(activation: Activation, x: Tensor, v: Tensor) -> Tensor:
    """x in the dtype and shape of v, with v's NaN.

    Rounding to float32 may leave an open domain; the nearest number inside it is taken there.
    """
    u = x.to(v.dtype).view(v.shape)
    if u.dtype != x.dtype and isinstance(activation, Separable):
        u = torch.where(activation._inside(u), u, torch.nextafter(u, activation(torch.zeros_like(u))))
    return torch.where(v.isnan(), v, u)


def _row_numbers(w: Tensor) -> Tensor:
    return torch.arange(len(w), device=w.device)


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norm


def with_norm_penalty(damped: Callable[[Tensor, Tensor], Tensor], w: Tensor, beta: float) -> Tensor:
    """argmin_u ½‖u - w‖² + aΨ(u) + β‖u‖ for each row of w, from damped(μ, rows) = argmin_u ½‖u - w‖² + aΨ(u) + ½μ‖u‖².

    u = damped(β/t) with t = ‖u‖, at most the norm without penalty.  A norm below 2⁻⁸⁰ of that is taken as 0.
    """
    rows = _row_numbers(w)
    t_max = _norm(damped(torch.zeros_like(w[:, 0]), rows)).clamp(min=1e-280)
    t_min = t_max * 2.0**-80

    def residual(t: Tensor, rows: Tensor) -> Tensor:
        return 1.0 - _norm(damped(beta / t, rows)) / t

    _, t, _, _ = increasing_root(residual, t_min, t_max)
    return torch.where((t > t_min)[:, None], damped(beta / t, rows), 0.0)


def damped_separable(activation: Separable, w: Tensor, mu: Tensor, a: float) -> Tensor:
    """argmin_u ½‖u - w‖² + aΨ(u) + ½μ‖u‖² = σ(s) with (1 + μ)σ(s) + a(s - σ(s)) = w, for rows w and μ (m, 1).

    The left side has slopes between a and 1 + μ.  Where they are far apart the equation itself, solved for u = σ(s),
    gives more digits of a small u than σ at a rounded s; σ at the two ends of the bracket limits it.
    """
    target, k = w.flatten(), (1.0 + mu).expand_as(w).flatten()
    from_zero = target - (k - a) * activation(torch.zeros_like(target[:1]))
    ends = torch.stack([from_zero / k.clamp(min=a), from_zero / k.clamp(max=a)]).sort(0).values

    def residual(s: Tensor, rows: Tensor) -> Tensor:
        u = activation(s)
        return k[rows] * u + a * (s - u) - target[rows]

    low, high, below, above = increasing_root(residual, ends[0], ends[1])
    lower, upper = activation(low), activation(high)
    nearest = torch.where(below.abs() < above.abs(), lower, upper)
    solved = ((target - a * high) / (k - a)).clamp(lower, upper)
    return torch.where(k > 2.0 * a, solved, nearest).view_as(w)


def damped_joint(activation: Activation, w: Tensor, mu: Tensor, a: float) -> Tensor:
    """argmin_u ½‖u - w‖² + aΨ(u) + ½μ‖u‖² = prox_{aΨ/(1+μ)}(w/(1+μ)), where μ (m, 1) differs from row to row."""
    if isinstance(activation, Sparsemax):
        return activation(w / (1.0 + mu))  # an indicator has no scale
    factors = 1.0 / (1.0 + mu)
    return torch.stack([activation.prox(row * k, a * float(k)) for row, k in zip(w, factors, strict=True)])


def box_in_ball_point(w: Tensor, radius: float, low: float, high: float) -> Tensor:
    """argmin_u ½‖u - w‖² over low <= u_j <= high and ‖u‖ <= radius, for each row of w.

    u = κw limited to [low, high], with the largest κ <= 1 at which its norm is at most the radius.
    """

    def limited(kappa: Tensor, rows: Tensor) -> Tensor:
        return (kappa[:, None] * w[rows]).clamp(low, high)

    def excess(kappa: Tensor, rows: Tensor) -> Tensor:
        return _norm(limited(kappa, rows)) - radius

    kappa, *_ = increasing_root(excess, torch.zeros_like(w[:, 0]), torch.ones_like(w[:, 0]))
    return limited(kappa, _row_numbers(w))


def simplex_point(w: Tensor, a: float, low: float, high: float) -> Tensor:
    """argmin_u ½‖u - w‖² + a Σ (u_j log u_j - ½u_j²) over Σ u_j = 1, low <= u_j <= high, for each row of w.

    u_j is the solution, limited to [low, high], of g(u_j) = u_j + a (log u_j - u_j + 1) = w_j - ν.  g increases up to
    u_j = 1.  At ν = max w - g(1/n) no u_j is above 1/n, at ν = min w - g(1/n) none is below; between them Σ u_j = 1.  A
    second search, relative to the ν that the first one found, restores the digits that a large spread of w takes away.
    """
    n, rows = w.shape[-1], _row_numbers(w)
    top, bottom = w.amax(-1), w.amin(-1)
    g = 1.0 / n - a * (1.0 / n - 1.0 + math.log(n))

    def search(base: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        def point(offset: Tensor, rows: Tensor) -> Tensor:
            return simplex_component((w[rows] - base[rows, None]) - offset[:, None], a).clamp(low, high)

        below, above, short, over = increasing_root(lambda nu, rows: 1.0 - point(nu, rows).sum(-1), least, most)
        offset = torch.where(short.abs() < over.abs(), below, above)
        return point(offset, rows), base + offset

    _, nu = search(top - g, bottom - top, torch.zeros_like(top))
    margin = 2.0**-48 * (top.abs() + bottom.abs() + abs(g))
    return search(nu - 2.0 * margin, margin, 3.0 * margin)[0]


COMPONENT_LIMIT = 24
"""Newton iterations on a component of softmax (tests count them)."""
_ANCHORS = (0.0, 0.5, 1.5, 4.0, 10.0, 25.0, 750.0)


def simplex_component(r: Tensor, a: float) -> Tensor:
    """u <= 1 with g(u) = u + a (log u - u + 1) = r, or 1 if g(1) = 1 is still below r, by Newton's method on y = log u.

    g(e^y) is increasing for y <= 0, convex if a <= 1 and concave otherwise.  A Newton step from anywhere leads to an
    upper, respectively lower, bound of the root, from which the iteration is monotone; the best of several starts it.
    """
    if a == 0.0:
        return r.clone()

    def newton(y: Tensor) -> Tensor:
        u = y.exp()
        return (y - (u - a * (y.expm1() - y) - r) / ((1.0 - a) * u + a)).clamp(-750.0, 0.0)

    bounds = torch.stack([newton(torch.full_like(r, -anchor)) for anchor in _ANCHORS])
    y = bounds.amin(0) if a <= 1.0 else bounds.amax(0)
    for _ in range(COMPONENT_LIMIT):
        last, y = y, newton(y)
        if bool(((y - last).abs() <= 1e-11 * (1.0 + y.abs())).all()):
            break
    return y.exp()
