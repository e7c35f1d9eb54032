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
    Bounds       separable                           min(max(P(v), low), high)
    Bounds       softmax, sparsemax                  u_j(ν) limited to the box, with Σ u_j(ν) = 1
    Bounds       ball                                κv limited to the box, the largest κ <= 1 with norm <= radius
    Bounds       group soft threshold                v/(1 + aθ/t) limited to the box, with t its norm
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
- Separable, NonNegative or Bounds.  A convex function of one number, limited to an interval, has its minimum at the
  point of the interval that is nearest to the unlimited minimum.
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
from lifted_bregman.activations import Activation, Separable
from lifted_bregman.activations.piecewise import Identity, NonNegativeSoftThreshold, ReLU, SoftThreshold
from lifted_bregman.activations.simplex import Softmax, Sparsemax
from lifted_bregman.activations.vectors import BallProjection, GroupSoftThreshold
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.penalties import L1, Bounds, GroupL2, NonNegative, Penalty, SquaredL2
from lifted_bregman.penalties.registry import ProxRule, registered_prox
from lifted_bregman.problem._composite_roots import (
    as_rows,
    box_in_ball_point,
    damped_joint,
    damped_separable,
    finished,
    simplex_point,
    with_norm_penalty,
)


@torch.no_grad()
def composite_prox(
    activation: Activation, penalty: Penalty | None, v: Tensor, activation_scale: float, penalty_scale: float | Tensor
) -> Tensor:
    """prox_{aΨ + bR}(v) = argmin_u ½‖u - v‖² + a Ψ(u) + b R(u), by the rules at the top of this module.

    activation_scale  a > 0
    penalty_scale     b > 0, a number or a tensor () on the device of v; some rules copy a tensor to the host

    Example:
        >>> v = torch.tensor([-2.0, 0.3, 1.0])
        >>> lb.composite_prox(lb.activations.ReLU(), lb.penalties.L1(0.5), v, 1.0, 1.0)
        tensor([0.0000, 0.0000, 0.5000])
    """
    a = positive(activation_scale, "activation_scale")
    if penalty is None:
        return activation.prox(v, a)
    activation._require(v, "v")
    rule = find_rule(activation, penalty)
    b: Any = penalty_scale
    if not (isinstance(b, Tensor) and rule in _ON_DEVICE):
        b = positive(float(b) if isinstance(b, Tensor) else b, "penalty_scale")
    _require_feasible(activation, penalty, v.shape[-1])
    return rule(activation, penalty, v, a, b) if v.numel() else v.clone()


@torch.no_grad()
def require_composable(activation: Activation, penalty: Penalty | None, features: int | None = None) -> None:
    """Raises `CompatibilityError` unless `composite_prox` can combine activation and penalty.

    features  the size of the last dimension, if known, on which constraints and groups may depend

    Example:
        >>> from lifted_bregman.problem.composite import require_composable
        >>> require_composable(lb.activations.Softmax(), lb.penalties.L1(0.1))
        >>> require_composable(lb.activations.Softmax(), lb.penalties.TotalVariation(0.1))
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CompatibilityError: TotalVariation(weight=0.1, dims=2, isotropic=True, ...
    """
    if penalty is not None:
        find_rule(activation, penalty)
        _require_feasible(activation, penalty, features)


# Rules.  Each is called with (activation, penalty, v, a, b).


def _activation_alone(activation: Activation, penalty: Penalty, v: Tensor, a: float, b: float) -> Tensor:
    return activation.prox(v, a)


def penalty_first(activation: Activation, penalty: Penalty, v: Tensor, a: float, b: float) -> Tensor:
    """prox_{aΨ}(prox_{bR}(v))."""
    return activation.prox(penalty.prox(v, b), a)


def penalty_last(activation: Activation, penalty: Penalty, v: Tensor, a: float, b: float) -> Tensor:
    """prox_{bR}(prox_{aΨ}(v))."""
    return penalty.prox(activation.prox(v, a), b)


def _rescaled(activation: Activation, penalty: SquaredL2, v: Tensor, a: float, b: float) -> Tensor:
    k = 1.0 + b * penalty.weight
    return activation.prox(v / k, a / k)


