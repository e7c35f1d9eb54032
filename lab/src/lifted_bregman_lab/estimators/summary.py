"""Mean scores and ranks of the folds, as tables for the console and the pages."""

from __future__ import annotations

from statistics import mean, stdev

import numpy as np
from scipy.stats import rankdata  # type: ignore[import-untyped]

from lifted_bregman_lab.estimators.competitors import COMPETITORS, LIFTED
from lifted_bregman_lab.estimators.results import Comparison
from lifted_bregman_lab.estimators.tables import TABLES
from lifted_bregman_lab.text import Rows, markdown

DIGITS = 4
"""Decimals to which mean scores are rounded before they are ranked."""


def scores(comparison: Comparison, table: str, competitor: str) -> list[float]:
    """Return the scores of all folds of a competitor on a table."""
    return [fold.score for fold in comparison.folds if (fold.table, fold.competitor) == (table, competitor)]


def ranks(comparison: Comparison) -> dict[str, list[float]]:
    """The rank of each competitor by its mean score on each table that all have finished: 1 is the best."""
    found = [[scores(comparison, table.name, name) for name in COMPETITORS] for table in TABLES]
    means = [[round(mean(folds), DIGITS) for folds in row] for row in found if all(row)]
    by_table = np.array([rankdata([-value for value in row]) for row in means]).reshape(-1, len(COMPETITORS))
    return {name: by_table[:, place].tolist() for place, name in enumerate(COMPETITORS)}


def mean_ranks(comparison: Comparison) -> dict[str, float]:
    """Return the mean rank of each competitor over the tables."""
    return {name: mean(own) for name, own in ranks(comparison).items() if own}


def score_rows(comparison: Comparison) -> Rows:
    """Mean and standard deviation of the scores over folds, and the mean ranks."""
    rows: list[tuple[str, ...]] = []
    for table in TABLES:
        found = [scores(comparison, table.name, name) for name in COMPETITORS]
        if all(len(folds) > 1 for folds in found):
            cells = (f"{mean(folds):.3f} ± {stdev(folds):.3f}" for folds in found)
            rows.append((table.name, "accuracy" if table.classify else "R²", *cells))
    rows.append(("mean rank", "", *(f"{rank:.2f}" for rank in mean_ranks(comparison).values())))
    times = ([fold.seconds for fold in comparison.folds if fold.competitor == name] for name in COMPETITORS)
    rows.append(("processor seconds", "of a fit", *(f"{mean(own):.2f}" for own in times)))
    return ("table", "score", *COMPETITORS), rows


def describe_ranks(comparison: Comparison) -> str:
    """Return a sentence that names the competitors with a better mean rank than the library's defaults, if any."""
    found = mean_ranks(comparison)
    worse = [name for name in found if found[name] < found[LIFTED]]
    others = " and ".join(name for name in found if name != LIFTED)
    if not worse:
        return f"The defaults of the library are no worse on average rank than those of {others}."
    return f"On average rank the defaults of the library are worse than those of {' and '.join(worse)}."


def page(comparison: Comparison) -> str:
    """Return table, verdict and settings as Markdown, for a page to include."""
    where = comparison.environment
    folds = len(scores(comparison, TABLES[0].name, LIFTED))
    line = (
        f"{folds} folds of each table; default solver `{comparison.solver}`, torch {where['torch']}, "
        f"{where['processor']}, one thread."
    )
    return "\n\n".join([markdown(score_rows(comparison)), describe_ranks(comparison), line]) + "\n"
