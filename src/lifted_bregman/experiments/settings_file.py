"""Settings as a TOML file: read with every mistake named, and written so that it can be read again."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from lifted_bregman._text import from_text
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments._typed import members, typed, unknown
from lifted_bregman.experiments.settings import Settings, names

_MOST_BYTES = 1 << 20
_MOST_PARTS = 100  # of a dotted name; settings have one, those of the solver two


def read_entries(path: Path) -> dict[str, Any]:
    """The entries of a TOML file, not yet checked."""
    try:
        with path.open("rb") as file:
            return _parse(path, file.read(_MOST_BYTES + 1))
    except OSError as error:
        raise SettingError(f"{path} cannot be read ({error.strerror}): name a TOML file of settings.") from error


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    if len(content) > _MOST_BYTES:
        raise SettingError(f"{path} is above {_MOST_BYTES:,} bytes: it is no file of settings.")
    try:
        text = content.decode("utf-8-sig")
        _require_short_names(path, text)
        return tomllib.loads(text)
    except SettingError:
        raise
    except (ValueError, RecursionError) as error:  # also of text that is no UTF-8, and of thousands of digits
        raise SettingError(f"{path} is no TOML file: {error}; write lines such as epochs = 5.") from error


def _require_short_names(path: Path, text: str) -> None:
    """SettingError if a name has very many parts, as a.a.a.a: the time that tomllib takes grows with their square."""
    parts = 0
    for piece in text.split("."):  # what stands between two dots of a name holds none of these
        parts = 1 if any(mark in piece for mark in ",=\n") else parts + 1
        if parts > _MOST_PARTS:
            raise SettingError(f"{path} is no file of settings: it may have names of at most {_MOST_PARTS} parts.")


def check_entries(entries: Mapping[str, Any]) -> None:
    """An error unless every entry of a TOML file is a setting and of its type; their values are checked later."""
    hints, known = get_type_hints(Settings), names()
    for key, value in entries.items():
        if key == "out":
            raise SettingError("out is no setting but where a run is stored: give it on the command line, --out.")
        if key not in known:
            raise SettingError(unknown("setting", key, known))
        if key != "solver":
            typed(key, value, hints[key])
        elif not isinstance(value, str | Mapping):
            raise SettingError(f"solver is {value!r}; it must be a name, or a table [solver] with name = ... in it.")


def from_flag(name: str, text: str) -> Any:
    """A setting from the command line, as its type has it."""
    hint = get_type_hints(Settings)[name]
    return typed(name, text if str in members(hint) or "tuple" in str(hint) else from_text(text), hint)


def from_entries(entries: Mapping[str, Any]) -> Settings:
    """Settings from the entries of a TOML file: those of `Settings`, with the solver's in a table [solver].

    [solver] holds "name" and the solver's own settings.  `solver = "adam"` alone is its name.
    """
    check_entries(entries)
    given = dict(entries)
    table = given.pop("solver", {})
    options = dict(table) if isinstance(table, Mapping) else {"name": table}
    given["solver"] = options.pop("name", None)
    if "data" not in given:
        raise SettingError("no data are named: give --data with a data set, such as mnist-1k, or a file.")
    return Settings(**given, solver_settings=options)


def to_entries(settings: Settings) -> dict[str, Any]:
    """What `from_entries` makes the same settings of; what is None is left out."""
    entries: dict[str, Any] = {}
    for name in names():
        value = getattr(settings, name)
        if value is not None and name != "solver":
            entries[name] = list(value) if isinstance(value, tuple) else value
    named = {} if settings.solver is None else {"name": settings.solver}
    return entries | {"solver": named | dict(settings.solver_settings)}


def read_settings(path: Path) -> Settings:
    """The settings in a TOML file."""
    return _settings(path, read_entries(path))


def parse_settings(path: Path, content: bytes) -> Settings:
    """The settings in `content`, which was read from `path`."""
    return _settings(path, _parse(path, content))


def _settings(path: Path, entries: Mapping[str, Any]) -> Settings:
    try:
        return from_entries(entries)
    except SettingError as error:
        raise type(error)(f"{path}: {error}") from error


def as_toml(settings: Settings) -> str:
    """The text of a TOML file from which `read_settings` reads the same settings."""
    entries = to_entries(settings)
    lines = [f"{name} = {_literal(name, value)}" for name, value in entries.items() if not isinstance(value, Mapping)]
    for name, table in entries.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_literal(key, value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _literal(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(name, entry) for entry in value)}]"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SettingError(f"{name} is {value!r}, which cannot be written as UTF-8: rename that file.") from error
    return text
