"""The proximal map of an activation's potential and a penalty together: the non-smooth half of a variable's update.

    composite_prox(activation, penalty, v, a, b) = prox_{aΨ + bR}(v) = argmin_u ½‖u - v‖² + a Ψ(u) + b R(u)

P is prox_{aΨ}, α the weight of the penalty, θ the threshold of the activation.  The first row that fits is used.

    penalty      activation                          rule
    -----------  ----------------------------------  ----------------------------------------------------------
    any          any that `register_prox` was given  the registered rule
    none         any                                 P(v)
    SquaredL2    any                                 prox_{aΨ/k}(v/k), k = 1 + bα
    L1           softmax, sparsemax                  P(v): ‖u‖₁ = 1 on the simplex
    L1           separable or radial with σ(0) = 0   P(prox_{bR}(v))
    L1           separable                           median(P(v - bα), 0, P(v + bα))
    NonNegative  softmax, sparsemax                  P(v)
    NonNegative  radial                              P(max(v, 0))
    NonNegative  separable                           max(P(v), 0)
    Box          separable                           min(max(P(v), low), high)
    Box          softmax, sparsemax                  u_j(ν) limited to the box, with Σ u_j(ν) = 1
    Box          ball                                κv limited to the box, the largest κ <= 1 with norm <= radius
    Box          group soft threshold                v/(1 + aθ/t) limited to the box, with t its norm
    GroupL2      radial                              P(prox_{bR}(v))
    GroupL2      positively homogeneous              prox_{bR}(P(v))
    GroupL2      any other                           x(bα/t), x(μ) = prox_{aΨ/(1+μ)}(v/(1+μ)), with t = ‖x(bα/t)‖
    any other    identity                            prox_{bR}(v)

Separable: σ acts on each number alone.  Radial: Ψ depends on ‖u‖ only (group soft threshold, ball).  Positively
homogeneous: separable with Ψ(κu) = κΨ(u) for κ > 0 (identity, ReLU, soft thresholds).  With a separable activation
GroupL2 may have groups of any size; with a joint one its group is the whole last dimension.

Why they hold:

- L1, separable.  The minimiser of f(u) + β|u| in one dimension is that of f(u) + βu if it is positive, that of
  f(u) - βu if it is negative, and 0 otherwise.
- Separable, NonNegative or Box.  A convex function of one number, limited to an interval, has its minimum at the point
  of the interval that is nearest to the unlimited minimum.
- Radial, L1, NonNegative or GroupL2.  R is positively homogeneous.  With y = prox_{bR}(v) and u = P(y) = κy, κ >= 0,
  the subgradient (v - y)/b of R at y is one at κy too.
- Positively homogeneous, GroupL2.  The same with the roles of Ψ and R exchanged.
- Others, GroupL2.  β‖u‖ is the minimum over t > 0 of ½β(‖u‖²/t + t), convex in (u, t).  For fixed t the best u is
  x(β/t), and the derivative in t of what is left is ½β(1 - ‖x(β/t)‖²/t²): ‖x(β/t)‖/t decreases, to 1 at the solution.

Roots are found in float64, also for float32 data, by `increasing_root`: at most 66 evaluations and about 10 as a rule.
κ, ν and t are one root per sample or group.  Inside ν, softmax has Newton's method for each component.  Inside t, a
separable activation has one root per component, (1 + μ)σ(s) + a(s - σ(s)) = v for x(μ) = σ(s), in which rounding errors
of σ count a times if a > 1; softmax and joint activations of others are evaluated sample by sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman.activations._base import Activation, Separable
from lifted_bregman.activations._root import increasing_root
from lifted_bregman.activations.piecewise import Identity, NonNegativeSoftThreshold, ReLU, SoftThreshold
from lifted_bregman.activations.simplex import Softmax, Sparsemax
from lifted_bregman.activations.vectors import BallProjection, GroupSoftThreshold
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.penalties import L1, Box, GroupL2, NonNegative, Penalty, SquaredL2
from lifted_bregman.penalties.registry import ProxRule, registered_prox


@torch.no_grad()
def composite_prox(
    activation: Activation, penalty: Penalty | None, v: Tensor, activation_scale: float, penalty_scale: float | Tensor
) -> Tensor:
    """prox_{aΨ + bR}(v) = argmin_u ½‖u - v‖² + a Ψ(u) + b R(u), by the rules at the top of this module.

    activation_scale  a > 0
    penalty_scale     b > 0; a tensor () on the device of v is read by the host for some rules only
    """
    a = positive(activation_scale, "activation_scale")
    if penalty is None:
        return activation.prox(v, a)
    activation._require(v, "v")
    rule = _find_rule(activation, penalty)
    b: Any = penalty_scale
    if not (isinstance(b, Tensor) and rule in _ON_DEVICE):
        b = positive(float(b) if isinstance(b, Tensor) else b, "penalty_scale")
    _require_feasible(activation, penalty, v.shape[-1])
    return rule(activation, penalty, v, a, b) if v.numel() else v.clone()


@torch.no_grad()
def require_composable(activation: Activation, penalty: Penalty | None, features: int | None = None) -> None:
    """Raises `CompatibilityError` unless `composite_prox` can combine the two.

    features  the size of the last dimension, if known: some constraints can be met, and groups fit, for some sizes only
    """
    if penalty is not None:
        _find_rule(activation, penalty)
        _require_feasible(activation, penalty, features)


# Rules.  Each is called with (activation, penalty, v, a, b).


def _activation_alone(activation: Activation, penalty: Penalty, v: Tensor, a: float, b: float) -> Tensor:
    return activation.prox(v, a)


def _penalty_first(activation: Activation, penalty: Penalty, v: Tensor, a: float, b: float) -> Tensor:
    return activation.prox(penalty.prox(v, b), a)


def _penalty_last(activation: Activation, penalty: Penalty, v: Tensor, a: float, b: float) -> Tensor:
    return penalty.prox(activation.prox(v, a), b)


def _rescaled(activation: Activation, penalty: SquaredL2, v: Tensor, a: float, b: float) -> Tensor:
    k = 1.0 + b * penalty.weight
    return activation.prox(v / k, a / k)


def _median(activation: Separable, penalty: L1, v: Tensor, a: float, b: float) -> Tensor:
    w, beta = v.double(), b * penalty.weight
    lower, upper = activation.prox(w - beta, a), activation.prox(w + beta, a)
    return _finished(activation, lower.clamp(min=0.0) + upper.clamp(max=0.0), v)


def _box_on_simplex(activation: Softmax | Sparsemax, penalty: Box, v: Tensor, a: float, b: float) -> Tensor:
    low, high = max(penalty.low, 0.0), min(penalty.high, 1.0)
    if (low, high) == (0.0, 1.0):
        return activation.prox(v, a)
    entropy = a if isinstance(activation, Softmax) else 0.0
    return _finished(activation, _simplex_point(_rows(v), entropy, low, high), v)


def _box_in_ball(activation: BallProjection, penalty: Box, v: Tensor, a: float, b: float) -> Tensor:
    w = _rows(v)

    def limited(factor: Tensor, rows: Tensor) -> Tensor:
        return (factor[:, None] * w[rows]).clamp(penalty.low, penalty.high)

    def beyond(factor: Tensor, rows: Tensor) -> Tensor:
        return _norm(limited(factor, rows)) - activation.radius

    factor, *_ = increasing_root(beyond, torch.zeros_like(w[:, 0]), torch.ones_like(w[:, 0]))
    return _finished(activation, limited(factor, _all_rows(w)), v)


def _box_and_norm(activation: GroupSoftThreshold, penalty: Box, v: Tensor, a: float, b: float) -> Tensor:
    w = _rows(v)

    def damped(mu: Tensor, rows: Tensor) -> Tensor:
        return (w[rows] / (1.0 + mu[:, None])).clamp(penalty.low, penalty.high)

    return _finished(activation, _with_norm_penalty(damped, w, a * activation.threshold), v)


def _group(activation: Activation, penalty: GroupL2, v: Tensor, a: float, b: float) -> Tensor:
    w = _rows(penalty.groups(v))

    def damped(mu: Tensor, rows: Tensor) -> Tensor:
        if isinstance(activation, Separable):
            return _damped_separable(activation, w[rows], mu[:, None], a)
        return _damped_joint(activation, w[rows], mu[:, None], a)

    return _finished(activation, _with_norm_penalty(damped, w, b * penalty.weight), v)


class _Kind(NamedTuple):
    """A property of activations, as the table and the error messages name it."""

    name: str
    holds: Callable[[Activation], bool]


def _is(*types: type) -> Callable[[Activation], bool]:
    return lambda activation: isinstance(activation, types)


def _keeps_zero(activation: Activation) -> bool:
    known = isinstance(activation, (Separable, GroupSoftThreshold, BallProjection))
    return known and _cached(_maps_zero_to_zero, activation)


def _cached(fact: Callable[..., bool], activation: Activation, *settings: float) -> bool:
    """A fact about an activation, found once."""
    try:
        return _known(fact, activation, *settings)
    except TypeError:  # a user's activation without a hash
        return fact(activation, *settings)


@lru_cache
def _known(fact: Callable[..., bool], activation: Activation, *settings: float) -> bool:
    return fact(activation, *settings)


def _maps_zero_to_zero(activation: Activation) -> bool:
    return float(activation(torch.zeros(1, dtype=torch.float64))) == 0.0


def _contains_nearest(activation: Activation, low: float, high: float) -> bool:
    """Whether the point of [low, high] that is nearest to σ(0) is in the domain."""
    return bool(activation.contains(activation(torch.zeros(1, dtype=torch.float64)).clamp(low, high)))


_ANY = _Kind("any activation", lambda activation: True)
_SEPARABLE = _Kind("an activation that acts on each number alone", _is(Separable))
_SIMPLEX = _Kind("Softmax or Sparsemax", _is(Softmax, Sparsemax))
_RADIAL = _Kind("GroupSoftThreshold or BallProjection", _is(GroupSoftThreshold, BallProjection))
_BALL = _Kind("BallProjection", _is(BallProjection))
_GROUP = _Kind("GroupSoftThreshold", _is(GroupSoftThreshold))
_KEEPS_ZERO = _Kind("GroupSoftThreshold or BallProjection", _keeps_zero)
_IDENTITY = _Kind("Identity", _is(Identity))
_HOMOGENEOUS = _Kind(_SEPARABLE.name, _is(Identity, ReLU, SoftThreshold, NonNegativeSoftThreshold))

_RULES: tuple[tuple[type[Penalty], _Kind, ProxRule], ...] = (
    (SquaredL2, _ANY, _rescaled),
    (L1, _SIMPLEX, _activation_alone),
    (L1, _KEEPS_ZERO, _penalty_first),
    (L1, _SEPARABLE, _median),
    (NonNegative, _SIMPLEX, _activation_alone),
    (NonNegative, _RADIAL, _penalty_first),
    (NonNegative, _SEPARABLE, _penalty_last),
    (Box, _SEPARABLE, _penalty_last),
    (Box, _SIMPLEX, _box_on_simplex),
    (Box, _BALL, _box_in_ball),
    (Box, _GROUP, _box_and_norm),
    (GroupL2, _RADIAL, _penalty_first),
    (GroupL2, _HOMOGENEOUS, _penalty_last),
    (GroupL2, _ANY, _group),
    (Penalty, _IDENTITY, _penalty_last),
)


_ON_DEVICE = (_activation_alone, _penalty_first, _penalty_last, _median)
"""Rules whose b may be a tensor ()."""


def _find_rule(activation: Activation, penalty: Penalty) -> ProxRule:
    if penalty.of_matrices:
        raise CompatibilityError(
            f"{penalty} is a function of matrices, and a variable is one vector for each sample: give it to "
            "parameter_penalties instead."
        )
    registered = registered_prox(activation, penalty)
    if registered is not None:
        return registered
    for penalty_type, kind, rule in _RULES:
        if isinstance(penalty, penalty_type) and kind.holds(activation):
            return rule
    partners = list(dict.fromkeys(kind.name for penalty_type, kind, _ in _RULES if isinstance(penalty, penalty_type)))
    own, other = type(activation).__name__, type(penalty).__name__
    with_rules = ", ".join(dict.fromkeys(row[0].__name__ for row in _RULES if row[0] is not Penalty))
    raise CompatibilityError(
        f"The proximal map of {activation} and {penalty} together is not known.  Required: {other} can be combined "
        f"with {', with '.join(partners)}.  Missing: {own} is none of these.  Register a function that computes it, "
        f"lb.penalties.register_prox({own}, {other}), or use one of {with_rules}, which have rules for every "
        "activation that acts on each number alone."
    )


def _require_feasible(activation: Activation, penalty: Penalty, features: int | None) -> None:
    """The domain of Ψ meets the constraint, and groups fit: what depends on the settings rather than on the types."""
    if isinstance(penalty, GroupL2) and features is not None:
        if activation.joint and penalty.group_size not in (None, features):
            raise CompatibilityError(
                f"{activation} couples all {features} features, and {penalty} has groups of {penalty.group_size}; with "
                "a joint activation the group must be the whole dimension: leave out group_size."
            )
        penalty.groups(torch.empty(features))
    if isinstance(penalty, (Box, NonNegative)):
        low, high, n = penalty.low, penalty.high, features or 1
        nearest = min(max(0.0, low), high)
        if isinstance(activation, (Softmax, Sparsemax)):
            feasible = features is None or n * max(low, 0.0) - 1e-12 <= 1.0 <= n * min(high, 1.0) + 1e-12
        elif isinstance(activation, BallProjection):
            feasible = math.sqrt(n) * abs(nearest) <= activation.radius * (1.0 + 1e-12)
        elif activation.joint:
            feasible = True
        else:  # the domain is an interval around σ(0); it meets the box if it has the box's nearest point to σ(0)
            feasible = _cached(_contains_nearest, activation, low, high)
        if not feasible:
            raise CompatibilityError(
                f"No output of {activation}{f' with {n} features' if activation.joint else ''} satisfies {penalty}; "
                "they must have a point in common: widen the constraint or choose another activation."
            )


# Solves.  Samples, or their groups, are rows (m, n) of float64; `rows` are indices into them.


def _rows(v: Tensor) -> Tensor:
    return v.double().masked_fill(v.isnan(), 0.0).reshape(-1, v.shape[-1])


def _finished(activation: Activation, x: Tensor, v: Tensor) -> Tensor:
    """x with the dtype, shape and NaN of v; where rounding led out of an open domain, the next number inside it."""
    u = x.to(v.dtype).view(v.shape)
    if u.dtype != x.dtype and isinstance(activation, Separable):
        u = torch.where(activation._inside(u), u, torch.nextafter(u, activation(torch.zeros_like(u))))
    return torch.where(v.isnan(), v, u)


def _all_rows(w: Tensor) -> Tensor:
    return torch.arange(len(w), device=w.device)


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norm


def _with_norm_penalty(damped: Callable[[Tensor, Tensor], Tensor], w: Tensor, beta: float) -> Tensor:
    """argmin_u ½‖u - w‖² + aΨ(u) + β‖u‖ for each row of w, from damped(μ, rows) = argmin_u ½‖u - w‖² + aΨ(u) + ½μ‖u‖².

    u = damped(β/t) with t = ‖u‖, at most the norm without penalty.  A norm below 2⁻⁸⁰ of that is taken as 0.
    """
    rows = _all_rows(w)
    t_max = _norm(damped(torch.zeros_like(w[:, 0]), rows)).clamp(min=1e-280)
    t_min = t_max * 2.0**-80

    def missing(t: Tensor, rows: Tensor) -> Tensor:
        return 1.0 - _norm(damped(beta / t, rows)) / t

    _, t, _, _ = increasing_root(missing, t_min, t_max)
    return torch.where((t > t_min)[:, None], damped(beta / t, rows), 0.0)


def _damped_separable(activation: Separable, w: Tensor, mu: Tensor, a: float) -> Tensor:
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


def _damped_joint(activation: Activation, w: Tensor, mu: Tensor, a: float) -> Tensor:
    """argmin_u ½‖u - w‖² + aΨ(u) + ½μ‖u‖² = prox_{aΨ/(1+μ)}(w/(1+μ)), where μ (m, 1) differs from row to row."""
    if isinstance(activation, Sparsemax):
        return activation(w / (1.0 + mu))  # an indicator has no scale
    factors = 1.0 / (1.0 + mu)
    return torch.stack([activation.prox(row * k, a * float(k)) for row, k in zip(w, factors, strict=True)])


def _simplex_point(w: Tensor, a: float, low: float, high: float) -> Tensor:
    """argmin_u ½‖u - w‖² + a Σ (u_j log u_j - ½u_j²) over Σ u_j = 1, low <= u_j <= high, for each row of w.

    u_j is the solution, limited to [low, high], of g(u_j) = u_j + a (log u_j - u_j + 1) = w_j - ν.  g increases up to
    u_j = 1.  At ν = max w - g(1/n) no u_j is above 1/n, at ν = min w - g(1/n) none is below; between them Σ u_j = 1.  A
    second search, relative to the ν that the first one found, restores the digits that a large spread of w takes away.
    """
    n, rows = w.shape[-1], _all_rows(w)
    top, bottom = w.amax(-1), w.amin(-1)
    g = 1.0 / n - a * (1.0 / n - 1.0 + math.log(n))

    def search(base: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        def point(offset: Tensor, rows: Tensor) -> Tensor:
            return _simplex_component((w[rows] - base[rows, None]) - offset[:, None], a).clamp(low, high)

        below, above, short, over = increasing_root(lambda nu, rows: 1.0 - point(nu, rows).sum(-1), least, most)
        offset = torch.where(short.abs() < over.abs(), below, above)
        return point(offset, rows), base + offset

    _, nu = search(top - g, bottom - top, torch.zeros_like(top))
    margin = 2.0**-48 * (top.abs() + bottom.abs() + abs(g))
    return search(nu - 2.0 * margin, margin, 3.0 * margin)[0]


COMPONENT_LIMIT = 24
"""Newton iterations on a component of softmax (tests count them)."""
_ANCHORS = (0.0, 0.5, 1.5, 4.0, 10.0, 25.0, 750.0)


def _simplex_component(r: Tensor, a: float) -> Tensor:
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
