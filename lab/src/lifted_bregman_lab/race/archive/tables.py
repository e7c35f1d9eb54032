"""The tables of a race of the first format, as header and rows of text."""

from __future__ import annotations

import math

from lifted_bregman_lab.race.archive import analysis
from lifted_bregman_lab.race.archive.analysis import SPREAD
from lifted_bregman_lab.race.archive.results import ProblemRecord, Race
from lifted_bregman_lab.text import Rows


def target_rows(race: Race, problem: ProblemRecord, target: str) -> Rows:
    """One target: ratio with its spread, seconds, epochs, and the repetitions that reached it."""
    rows = []
    for name, found in analysis.times_to_target(race, problem, target).iterrows():
        ratios = (_or_dash(ratio, ".2f") for ratio in found["ratio"][SPREAD])
        medians = (_seconds(found["seconds", "median"]), _or_dash(found["epoch", "median"], ".1f"))
        rows.append((str(name), *ratios, *medians, f"{found['reached', '']:.0f} of {race.count(problem.name)}"))
    return ("entry", "ratio", "from", "to", "seconds", "epochs", "reached"), rows


def best_rows(race: Race, problem: ProblemRecord) -> Rows:
    """The best values of each entry: medians, and from the least to the most."""
    error = "best test accuracy" if problem.classify else "lowest validation error"
    order = ["median", "max", "min"] if problem.classify else SPREAD  # the lowest error is the highest accuracy
    rows = []
    for name, best in analysis.bests(race, problem).iterrows():
        diverged = f" (diverged {best['diverged', '']:.0f} times)" if best["diverged", ""] else ""
        objective = (f"{value:.4g}" for value in best["objective"][SPREAD])
        errors = (_error(problem, value) for value in best["validation_error"][order])
        ends = (f"{best['epoch', 'median']:.1f}", _seconds(best["seconds", "median"]))
        rows.append((f"{name}{diverged}", *ends, *objective, *errors, f"{100 * best['sparsity', 'median']:.1f} %"))
    return ("entry", "epochs", "seconds", "last objective", "from", "to", error, "from", "to", "zeros there"), rows


def halves(best: Rows) -> tuple[Rows, Rows]:
    """The table of `best_rows` as two, of the objective and of the error, which fit on a terminal."""
    header, rows = best
    first = header[:6], [row[:6] for row in rows]
    return first, ((header[0], *header[6:]), [(row[0], *row[6:]) for row in rows])


def frontier_rows(race: Race, problem: ProblemRecord) -> Rows:
    """The values of each entry at fractions of the reference's time."""
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
    """Seconds, with milliseconds below one second."""
    return _or_dash(value, ".2f" if value >= 1.0 else ".3f")


def _or_dash(value: float, format_: str) -> str:
    return f"{value:{format_}}" if math.isfinite(value) else "-"


def _error(problem: ProblemRecord, error: float) -> str:
    """A validation error, or the accuracy of a classifier."""
    classify = problem.classify and math.isfinite(error)
    return f"{100 * (1.0 - error):.2f} %" if classify else _or_dash(error, ".5f")
