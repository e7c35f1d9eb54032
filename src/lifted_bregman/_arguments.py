"""Checks of arguments that every part of the library shares; each raises a `SettingError` that names the argument."""

from __future__ import annotations

import math
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from lifted_bregman.errors import SettingError

_PICTURES = (".png", ".pdf", ".svg")


def whole(value: Any, name: str, least: int | None = 1) -> int:
    """`value` as an int, NumPy's whole numbers included; an error unless it is one, of at least `least` if given."""
    if not isinstance(value, Integral) or isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise SettingError(f"{name} is {value!r}; it must be a whole number{bound}.")
    return int(value)


def positive(value: float, name: str) -> float:
    """`value` as a float, or an error unless it is a finite number > 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0.0):
        raise SettingError(f"{name} is {value!r}; it must be a finite number greater than 0.")
    return number


def require_count(count: Any, name: str, least: int = 1) -> None:
    """Raises unless `count` is an int of at least `least`.

    Unlike `whole` it converts nothing: settings are stored as they were given, and NumPy's numbers are refused.
    """
    if not (isinstance(count, int) and count >= least):
        raise SettingError(f"{name} is {count!r}; it must be a whole number of at least {least}.")


def require_not_negative(value: float, name: str) -> None:
    """Raises unless `value` is a finite number >= 0."""
    if not isinstance(value, Real) or not 0.0 <= value < math.inf:
        raise SettingError(f"{name} is {value!r}; it must be a finite number of at least 0.")


def require_picture(path: str | Path) -> Path:
    """`path`; raises unless it ends in .png, .pdf or .svg and its folder exists."""
    path = Path(path)
    if path.suffix.lower() not in _PICTURES:
        raise SettingError(f"{path} has no ending of a picture: name a file that ends in {', '.join(_PICTURES)}.")
    if not path.parent.is_dir():
        raise SettingError(
            f"{path} cannot be written, for there is no folder {path.parent}: make it, or choose another."
        )
    return path
