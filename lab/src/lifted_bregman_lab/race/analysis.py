"""From the rows of a race to its verdict: time and epochs to targets, what was reached by when, what was best.

Nothing is interpolated here.  A target counts as reached at the first row that reaches it, and by a time as much is
reached as the last row up to it says.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lifted_bregman_lab.race.results import Heat, ProblemRecord, Race, Row, Trace

FRACTIONS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5)
"""Of the reference's time, at which the frontier is shown."""
TARGETS = {
    "objective": "the last training objective of {}",
    "validation": "the lowest validation error of {}, at no lower sparsity",
    "accuracy": "the best test accuracy of {}",
}


@dataclass(frozen=True)
class Spread:
    """The median over the repetitions, the least and the most.  Infinite for what was not reached."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one number."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])


@dataclass(frozen=True)
class Arrival:
    """How an entry came to a target.

    Args:
        entry: its name.
        target: a key of `TARGETS`.
        ratio: its seconds to the target over those of the reference.
        seconds: to the target.
        epochs: to the target.
        reached: repetitions in which it came there.
        repetitions: all.
    """

    entry: str
    target: str
    ratio: Spread
    seconds: Spread
    epochs: Spread
    reached: int
    repetitions: int


@dataclass(frozen=True)
class Standing:
    """What an entry had reached at a time, medians over the repetitions.

    Args:
        entry: its name.
        fraction: of the reference's time.
        seconds: that time.
        epochs: by then.
        objective: on the training set.
        validation_error: as the problem has it.
        sparsity: of the code, the middle layer.
    """

    entry: str
    fraction: float
    seconds: float
    epochs: float
    objective: float
    validation_error: float
    sparsity: float


@dataclass(frozen=True)
class Best:
    """What an entry reached at all, over the repetitions.

    Args:
        entry: its name.
        epochs: that it ran.
        seconds: that it ran.
        objective: in its last row.
        validation_error: the lowest of its rows.
        sparsity: in the row with the lowest validation error.
        diverged: repetitions in which it did.
    """

    entry: str
    epochs: Spread
    seconds: Spread
    objective: Spread
    validation_error: Spread
    sparsity: Spread
    diverged: int


def targets_of(problem: ProblemRecord) -> tuple[str, ...]:
    """The targets of a problem, keys of `TARGETS`."""
    return ("objective", "accuracy" if problem.classify else "validation")


def reference_entry(problem: ProblemRecord, target: str) -> str:
    """The entry of the reference that sets a target: the one that was tuned for it."""
    own = [entry for entry in problem.entries if entry.competitor == problem.reference]
    criterion = "objective" if target == "objective" else "validation"
    return next((entry.name for entry in own if criterion in entry.chosen_by), own[0].name)


def arrivals(race: Race, problem: ProblemRecord, target: str) -> list[Arrival]:
    """How every entry came to a target; each repetition has its own, set by the reference in it."""
    heats, leader = race.heats_of(problem.name), reference_entry(problem, target)
    found = []
    for entry in problem.entries:
        ratios, seconds, epochs = [], [], []
        for heat in heats:
            reaches = _reaches(target, heat.trace(leader))
            own, other = (_first(heat.trace(name), reaches) for name in (entry.name, leader))
            assert other is not None
            seconds.append(math.inf if own is None else own["seconds"])
            epochs.append(math.inf if own is None else own["epoch"])
            ratios.append(_ratio(seconds[-1], other["seconds"]))
        reached = sum(map(math.isfinite, seconds))
        ratio, time, passes = (Spread.of(values) for values in (ratios, seconds, epochs))
        found.append(Arrival(entry.name, target, ratio, time, passes, reached, len(heats)))
    return found


def frontier(race: Race, problem: ProblemRecord) -> list[Standing]:
    """What every entry had reached at `FRACTIONS` of the time that the reference took for all its epochs."""
    heats, leader = race.heats_of(problem.name), reference_entry(problem, "objective")
    found = []
    for fraction in FRACTIONS:
        if fraction > race.budget:
            continue
        times = [fraction * heat.trace(leader).rows[-1]["seconds"] for heat in heats]
        for entry in problem.entries:
            rows = [_last(heat.trace(entry.name), time) for heat, time in zip(heats, times, strict=True)]
            middle = [_median(rows, name) for name in ("epoch", "objective", "validation_error", "sparsity")]
            found.append(Standing(entry.name, fraction, statistics.median(times), *middle))
    return found


def bests(race: Race, problem: ProblemRecord) -> list[Best]:
    """What every entry reached at all."""
    found = []
    for entry in problem.entries:
        traces = [heat.trace(entry.name) for heat in race.heats_of(problem.name)]
        ends = [trace.rows[-1] for trace in traces]
        best = [_lowest_error(trace) for trace in traces]
        found.append(
            Best(
                entry.name,
                Spread.of(row["epoch"] for row in ends),
                Spread.of(row["seconds"] for row in ends),
                Spread.of(row["objective"] for row in ends),
                Spread.of(row["validation_error"] for row in best),
                Spread.of(row.get("sparsity", math.nan) for row in best),
                sum(trace.outcome == "DIVERGED" for trace in traces),
            )
        )
    return found


def curve(heats: Sequence[Heat], entry: str, name: str, times: Sequence[float]) -> list[Spread]:
    """The spread of a quantity at times, straight between rows; a run that has ended keeps its last value."""
    found = []
    for time in times:
        found.append(Spread.of(_between(heat.trace(entry), name, time) for heat in heats))
    return found


def _reaches(target: str, reference: Trace) -> Callable[[Row], bool]:
    if target == "objective":
        aim = reference.rows[-1]["objective"]
        return lambda row: row["objective"] <= aim
    best = _lowest_error(reference)
    error, zeros = best["validation_error"], best.get("sparsity", 0.0)
    if target == "accuracy":
        return lambda row: row["validation_error"] <= error
    return lambda row: row["validation_error"] <= error and row.get("sparsity", 0.0) >= zeros


def _lowest_error(trace: Trace) -> Row:
    return min(trace.rows, key=lambda row: row["validation_error"])


def _first(trace: Trace, reaches: Callable[[Row], bool]) -> Row | None:
    return next((row for row in trace.rows if reaches(row)), None)


def _last(trace: Trace, time: float) -> Row:
    return [row for row in trace.rows if row["seconds"] <= time or row is trace.rows[0]][-1]


def _ratio(seconds: float, other: float) -> float:
    if other > 0.0:
        return seconds / other
    return 1.0 if seconds == 0.0 else math.inf


def _median(rows: Sequence[Row], name: str) -> float:
    return statistics.median(row.get(name, math.nan) for row in rows)


def _between(trace: Trace, name: str, time: float) -> float:
    rows = trace.rows
    for before, after in pairwise(rows):
        if before["seconds"] <= time < after["seconds"]:
            part = (time - before["seconds"]) / (after["seconds"] - before["seconds"])
            return before[name] + part * (after[name] - before[name])
    return rows[0][name] if time < rows[0]["seconds"] else rows[-1][name]
