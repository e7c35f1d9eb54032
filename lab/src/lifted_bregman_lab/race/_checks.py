"""What the settings of the race and of its tuning have in common."""

from __future__ import annotations

import math
from typing import Any

from lifted_bregman.errors import SettingError


def check_settings(settings: Any, **least: int) -> None:
    """SettingError unless the named settings are whole numbers of at least so much, and threads and budget are right.

    `threads` is None or a whole number of at least 1, `budget` a finite number of at least 1.
    """
    for name, bound in {**least, "threads": 1}.items():
        value = getattr(settings, name)
        if value is None and name == "threads":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < bound:
            raise SettingError(f"{name} is {value!r}; it must be a whole number of at least {bound}.")
    if not 1.0 <= settings.budget < math.inf:
        raise SettingError(f"budget is {settings.budget!r}; it must be a number of at least 1.")
