"""Exhibits: the tables, curves, images, codes and drawings that a report shows besides the claims, as plain data.

Cells and curves name the quantities that the report computes from stored runs.  A cell whose quantity is that of a
claim is shown beside the claim's published number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lifted_bregman.errors import SettingError
from lifted_bregman_lab.reproduction.packing import PARTS
from lifted_bregman_lab.reproduction.quantities import Quantity, ReadsRuns


@dataclass(frozen=True)
class ShownRow(ReadsRuns):
    """A row of a table: a title, and a quantity for each column; None for an empty cell."""

    title: str
    cells: tuple[Quantity | None, ...]


@dataclass(frozen=True)
class ShownTable(ReadsRuns):
    """Means over seeds with their spread, and the paper's numbers above them.

    Args:
        caption: a sentence or two.
        columns: their names.
        rows: at least one, with a cell for each column.
        digits: after the point; None for four that count.
        headline: whether it is one of the tables that a reader should see first.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[ShownRow, ...]
    digits: int | None = None
    headline: bool = False

    def __post_init__(self) -> None:
        if not self.rows:
            raise SettingError(f"the table '{self.caption}' has no row: give at least one.")
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise SettingError(
                    f"the row '{row.title}' has {len(row.cells)} cells and its table {len(self.columns)} columns: give "
                    "as many of both."
                )


@dataclass(frozen=True)
class ShownCurve(ReadsRuns):
    """A column of the rows of a recipe.

    name    for the legend
    recipe  its name
    column  an entry of the rows
    level   only the last value is shown, as a horizontal line
    """

    name: str
    recipe: str
    column: str
    level: bool = False


@dataclass(frozen=True)
class ShownChart(ReadsRuns):
    """Curves over one pair of axes.

    title     the label of the y axis
    curves    at least one, with different names
    x_label   the label of the x axis; no other chart has both this title and this label
    against   the entry of the rows on the x axis
    log       a logarithmic y axis
    fraction  y is a fraction, shown in per cent
    """

    title: str
    curves: tuple[ShownCurve, ...]
    x_label: str = "epochs"
    against: str = "epoch"
    log: bool = False
    fraction: bool = False

    def __post_init__(self) -> None:
        names = [curve.name for curve in self.curves]
        if not names or len(set(names)) < len(names):
            raise SettingError(f"the chart '{self.title}' needs curves with names that differ: {names}.")


@dataclass(frozen=True)
class ShownCharts(ReadsRuns):
    """Charts side by side, with a caption."""

    charts: tuple[ShownChart, ...]
    caption: str


@dataclass(frozen=True)
class ShownImages(ReadsRuns):
    """Stored images of one part of the data: targets, inputs, and the outputs of each recipe.

    caption  the sentences below
    part     "train" or "validation"
    outputs  (label, recipe) of each row
    inputs   whether the inputs are shown, because they are not the targets
    """

    caption: str
    part: str
    outputs: tuple[tuple[str, str], ...]
    inputs: bool = False

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise SettingError(f"the part of the images is '{self.part}': it must be {' or '.join(PARTS)}.")

    @property
    def recipes(self) -> tuple[str, ...]:
        return tuple(recipe for _, recipe in self.outputs)


@dataclass(frozen=True)
class ShownCodes(ReadsRuns):
    """The stored code of one training image by each recipe.

    caption  the sentences below
    codes    (label, recipe) of each row
    """

    caption: str
    codes: tuple[tuple[str, str], ...]

    @property
    def recipes(self) -> tuple[str, ...]:
        return tuple(recipe for _, recipe in self.codes)


@dataclass(frozen=True)
class Drawing(ReadsRuns):
    """A picture that needs no run.

    caption  the sentences below
    alt      the picture in a sentence, for readers who cannot see it
    draw     writes it as a PNG file, for a dark page or not: draw(path, dark)
    """

    caption: str
    alt: str
    draw: Callable[[Path, bool], Path]


Shown = ShownTable | ShownCharts | ShownImages | ShownCodes | Drawing


@dataclass(frozen=True)
class Exhibit(ReadsRuns):
    """The part of a report about one table or figure of a paper.

    Args:
        figure: the name by which claims and recipes refer to it; a new name where no claim is about it.
        title: for readers.
        text: the experiment, in a few sentences.
        shown: in this order.
        note: attempts to reach the paper's numbers where they were not reached; empty where there is none.
    """

    figure: str
    title: str
    text: str
    shown: tuple[Shown, ...]
    note: str = ""
