"""Samples of products for the everyday suite; `make test-all` runs the whole product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
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


def over(ids: Callable[[Any], str], times: int = 1, **lists: Iterable[Any]) -> pytest.MarkDecorator:
    """The product of all lists; every day `times` as many cases as the longest has values, each value in one at least.

    The values of the shorter lists change at different rates, so that most of their combinations are met too.
    """
    values = [list(entries) for entries in lists.values()]
    longest = max(map(len, values))
    size, stride, chosen = times * longest, 1, [[0] * (times * longest)]
    for entries in sorted(values, key=len, reverse=True):
        ways = [
            [i // stride % len(entries) for i in range(size)],
            [sum(places) % len(entries) for places in zip(*chosen[2:], strict=True)],
            [i % len(entries) for i in range(size)],
        ]
        chosen.append(next(way for way in ways if set(way) == set(range(len(entries)))))
        stride *= len(entries) if len(chosen) > 2 else 1
    order = sorted(range(len(values)), key=lambda number: -len(values[number]))
    daily = {tuple(chosen[1 + order.index(number)][i] for number in range(len(values))) for i in range(size)}
    return pytest.mark.parametrize(
        tuple(lists),
        [
            pytest.param(
                *(entries[place] for entries, place in zip(values, places, strict=True)),
                marks=() if places in daily else pytest.mark.long,
            )
            for places in product(*(range(len(entries)) for entries in values))
        ],
        ids=ids,
    )
