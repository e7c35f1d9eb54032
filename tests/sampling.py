"""Samples of products for the everyday suite; `make test-all` runs the whole product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def pairwise(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """All pairs as parameters: every day each value of either list is in one pair at least, the others are `long`."""
    size = min(len(first), len(second))
    return [
        pytest.param(one, other, marks=() if i % size == j % size else pytest.mark.long)
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]


def every(values: Sequence[Any], step: int, keep: Callable[[Any], bool] = lambda value: False) -> list[Any]:
    """All values as parameters; every day each `step`-th and those to `keep`, the others are `long`."""
    return [
        value if i % step == 0 or keep(value) else pytest.param(value, marks=pytest.mark.long)
        for i, value in enumerate(values)
    ]
