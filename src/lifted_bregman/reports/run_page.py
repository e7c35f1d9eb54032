"""The page of one run, made from the folder that `fit(..., out=...)` or `lifted train` wrote, without training."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments import read_entries
from lifted_bregman.experiments.runs import SETTINGS
from lifted_bregman.reports.charts import Chart, Charts, Curve
from lifted_bregman.reports.page import Block, Listing, Page, PageTable, Section, Text
from lifted_bregman.training import RunFolder

Rows = Sequence[Mapping[str, float]]

_NAMES = {
    "epoch": "epochs",
    "step": "steps",
    "seconds": "seconds in steps",
    "objective": "training objective",
    "validation": "validation objective",
    "accuracy": "training accuracy",
    "validation_accuracy": "validation accuracy",
    "sparsity": "zeros in the middle layer",
    "energy": "lifted energy",
    "certificate": "largest certificate",
}
_LAYER = re.compile("energy_([1-9][0-9]{0,5})")
_FRACTIONS = {"accuracy", "validation_accuracy", "sparsity"}
# title of a chart, entries of the rows that it shows, whether its axis is logarithmic
_CHARTS = (
    ("Objective", ("objective", "validation"), True),
    ("Accuracy", ("accuracy", "validation_accuracy"), False),
    ("Zeros in the middle layer", ("sparsity",), False),
    ("Lifted energy", ("energy",), True),
)


def run_page(folder: Path) -> Page:
    """Return the page with curves, outcome and settings of the run in `folder`."""
    rows = _rows(folder)
    ending = RunFolder(folder).result() if (folder / "result.json").is_file() else None
    outcome = "The run has not ended." if ending is None else str(ending.get("message"))
    sections = [
        Section("Outcome", [Text(outcome), _table(rows)]),
        Section("Against epochs", _charts(rows, "epoch")),
        Section("Against seconds", _charts(rows, "seconds")),
    ]
    settings = folder / SETTINGS
    if settings.is_file():
        read_entries(settings)  # raises an error unless the file holds settings
        sections.append(Section("Settings", [Listing(settings.read_text(encoding="utf-8").rstrip())]))
    last = rows[-1]
    return Page(
        title=f"Run {folder.resolve().name}",
        summary=(
            f"{int(last['epoch'])} epochs, {int(last['step'])} steps, {last['seconds']:.1f} seconds in steps. All "
            "numbers below come from the rows of its history."
        ),
        sections=sections,
    )


def _rows(folder: Path) -> Rows:
    if not folder.is_dir():
        raise CheckpointError(
            f"there is no folder {folder}: name the --out of 'lifted train', 'lifted demo' or 'lifted reproduce'."
        )
    if not (folder / "history.jsonl").is_file():
        raise CheckpointError(
            f"{folder} holds neither a run (it has no history.jsonl) nor a finished demonstration: name the --out of "
            "'lifted train' or 'lifted demo'. With lifted-bregman-lab installed, that of 'lifted reproduce' "
            "will do too."
        )
    rows = RunFolder(folder).history()
    if not rows:
        raise CheckpointError(f"{folder / 'history.jsonl'} has no row yet: wait for the end of the first epoch.")
    return rows


def _table(rows: Rows) -> PageTable:
    """Return a table of the last row, and with a validation set of the row with the lowest validation objective."""
    columns = [("last row", rows[-1])]
    if all("validation" in row for row in rows):
        columns.append(("lowest validation", min(rows, key=lambda row: row["validation"])))
    shown = [name for name in _NAMES if name in rows[-1]]
    table = [(_NAMES[name], *(_written(name, row.get(name, math.nan)) for _, row in columns)) for name in shown]
    return PageTable(("", *(title for title, _ in columns)), table, "Rows of the history.")


def _written(name: str, value: float) -> str:
    if name in _FRACTIONS:
        return f"{100 * value:.2f} %"
    return f"{value:.0f}" if name in ("epoch", "step") else f"{value:.6g}"


def _charts(rows: Rows, against: str) -> list[Block]:
    charts = []
    for title, names, log in (*_CHARTS, ("Energy of each layer", _layers(rows), True)):
        curves = [curve for curve in (_curve(rows, against, name) for name in names) if curve.points]
        if curves:
            alt = "; ".join(f"{curve.name} ends at {curve.points[-1][1]:.4g}" for curve in curves)
            fraction = names[0] in _FRACTIONS
            charts.append(Chart(title, curves, _NAMES[against], f"{title}: {alt}.", log=log, fraction=fraction))
    return [Charts(charts)] if charts else [Text("The history has nothing to draw.")]


def _layers(rows: Rows) -> tuple[str, ...]:
    numbers = (int(found[1]) for name in rows[-1] if (found := _LAYER.fullmatch(name)))
    return tuple(f"energy_{number}" for number in sorted(numbers))


def _curve(rows: Rows, against: str, name: str) -> Curve:
    points = [(row[against], row[name]) for row in rows if name in row]
    label = _NAMES.get(name, f"layer {name.removeprefix('energy_')}")
    return Curve(label, [x for x, _ in points], [y for _, y in points])
