"""The tables of the race, as header and rows of text: for the console and for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lifted_bregman_lab.race import analysis
from lifted_bregman_lab.race.analysis import Spread
from lifted_bregman_lab.race.results import ProblemRecord, Race

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""A header, and rows as long as it."""


def overview(race: Race) -> Rows:
    """Header and rows of the result: time to each target over that of the reference, for every entry."""
    names = list(dict.fromkeys(entry.name for problem in race.problems for entry in problem.entries))
    rows = []
    for problem in race.problems:
        for target in analysis.targets_of(problem):
            found = {
                arrival.entry: _or_dash(f"{arrival.ratio.median:.2f}")
                for arrival in analysis.arrivals(race, problem, target)
            }
            rows.append((problem.name, target, *(found.get(name, "") for name in names)))
    return ("problem", "target", *names), rows


def arrival_rows(race: Race, problem: ProblemRecord, target: str) -> Rows:
    """Header and rows of one target: ratio with its spread, seconds, epochs, repetitions that came there."""
    header = ("entry", "ratio", "from", "to", "seconds", "epochs", "reached")
    rows = []
    for arrival in analysis.arrivals(race, problem, target):
        ratio, seconds, epochs = arrival.ratio, arrival.seconds, arrival.epochs
        numbers = (f"{x:.2f}" for x in (ratio.median, ratio.low, ratio.high))
        cells = [*numbers, _seconds(seconds.median), f"{epochs.median:.1f}"]
        rows.append((arrival.entry, *map(_or_dash, cells), f"{arrival.reached} of {arrival.repetitions}"))
    return header, rows


def best_rows(race: Race, problem: ProblemRecord) -> Rows:
    """Header and rows of what each entry reached at all: medians, and from the least to the most."""
    error = "best test accuracy" if problem.classify else "lowest validation error"
    header = ("entry", "epochs", "seconds", "last objective", "from", "to", error, "from", "to", "zeros there")
    rows = []
    for best in analysis.bests(race, problem):
        errors = best.validation_error
        if problem.classify:
            errors = Spread(1.0 - errors.median, 1.0 - errors.high, 1.0 - errors.low)
        objective = (f"{x:.4g}" for x in (best.objective.median, best.objective.low, best.objective.high))
        shown = (_error(problem, x) for x in (errors.median, errors.low, errors.high))
        name = best.entry if not best.diverged else f"{best.entry} (diverged {best.diverged} times)"
        zeros = f"{100 * best.sparsity.median:.1f} %"
        rows.append((name, f"{best.epochs.median:.1f}", _seconds(best.seconds.median), *objective, *shown, zeros))
    return header, rows


def halves(best: Rows) -> tuple[Rows, Rows]:
    """The table of `best_rows` as two, of the objective and of the error, which terminals are wide enough for."""
    header, rows = best
    return (header[:6], [row[:6] for row in rows]), (
        (header[0], *header[6:]),
        [(row[0], *row[6:]) for row in rows],
    )


def frontier_rows(race: Race, problem: ProblemRecord) -> Rows:
    """Header and rows of what each entry had reached at fractions of the reference's time."""
    error = "test accuracy" if problem.classify else "validation error"
    header = ("time", "seconds", "entry", "epochs", "objective", error, "zeros")
    rows: list[tuple[str, ...]] = []
    for at in analysis.frontier(race, problem):
        shown = 1.0 - at.validation_error if problem.classify else at.validation_error
        rows.append(
            (
                f"{at.fraction:g}",
                _seconds(at.seconds),
                at.entry,
                f"{at.epochs:.1f}",
                f"{at.objective:.4g}",
                _error(problem, shown),
                f"{100 * at.sparsity:.1f} %",
            )
        )
    return header, rows


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text with aligned columns: words to the left, numbers to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [not any(cell[:1].isdigit() for cell in column[1:]) for column in columns]
    lines = []
    for line in (header, *rows):
        cells = zip(line, widths, words, strict=True)
        lines.append("  ".join(c.ljust(width) if left else c.rjust(width) for c, width, left in cells).rstrip())
    return lines


def _seconds(value: float) -> str:
    """Milliseconds too where it is short."""
    return f"{value:.2f}" if value >= 1.0 else f"{value:.3f}"


def _or_dash(cell: str) -> str:
    return "-" if cell in ("inf", "nan") else cell


def _error(problem: ProblemRecord, value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{100 * value:.2f} %" if problem.classify else f"{value:.5f}"
