"""Values from a command line or a TOML file, made into the type that a setting has, or refused with both named."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Collection, Iterable
from typing import Any, Union, get_args, get_origin

from lifted_bregman._text import from_text
from lifted_bregman.errors import SettingError

_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_LISTS: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "words"}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "a table"}


def typed(name: str, value: Any, hint: Any) -> Any:
    """`value` as `hint` has it: int, float, str, bool, a tuple of one of them, or a union with None.

    A whole number is a number too; a single value stands for a list of one; text such as "784,64" is a list as well.
    """
    options = members(hint)
    if value is None and type(None) in options:
        return None
    for option in options:
        if get_origin(option) is tuple:
            return _listed(name, value, get_args(option)[0])
    for option in options:
        made = plain(value, option)
        if made is not None:
            return made
    raise SettingError(f"{name} is {value!r}{_kind(value, options)}; it must be {described(options)}.")


def members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def plain(value: Any, kind: Any, infinite: bool = False) -> Any:
    """`value` as an int, float, str or bool, or None if it is none.

    NaN is no number, and infinity is one only where it may be `infinite`.
    """
    if kind is float and type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) or (infinite and not math.isnan(number)) else None
    return value if type(value) is kind and kind in (int, str, bool) else None


def described(options: Iterable[Any]) -> str:
    """The types in words."""
    return " or ".join(_WORDS[option] for option in options if option in _WORDS)


def unknown(what: str, given: str, known: Collection[str], unlisted: Collection[str] = ()) -> str:
    """The sentences for a name that is not known: what may have been meant, and what there is.

    unlisted: names that may have been meant as well and are too many to be listed.
    """
    close = difflib.get_close_matches(given.lower(), [*known, *unlisted], n=1)
    meant = f"; did you mean '{close[0]}'?" if close else "."
    return f"there is no {what} '{given}'{meant} There are {', '.join(known)}."


def _listed(name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    entries = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, str):
        entries = [part.strip() if kind is str else from_text(part.strip()) for part in value.split(",")]
    made = [plain(entry, kind) for entry in entries]
    if None in made or "" in made:
        wrong = next(entry for entry, one in zip(entries, made, strict=True) if one is None or one == "")
        raise SettingError(
            f"{name} holds {wrong!r}{_kind(wrong, (kind,))}; it must be a list of {_LISTS[kind]}, such as "
            f"{'relu,tanh' if kind is str else '64,32'}."
        )
    return tuple(made)


def _kind(value: Any, options: Iterable[Any]) -> str:
    """ ", which is text": where that is not what is wrong with the value, nothing."""
    return "" if type(value) in options or type(value) not in _KINDS else f", which is {_KINDS[type(value)]}"
