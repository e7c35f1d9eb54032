"""Rules for prox_{aΨ + bR} that users register, by the types of the activation and of the penalty."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from lifted_bregman.activations import Activation
from lifted_bregman.errors import SettingError, TensorError
from lifted_bregman.penalties.vectors import Penalty

ProxRule = Callable[[Any, Any, Tensor, float, float], Tensor]
"""(activation, penalty, v, a, b) -> argmin_u ½‖u - v‖² + a Ψ(u) + b R(u)."""

_LIBRARY = "lifted_bregman."
_RULES: dict[tuple[type[Activation], type[Penalty]], ProxRule] = {}


def register_prox(activation_type: type[Activation], penalty_type: type[Penalty]) -> Callable[[ProxRule], ProxRule]:
    """Registers the proximal map of a potential and a penalty together, which a penalty on hidden layers needs.

        rule(activation, penalty, v, a, b) = prox_{aΨ + bR}(v) = argmin_u ½‖u - v‖² + a Ψ(u) + b R(u),   a, b > 0

    v is (..., n), float32 or float64; the rule returns u in its shape and dtype, inside the domain of Ψ, and autograd
    does not follow it.  As a decorator:

    .. code-block:: python

        @lb.penalties.register_prox(lb.activations.Separable, OneSided)
        def one_sided(activation, penalty, v, a, b):
            above = activation.prox(v - b * penalty.weight, a)
            below = activation.prox(v, a)
            return above.clamp(min=0.0) + below.clamp(max=0.0)

    `Identity` needs no rule: the penalty's own proximal map is used.  `lb.check_penalty(penalty, x, activation)` tests
    a rule.  A second rule for the same types replaces the first.  If several rules fit, the one for the nearest class
    of the penalty is used, and among these the one for the nearest class of the activation.  A registered rule takes
    precedence over those of the library.  Register the rule in the module that defines the classes: worker processes
    import that module, and then have the rule too.

    Args:
        activation_type: a class; the rule is used for its subclasses too: `Separable` for every activation that acts on
            each number alone, `Activation` for every one.
        penalty_type: a class, for which and for whose subclasses the rule is used.
    """
    # Classes, at least one of them written by the user
    _require_class(activation_type, Activation, "activation_type", "lb.activations.Activation")
    _require_class(penalty_type, Penalty, "penalty_type", "lb.penalties.Penalty")
    kinds = f"{activation_type.__name__} and {penalty_type.__name__}"
    if activation_type.__module__.startswith(_LIBRARY) and penalty_type.__module__.startswith(_LIBRARY):
        raise SettingError(
            f"the library has a rule for {kinds} or none is possible: register rules for classes that you have written."
        )

    def register(rule: ProxRule) -> ProxRule:
        if not callable(rule):
            raise SettingError(
                f"the rule for {kinds} is {rule!r}; it must be a function of (activation, penalty, v, a, b)."
            )

        # The stored rule checks shape and dtype of what the user's rule returns
        @wraps(rule)
        def checked(activation: Activation, penalty: Penalty, v: Tensor, a: float, b: float) -> Tensor:
            u = rule(activation, penalty, v, a, b)
            if not isinstance(u, Tensor) or u.shape != v.shape or u.dtype != v.dtype:
                returned = f"{tuple(u.shape)} of {u.dtype}" if isinstance(u, Tensor) else type(u).__name__
                raise TensorError(
                    f"the rule registered for {kinds} returned {returned}; it must return a tensor {tuple(v.shape)} of "
                    f"{v.dtype}, as v is."
                )
            return u

        _RULES[activation_type, penalty_type] = checked
        return rule

    return register


def registered_prox(activation: Activation, penalty: Penalty) -> ProxRule | None:
    """The registered rule for an activation and a penalty, or None.

    Of several that fit, it is the one for the nearest class of the penalty, and then of the activation (by MRO).
    """
    activations, penalties = type(activation).__mro__, type(penalty).__mro__
    fitting = [kinds for kinds in _RULES if kinds[0] in activations and kinds[1] in penalties]
    if not fitting:
        return None
    return _RULES[min(fitting, key=lambda kinds: (penalties.index(kinds[1]), activations.index(kinds[0])))]


def _require_class(kind: object, base: type, name: str, shown: str) -> None:
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise SettingError(f"{name} is {kind!r}; it must be a class, a subclass of {shown}, and not an instance.")
