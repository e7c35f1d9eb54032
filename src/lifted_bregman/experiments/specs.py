"""Small objects named in text: "relu", "soft-threshold:0.09", "box:-1:1", "growing:5".

A spec is a name in kebab case and the object's settings in the order of its fields, each after a colon.  A number may
be inf or -inf; the object's constructor checks its range.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from lifted_bregman._text import from_text, unknown
from lifted_bregman.activations import (
    ELU,
    ISRU,
    Activation,
    Arctan,
    Asinh,
    BallProjection,
    Box,
    GroupSoftThreshold,
    Identity,
    LeakyReLU,
    NonNegativeSoftThreshold,
    ReLU,
    Sigmoid,
    Softmax,
    Softplus,
    Softsign,
    SoftThreshold,
    Sparsemax,
    Tanh,
)
from lifted_bregman.errors import NotProximalError, SettingError

ACTIVATIONS: dict[str, type[Activation]] = {
    "identity": Identity,
    "relu": ReLU,
    "leaky-relu": LeakyReLU,
    "box": Box,
    "soft-threshold": SoftThreshold,
    "non-negative-soft-threshold": NonNegativeSoftThreshold,
    "tanh": Tanh,
    "sigmoid": Sigmoid,
    "softmax": Softmax,
    "sparsemax": Sparsemax,
    "softsign": Softsign,
    "arctan": Arctan,
    "isru": ISRU,
    "asinh": Asinh,
    "elu": ELU,
    "softplus": Softplus,
    "group-soft-threshold": GroupSoftThreshold,
    "ball-projection": BallProjection,
}

_NOT_PROXIMAL = {"gelu", "silu", "swish", "mish", "hardswish", "hard-swish", "selu", "prelu", "glu", "hard-shrink"}


def activation(spec: str, known: Mapping[str, type[Activation]] = ACTIVATIONS) -> Activation:
    """The activation that a spec names, of a class in `known`."""
    name = spec.partition(":")[0]
    if name.lower() in _NOT_PROXIMAL:
        raise NotProximalError(
            f"the activation '{name}' is no proximal map, which must be non-decreasing and 1-Lipschitz: take one of "
            f"{', '.join(known)}."
        )
    return make(spec, known, "activation")  # type: ignore[no-any-return]


def make(spec: str, known: Mapping[str, Any], what: str) -> Any:
    """The object that a spec names, of a dataclass in `known`; `what` names its kind in errors."""
    name, *parts = spec.split(":")
    if name not in known:
        raise SettingError(unknown(what, name, known))
    kind = known[name]
    fields = plain_fields(kind)
    form = ":".join((name, *fields))
    if len(parts) > len(fields):
        raise SettingError(f"the {what} is '{spec}', which says more than {name} takes: write {form}.")
    settings = {}
    for (field, hint), text in zip(fields.items(), parts, strict=False):
        value = from_text(text)
        made = next((m for option in union_members(hint) if (m := plain(value, option)) is not None), None)
        if made is None and not (text == "none" and type(None) in union_members(hint)):
            raise SettingError(f"the {what} is '{spec}', but its {field} is '{text}': write {form}.")
        settings[field] = made
    missing = [f.name for f in dataclasses.fields(kind) if is_required(f) and f.name not in settings]
    if missing:
        raise SettingError(f"the {what} '{name}' needs its {' and '.join(missing)}: write {form}.")
    return kind(**settings)


def spec_of(value: Any, known: Mapping[str, Any]) -> str | None:
    """The spec that makes `value` again, None if there is none."""
    for name, kind in known.items():
        if type(value) is kind:
            spec = ":".join((name, *(_text(getattr(value, field)) for field in plain_fields(kind))))
            try:
                return spec if make(spec, known, "setting") == value else None
            except SettingError:
                return None
    return None


def plain_fields(kind: Any) -> dict[str, Any]:
    """The first fields of a dataclass that are numbers or booleans, with their types."""
    hints, found = get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        if not {int, float, bool} & set(union_members(hints[field.name])):
            break
        found[field.name] = hints[field.name]
    return found


def union_members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def plain(value: Any, kind: Any) -> Any:
    """`value` as an int, float, str or bool, whichever `kind` is; None if it is of another type, or NaN."""
    if kind is float and type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:
            return None
        return None if math.isnan(number) else number
    return value if type(value) is kind and kind in (int, str, bool) else None


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Whether a field of a dataclass has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def kebab(name: str) -> str:
    """ "TopDown" -> "top-down"; capitals in a row stay together."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def by_kebab_name(kinds: Iterable[Any]) -> dict[str, Any]:
    """Classes by their names in kebab case."""
    return {kebab(kind.__name__): kind for kind in kinds}


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, float | int) and not isinstance(value, bool) else str(value).lower()
