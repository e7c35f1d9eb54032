"""The tables of the race, as header and rows of text: for the console and for the page."""

from __future__ import annotations

import math

from lifted_bregman_lab.race import analysis
from lifted_bregman_lab.race.analysis import SPREAD
from lifted_bregman_lab.race.results import ProblemRecord, Race
from lifted_bregman_lab.text import Rows


def overview(race: Race) -> Rows:
    """The result: time to each target over that of the reference, for every entry."""
    names = list(dict.fromkeys(entry.name for problem in race.problems for entry in problem.entries))
    rows = []
    for problem in race.problems:
        for target in analysis.targets_of(problem):
            ratios = analysis.times_to_target(race, problem, target)["ratio", "median"]
            cells = (_or_dash(f"{ratios[name]:.2f}") if name in ratios else "" for name in names)
            rows.append((problem.name, target, *cells))
    return ("problem", "target", *names), rows


def target_rows(race: Race, problem: ProblemRecord, target: str) -> Rows:
    """One target: ratio with its spread, seconds, epochs, repetitions that came there."""
    header = ("entry", "ratio", "from", "to", "seconds", "epochs", "reached")
    rows = []
    for name, found in analysis.times_to_target(race, problem, target).iterrows():
        ratios = (f"{ratio:.2f}" for ratio in found["ratio"][SPREAD])
        cells = map(_or_dash, (*ratios, _seconds(found["seconds", "median"]), f"{found['epoch', 'median']:.1f}"))
        rows.append((str(name), *cells, f"{found['reached', '']:.0f} of {race.count(problem.name)}"))
    return header, rows


def best_rows(race: Race, problem: ProblemRecord) -> Rows:
    """What each entry reached at all: medians, and from the least to the most."""
    error = "best test accuracy" if problem.classify else "lowest validation error"
    header = ("entry", "epochs", "seconds", "last objective", "from", "to", error, "from", "to", "zeros there")
    rows = []
    for name, best in analysis.bests(race, problem).iterrows():
        diverged = f" (diverged {best['diverged', '']:.0f} times)" if best["diverged", ""] else ""
        objective = (f"{value:.4g}" for value in best["objective"][SPREAD])
        # The lowest error is the highest accuracy.
        order = ["median", "max", "min"] if problem.classify else SPREAD
        errors = (_error(problem, value) for value in best["validation_error"][order])
        ends = (f"{best['epoch', 'median']:.1f}", _seconds(best["seconds", "median"]))
        rows.append((f"{name}{diverged}", *ends, *objective, *errors, f"{100 * best['sparsity', 'median']:.1f} %"))
    return header, rows


def halves(best: Rows) -> tuple[Rows, Rows]:
    """The table of `best_rows` as two, of the objective and of the error, which terminals are wide enough for."""
    header, rows = best
    first = header[:6], [row[:6] for row in rows]
    return first, ((header[0], *header[6:]), [(row[0], *row[6:]) for row in rows])


def frontier_rows(race: Race, problem: ProblemRecord) -> Rows:
    """What each entry had reached at fractions of the reference's time."""
    error = "test accuracy" if problem.classify else "validation error"
    header = ("time", "seconds", "entry", "epochs", "objective", error, "zeros")
    return header, [
        (
            f"{at.fraction:g}",
            _seconds(at.seconds),
            at.entry,
            f"{at.epoch:.1f}",
            f"{at.objective:.4g}",
            _error(problem, at.validation_error),
            f"{100 * at.sparsity:.1f} %",
        )
        for at in analysis.frontier(race, problem).itertuples()
    ]


def _seconds(value: float) -> str:
    """Milliseconds too where it is short."""
    return f"{value:.2f}" if value >= 1.0 else f"{value:.3f}"


def _or_dash(cell: str) -> str:
    return "-" if cell in ("inf", "nan") else cell


def _error(problem: ProblemRecord, error: float) -> str:
    """A validation error, or the accuracy of a classifier."""
    if not math.isfinite(error):
        return "-"
    return f"{100 * (1.0 - error):.2f} %" if problem.classify else f"{error:.5f}"
