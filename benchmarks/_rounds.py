"""Any number of competitors timed in turn in one process; `_interleaved` has what two of them need."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

WARM_UP = 3  # steps of each competitor before the first timing


def timed(competitors: Mapping[str, Callable[[], object]], rounds: int, span: float = 0.03) -> dict[str, list[float]]:
    """Seconds per step of each competitor, one for each round.

    Every round times all of them, from the first to the last and in the next round from the last to the first.  A
    timing is of so many steps that it takes about `span` seconds, after one more that finds the caches as the
    competitor before has left them.
    """
    steps = {}
    for name, step in competitors.items():
        for _ in range(WARM_UP):
            step()
        steps[name] = max(1, round(span / seconds(step, 2)))
    found: dict[str, list[float]] = {name: [] for name in competitors}
    order = list(competitors)
    for _ in range(rounds):
        for name in order:
            competitors[name]()
            found[name].append(seconds(competitors[name], steps[name]))
        order.reverse()
    return found


def seconds(step: Callable[[], object], steps: int) -> float:
    """The mean of some steps in a row."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def fastest(times: Mapping[str, Sequence[float]]) -> str:
    """The competitor with the lowest median."""
    return min(times, key=lambda name: statistics.median(times[name]))


def compare(ours: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Medians, and the median of the ratios of the rounds with its spread."""
    ratios = sorted(a / b for a, b in zip(ours, other, strict=True))
    return {
        "ours_ms": 1e3 * statistics.median(ours),
        "other_ms": 1e3 * statistics.median(other),
        "ratio": statistics.median(ratios),
        "ratio_10_percent": ratios[len(ratios) // 10],
        "ratio_90_percent": ratios[len(ratios) * 9 // 10],
    }
