"""Means and ranks of the rows, as tables for the console and the pages."""

from __future__ import annotations

from statistics import mean, stdev

import numpy as np
from scipy.stats import rankdata  # type: ignore[import-untyped]

from lifted_bregman_lab.detection import classifier, problems
from lifted_bregman_lab.detection.detectors import LIFTED, PICTURE_DETECTORS, TABLE_DETECTORS
from lifted_bregman_lab.detection.results import Detections
from lifted_bregman_lab.text import Rows, count, markdown

DIGITS = 4
"""Decimals to which mean AUROCs are rounded before they are ranked."""


def picture_rows(found: Detections) -> Rows:
    """AUROC in per cent by usual class, the mean over seeds, and the mean over classes."""
    names = [name for name in PICTURE_DETECTORS if found.of("pictures", name)]
    rows = []
    for usual in map(str, problems.CLASSES):
        cells = [found.of("pictures", name, usual) for name in names]
        if all(cells) and cells:
            rows.append((usual, *(f"{100 * mean(own):.1f}" for own in cells)))
    rows.append(("mean", *(f"{100 * mean(found.of('pictures', name)):.1f}" for name in names)))
    return ("usual class", *names), rows


def ranked(found: Detections) -> dict[str, float]:
    """The mean rank of each detector by its mean AUROC on each table that all have finished: 1 is the best."""
    by_table = [[found.of("tables", name, table) for name in TABLE_DETECTORS] for table in problems.TABLES]
    means = [[round(mean(own), DIGITS) for own in row] for row in by_table if all(row)]
    ranks = np.array([rankdata([-value for value in row]) for row in means]).reshape(-1, len(TABLE_DETECTORS))
    return dict(zip(TABLE_DETECTORS, ranks.mean(0).tolist(), strict=True)) if len(ranks) else {}


def table_rows(found: Detections) -> Rows:
    """AUROC in per cent by table, the mean over seeds; mean, mean rank, and processor seconds."""
    names = [name for name in TABLE_DETECTORS if found.of("tables", name)]
    rows = []
    for table in problems.TABLES:
        cells = [found.of("tables", name, table) for name in names]
        if all(cells) and cells:
            rows.append((table.removeprefix("adbench-"), *(f"{100 * mean(own):.1f}" for own in cells)))
    rows.append(("mean", *(f"{100 * mean(found.of('tables', name)):.1f}" for name in names)))
    ranks = ranked(found)
    if ranks:
        rows.append(("mean rank", *(f"{ranks[name]:.2f}" for name in names)))
    times = ([row.seconds for row in found.rows if (row.study, row.detector) == ("tables", name)] for name in names)
    rows.append(("processor seconds", *(f"{mean(own):.2f}" for own in times)))
    return ("table", *names), rows


def classifier_rows(found: Detections) -> Rows:
    """AUROC in per cent of each score of the classifier, mean and deviation over seeds."""
    rows: list[tuple[str, ...]] = []
    for name in classifier.SCORES:
        own = [100 * value for value in found.of("classifier", name)]
        if own:
            spread = f" ± {stdev(own):.1f}" if len(own) > 1 else ""
            rows.append((name, f"{mean(own):.1f}{spread}"))
    return ("score", "AUROC"), rows


def verdict(found: Detections) -> str:
    """Return a sentence with the place of the library's detector by average rank; empty without rivals."""
    ranks = ranked(found)
    if not ranks:
        return ""
    own = ranks[LIFTED]
    place = 1 + sum(rank < own for rank in ranks.values())
    equals = [name for name, rank in ranks.items() if rank == own and name != LIFTED]
    shared = f", equal to {' and '.join(equals)}" if equals else ""
    return (
        f"By average rank the library's detector is number {place} of {len(ranks)}{shared}, with {own:.2f}; the "
        f"middle is {(len(ranks) + 1) / 2:g}."
    )


def tables(found: Detections) -> list[tuple[str, Rows]]:
    """Return the tables of the studies that have rows, each with its caption."""
    made = {
        "pictures": ("MNIST, one class against the rest: AUROC in per cent", picture_rows),
        "tables": ("Tables: AUROC in per cent", table_rows),
        "classifier": (
            "Fashion-MNIST against MNIST, by a classifier of Fashion-MNIST: AUROC in per cent",
            classifier_rows,
        ),
    }
    present = {row.study for row in found.rows}
    return [(caption, rows(found)) for study, (caption, rows) in made.items() if study in present]


def page(found: Detections, study: str) -> str:
    """Return the table of one study as Markdown, for a page to include."""
    rows = {"pictures": picture_rows, "tables": table_rows, "classifier": classifier_rows}[study](found)
    seeds = count(len({row.seed for row in found.rows if row.study == study}), "seed")
    where = found.environment
    line = f"{seeds}; `{found.solver}`, torch {where['torch']}, {where['processor']}, one thread."
    said = [verdict(found)] if study == "tables" else []
    return "\n\n".join([markdown(rows), *filter(None, said), line]) + "\n"
