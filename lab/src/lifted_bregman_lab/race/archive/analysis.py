"""From the rows of a race to its results: time and epochs to targets, values at fractions of time, best values.

A run reaches a target at its first row that shows it.  At a time the last row up to it counts.
"""

from __future__ import annotations

import math

import pandas as pd

from lifted_bregman_lab.race.archive.results import ProblemRecord, Race

FRACTIONS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5)
"""The fractions of the reference's time at which the frontier is shown."""
TARGETS = {
    "objective": "the last training objective of {}",
    "validation": "the lowest validation error of {}, at no lower sparsity",
    "accuracy": "the best test accuracy of {}",
}
SPREAD = ["median", "min", "max"]
"""Statistics over the repetitions; a target that was not reached counts as ∞."""
_RUN = ["entry", "seed"]


def targets_of(problem: ProblemRecord) -> tuple[str, ...]:
    """The targets of a problem, keys of `TARGETS`."""
    return ("objective", "accuracy" if problem.classify else "validation")


def reference_entry(problem: ProblemRecord, target: str) -> str:
    """The entry of the reference that was tuned for a target, and sets it."""
    entries = [entry for entry in problem.entries if entry.competitor == problem.reference]
    criterion = "objective" if target == "objective" else "validation"
    return next((entry.name for entry in entries if criterion in entry.chosen_by), entries[0].name)


def times_to_target(race: Race, problem: ProblemRecord, target: str) -> pd.DataFrame:
    """The spread of "seconds", "epoch" and "ratio" (to the reference's seconds) until each entry reached a target.

    The reference sets the target of each repetition.  The column "reached" counts the repetitions in which an entry
    reached it.
    """
    rows, reference = race.rows_of(problem.name), reference_entry(problem, target)
    # The row of the reference that sets the target of each seed, and the rows that reach it.
    leading = rows[rows["entry"] == reference]
    if target == "objective":
        aim = _last(leading).set_index("seed")
        reaches = rows["objective"] <= rows["seed"].map(aim["objective"])
    else:
        aim = _lowest_error(leading).set_index("seed")
        reaches = rows["validation_error"] <= rows["seed"].map(aim["validation_error"])
        if target == "validation":
            zeros = aim["sparsity"].fillna(0.0)
            reaches &= rows["sparsity"].fillna(0.0) >= rows["seed"].map(zeros)
    # The first such row of each run; ∞ where there is none.
    runs = pd.MultiIndex.from_frame(rows[_RUN].drop_duplicates())
    first = rows[reaches].groupby(_RUN)[["seconds", "epoch"]].first().reindex(runs, fill_value=math.inf)
    # 0 / 0 is 1: both start at the target.
    first["ratio"] = first["seconds"].div(first.loc[reference, "seconds"], level="seed").fillna(1.0)
    found = first.groupby("entry", sort=False).agg(SPREAD)
    found["reached", ""] = first["seconds"].lt(math.inf).groupby("entry", sort=False).sum()
    return found


def frontier(race: Race, problem: ProblemRecord) -> pd.DataFrame:
    """The medians of each entry at `FRACTIONS` of the time that the reference took for all its epochs.

    Columns: "entry", "fraction", "seconds" (that time), "epoch", "objective", "validation_error", "sparsity".
    """
    rows, reference = race.rows_of(problem.name), reference_entry(problem, "objective")
    ends = _last(rows[rows["entry"] == reference]).set_index("seed")["seconds"]
    start = ~rows.duplicated(_RUN)
    parts = []
    for fraction in FRACTIONS:
        if fraction <= race.budget:
            times = fraction * ends
            at = _last(rows[start | (rows["seconds"] <= rows["seed"].map(times))])
            middle = at.groupby("entry", sort=False)[["epoch", "objective", "validation_error", "sparsity"]].median()
            parts.append(middle.assign(fraction=fraction, seconds=times.median()))
    return pd.concat(parts).reset_index()


def bests(race: Race, problem: ProblemRecord) -> pd.DataFrame:
    """The best values of each entry.

    The spread of "epoch", "seconds" and "objective" in the last rows, and of "validation_error" and "sparsity" in the
    rows with the lowest validation error.  The column "diverged" counts the repetitions that diverged.
    """
    rows = race.rows_of(problem.name)
    ends, best = _last(rows).set_index("entry"), _lowest_error(rows).set_index("entry")
    last = ends[["epoch", "seconds", "objective"]].groupby("entry", sort=False).agg(SPREAD)
    lowest = best[["validation_error", "sparsity"]].groupby("entry", sort=False).agg(SPREAD)
    found = last.join(lowest)
    found["diverged", ""] = (ends["outcome"] == "DIVERGED").groupby("entry", sort=False).sum()
    return found


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    """The last row of each run."""
    return rows.drop_duplicates(_RUN, keep="last")


def _lowest_error(rows: pd.DataFrame) -> pd.DataFrame:
    """The first row of each run with its lowest validation error."""
    return rows.loc[rows.groupby(_RUN, sort=False)["validation_error"].idxmin()]
