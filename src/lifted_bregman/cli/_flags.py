"""The flags of `lifted train` and `lifted resume`, made from the fields of `Settings`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from cyclopts import Parameter
from docstring_parser import parse_from_object

from lifted_bregman._text import from_text
from lifted_bregman.experiments.settings import SETTING_NAMES, WHEN_NONE, Settings


def setting_flags(help: Mapping[str, str] | None = None) -> Any:
    """The type of a command's parameter that holds the given flags of `Settings`, as text by the name of the setting.

    Declare it as `settings: Annotated[setting_flags(), Parameter(name="*")]`.  A flag has the name of its field, with
    hyphens.  Its help is the field's docstring and default.

    help: help texts that replace the docstrings; only these settings become flags.
    """
    texts = {
        entry.arg_name: " ".join((entry.description or "").split()) for entry in parse_from_object(Settings).params
    }
    hints, chosen = get_type_hints(Settings), help or {name: f"{texts[name]}{_default(name)}" for name in SETTING_NAMES}
    flags = {
        name: Annotated[str, Parameter(help=words, metavar=_metavar(hints[name]))] for name, words in chosen.items()
    }
    return TypedDict("SettingFlags", flags, total=False)  # type: ignore[operator]


def entries_of(flags: Mapping[str, str]) -> dict[str, Any]:
    """The entries of a settings file that mean the same as flags: numbers where the setting takes no text."""
    hints = get_type_hints(Settings)
    return {name: text if _takes_text(hints[name]) else from_text(text) for name, text in flags.items()}


def _takes_text(hint: Any) -> bool:
    """Whether a value is text, or a list, which may be written as text."""
    return any(kind is str or get_origin(kind) in (tuple, Literal) for kind in (hint, *get_args(hint)))


def _default(name: str) -> str:
    value = next(entry.default for entry in fields(Settings) if entry.name == name)
    words = WHEN_NONE.get(name) if value is None else ",".join(value) if isinstance(value, tuple) else str(value)
    return "" if words is None or name == "data" else f" [default: {words}]"


def _metavar(hint: Any) -> str:
    kinds: Iterable[Any] = (hint, *get_args(hint))
    for kind in kinds:
        if get_origin(kind) is tuple:
            return "NAMES" if str in get_args(kind) else "NUMBERS"
        if get_origin(kind) is Literal:
            return "WORD"
    return "NAME" if str in kinds else "NUMBER"