def _median(activation: Separable, penalty: L1, v: Tensor, a: float, b: float) -> Tensor:
    w, beta = v.double(), b * penalty.weight
    lower, upper = activation.prox(w - beta, a), activation.prox(w + beta, a)
    return finished(activation, lower.clamp(min=0.0) + upper.clamp(max=0.0), v)


def _box_on_simplex(activation: Softmax | Sparsemax, penalty: Bounds, v: Tensor, a: float, b: float) -> Tensor:
    low, high = max(penalty.low, 0.0), min(penalty.high, 1.0)
    if (low, high) == (0.0, 1.0):
        return activation.prox(v, a)
    entropy = a if isinstance(activation, Softmax) else 0.0
    return finished(activation, simplex_point(as_rows(v), entropy, low, high), v)


def _box_in_ball(activation: BallProjection, penalty: Bounds, v: Tensor, a: float, b: float) -> Tensor:
    return finished(activation, box_in_ball_point(as_rows(v), activation.radius, penalty.low, penalty.high), v)


def _box_and_norm(activation: GroupSoftThreshold, penalty: Bounds, v: Tensor, a: float, b: float) -> Tensor:
    w = as_rows(v)

    def damped(mu: Tensor, rows: Tensor) -> Tensor:
        return (w[rows] / (1.0 + mu[:, None])).clamp(penalty.low, penalty.high)

    return finished(activation, with_norm_penalty(damped, w, a * activation.threshold), v)


def _group(activation: Activation, penalty: GroupL2, v: Tensor, a: float, b: float) -> Tensor:
    w = as_rows(penalty.groups(v))

    def damped(mu: Tensor, rows: Tensor) -> Tensor:
        if isinstance(activation, Separable):
            return damped_separable(activation, w[rows], mu[:, None], a)
        return damped_joint(activation, w[rows], mu[:, None], a)

    return finished(activation, with_norm_penalty(damped, w, b * penalty.weight), v)


class _Kind(NamedTuple):
    """A property of activations, with its name in messages."""

    name: str
    holds: Callable[[Activation], bool]


def _is(*types: type) -> Callable[[Activation], bool]:
    return lambda activation: isinstance(activation, types)


def _keeps_zero(activation: Activation) -> bool:
    known = isinstance(activation, (Separable, GroupSoftThreshold, BallProjection))
    return known and _cached(_maps_zero_to_zero, activation)


def _cached(fact: Callable[..., bool], activation: Activation, *settings: float) -> bool:
    """fact(activation, *settings), computed once for each activation."""
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
    """Whether the domain contains the point of [low, high] nearest to σ(0)."""
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
    (L1, _KEEPS_ZERO, penalty_first),
    (L1, _SEPARABLE, _median),
    (NonNegative, _SIMPLEX, _activation_alone),
    (NonNegative, _RADIAL, penalty_first),
    (NonNegative, _SEPARABLE, penalty_last),
    (Bounds, _SEPARABLE, penalty_last),
    (Bounds, _SIMPLEX, _box_on_simplex),
    (Bounds, _BALL, _box_in_ball),
    (Bounds, _GROUP, _box_and_norm),
    (GroupL2, _RADIAL, penalty_first),
    (GroupL2, _HOMOGENEOUS, penalty_last),
    (GroupL2, _ANY, _group),
    (Penalty, _IDENTITY, penalty_last),
)


_ON_DEVICE = (_activation_alone, penalty_first, penalty_last, _median)
"""Rules whose b may be a tensor ()."""


def find_rule(activation: Activation, penalty: Penalty) -> ProxRule:
    """The function that computes prox_{aΨ + bR}: a registered one, or the first of `_RULES` that fits both.

    Raises `CompatibilityError` if there is none.
    """
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
    """Raises unless the domain of Ψ meets the constraint, and groups fit the number of features."""
    if isinstance(penalty, GroupL2) and features is not None:
        if activation.joint and penalty.group_size not in (None, features):
            raise CompatibilityError(
                f"{activation} couples all {features} features, and {penalty} has groups of {penalty.group_size}; with "
                "a joint activation the group must be the whole dimension: leave out group_size."
            )
        penalty.groups(torch.empty(features))
    if isinstance(penalty, (Bounds, NonNegative)):
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
