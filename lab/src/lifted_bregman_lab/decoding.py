"""Records from JSON: dataclasses and typed dicts, with every value checked against its type."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict


def decode(value: Any, hint: Any, name: str = "the file") -> Any:
    """Convert a JSON value to the type `hint`; raise ValueError with its name if it has another type.

    Types are dataclasses, TypedDicts, tuples, lists, sequences and mappings of one type, tuples with a type for each
    place, "a type or None", enums by the names of their members, Any, str, int, bool, and float, for which whole
    numbers count and NaN and ∞ do not.
    """
    kind, options = get_origin(hint) or hint, get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        types = get_type_hints(hint)
        return hint(**{key: decode(entry, types[key], key) for key, entry in value.items()})
    if is_typeddict(hint):
        return value | {key: decode(value[key], entry, key) for key, entry in get_type_hints(hint).items()}
    if kind is UnionType:
        return None if value is None else decode(value, options[0], name)
    if kind is tuple and options[-1] is not Ellipsis and isinstance(value, list):
        return tuple(decode(entry, option, name) for entry, option in zip(value, options, strict=True))
    if kind in (tuple, list, Sequence) and isinstance(value, list):
        entries = (decode(entry, options[0], name) for entry in value)
        return tuple(entries) if kind is tuple else list(entries)
    if kind in (dict, Mapping) and isinstance(value, dict):
        return {key: decode(entry, options[1], key) for key, entry in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint[value]
    if kind is float:
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise ValueError(f"'{name}' is no number")
    elif kind is not Any and type(value) is not kind:
        raise ValueError(f"'{name}' is {str(value)[:50]!r}")
    return value
