"""Settings as a TOML file: one entry for each setting, and a table [solver] with the solver's name and settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit

from lifted_bregman._text import unknown
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.settings import SETTING_NAMES, Settings

_MOST_BYTES = 1 << 20
_MOST_PARTS = 100  # of a dotted name; settings have one, those of the solver two


def read_entries(path: Path, content: bytes | None = None) -> dict[str, Any]:
    """The entries of a settings file.  Their names are checked here, their values when a `Settings` is constructed.

    Args:
        path: of the file.
        content: its bytes; None to read them.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.experiments import read_entries
        >>> read_entries(Path("run.toml"), b"epochs = 5")
        {'epochs': 5}
    """
    try:
        if content is None:
            with path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        # Bound the time that a hostile file can take, then parse.
        if len(content) > _MOST_BYTES:
            raise SettingError(f"it is above {_MOST_BYTES:,} bytes, and no file of settings.")
        text = content.decode("utf-8-sig")
        _require_short_names(text)
        entries = tomllib.loads(text)
        _require_known(entries)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error
    except OSError as error:
        raise SettingError(f"{path} cannot be read ({error.strerror}): name a TOML file of settings.") from error
    except (ValueError, RecursionError) as error:  # also of text that is no UTF-8, and of thousands of digits
        raise SettingError(f"{path} is no TOML file: {error}; write lines such as epochs = 5.") from error
    return entries


def _require_short_names(text: str) -> None:
    """SettingError if a name has very many parts, as a.a.a.a: the time that tomllib takes grows with their square."""
    parts = 0
    for piece in text.split("."):  # what stands between two dots of a name holds none of these
        parts = 1 if any(mark in piece for mark in ",=\n") else parts + 1
        if parts > _MOST_PARTS:
            raise SettingError(f"it is no file of settings, which have names of at most {_MOST_PARTS} parts.")


def _require_known(entries: Mapping[str, Any]) -> None:
    """SettingError unless every entry has the name of a setting."""
    for key in entries:
        if key == "out":
            raise SettingError("out is no setting but where a run is stored: give it on the command line, --out.")
        if key not in SETTING_NAMES:
            raise SettingError(unknown("setting", key, SETTING_NAMES))


def from_entries(entries: Mapping[str, Any]) -> Settings:
    """Settings from the entries of a settings file.

    [solver] holds "name" and the settings of the solver.  `solver = "adam"` alone is its name.

    Example:
        >>> from lifted_bregman.experiments import from_entries
        >>> settings = from_entries({"data": "digits", "solver": {"name": "adam", "learning_rate": 0.01}})
        >>> settings.make_solver().learning_rate
        0.01
    """
    _require_known(entries)
    if "data" not in entries:
        raise SettingError("no data are named: give --data with a data set, such as mnist-1k, or a file.")
    options = solver_table(entries)
    return Settings(**{**entries, "solver": options.pop("name", None)}, solver_settings=options)


def solver_table(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The table [solver] of a file's entries; a name alone is a table with it."""
    given = entries.get("solver", {})
    if not isinstance(given, str | Mapping):
        raise SettingError(f"solver is {given!r}; it must be a name, or a table [solver] with name = ... in it.")
    return dict(given) if isinstance(given, Mapping) else {"name": given}


def to_entries(settings: Settings) -> dict[str, Any]:
    """The entries from which `from_entries` makes the same settings; None is left out.

    Example:
        >>> from lifted_bregman.experiments import Settings, from_entries, to_entries
        >>> settings = Settings(data="digits", epochs=5)
        >>> from_entries(to_entries(settings)) == settings
        True
    """
    entries: dict[str, Any] = {}
    for name in SETTING_NAMES:
        value = getattr(settings, name)
        if value is not None and name != "solver":
            entries[name] = list(value) if isinstance(value, tuple) else value
    named = {} if settings.solver is None else {"name": settings.solver}
    return entries | {"solver": named | dict(settings.solver_settings)}


def read_settings(path: Path, content: bytes | None = None) -> Settings:
    """The settings in a TOML file; `content` are its bytes, None to read them.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.experiments import read_settings
        >>> read_settings(Path("run.toml"), b'data = "digits"').data
        'digits'
    """
    entries = read_entries(path, content)
    try:
        return from_entries(entries)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error


def as_toml(settings: Settings) -> str:
    """The text of a TOML file from which `read_settings` reads the same settings.

    Example:
        >>> from lifted_bregman.experiments import Settings, as_toml
        >>> print(as_toml(Settings(data="digits", epochs=5)).splitlines()[0])
        data = "digits"
    """
    text = tomlkit.dumps(to_entries(settings))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SettingError(f"{error.object!r} cannot be written as UTF-8: rename that file.") from error
    return text
