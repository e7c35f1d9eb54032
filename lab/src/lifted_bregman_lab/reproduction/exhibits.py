"""Exhibits: what a report shows of a paper besides its claims, as plain data: tables, curves, images, codes, drawings.

A cell of a table and a curve name what is read off stored runs.  Published numbers are not repeated here: a cell whose
quantity is that of a claim has the claim's number beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lifted_bregman.errors import SettingError
from lifted_bregman_lab.reproduction.quantities import Quantity

PARTS = ("train", "validation")


@dataclass(frozen=True)
class ShownRow:
    """A row of a table: what it is, and a quantity for each column; None for an empty cell."""

    title: str
    cells: tuple[Quantity | None, ...]

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that it is read off."""
        return _each(name for cell in self.cells if cell is not None for name in cell.recipes)


@dataclass(frozen=True)
class ShownTable:
    """Means over seeds with their spread, and what the paper has above them.

    Args:
        caption: a sentence or two.
        columns: their names.
        rows: at least one, of as many cells.
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

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that it is read off."""
        return _each(name for row in self.rows for name in row.recipes)


@dataclass(frozen=True)
class ShownCurve:
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
class ShownChart:
    """Curves over one pair of axes.

    title     what the y axis shows
    curves    at least one, with different names
    x_label   what the x axis shows; no other chart has both this title and this label
    against   the entry of the rows that the x axis shows
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
class ShownCharts:
    """Charts that stand together, with a caption."""

    charts: tuple[ShownChart, ...]
    caption: str

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that they are read off."""
        return _each(curve.recipe for chart in self.charts for curve in chart.curves)


@dataclass(frozen=True)
class ShownImages:
    """Stored images of one part of the data: what should come out, what went in, and what each recipe made of it.

    caption  the sentences below
    part     "train" or "validation"
    outputs  (label, recipe) of each row
    inputs   whether what went in is shown, because it is not what should come out
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
        """The recipes whose images are shown."""
        return _each(recipe for _, recipe in self.outputs)


@dataclass(frozen=True)
class ShownCodes:
    """The stored code of one training image by each recipe.

    caption  the sentences below
    codes    (label, recipe) of each row
    """

    caption: str
    codes: tuple[tuple[str, str], ...]

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes whose codes are shown."""
        return _each(recipe for _, recipe in self.codes)


@dataclass(frozen=True)
class Drawing:
    """A picture that needs no run.

    caption  the sentences below
    alt      the picture in a sentence, for those who cannot see it
    draw     writes it as a PNG file, for a dark page or not: draw(path, dark)
    """

    caption: str
    alt: str
    draw: Callable[[Path, bool], Path]

    @property
    def recipes(self) -> tuple[str, ...]:
        """None."""
        return ()


Shown = ShownTable | ShownCharts | ShownImages | ShownCodes | Drawing


@dataclass(frozen=True)
class Exhibit:
    """What a report shows about one table or figure of a paper.

    Args:
        figure: the name by which claims and recipes refer to it; one of its own where no claim is about it.
        title: as people read it.
        text: what was done, in a few sentences.
        shown: in this order.
        note: what was tried where the paper's numbers were not reached; empty where there is nothing to say.
    """

    figure: str
    title: str
    text: str
    shown: tuple[Shown, ...]
    note: str = ""

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that it shows."""
        return _each(name for one in self.shown for name in one.recipes)


def _each(names: Iterable[str]) -> tuple[str, ...]:
    """Every name once, in their order."""
    return tuple(dict.fromkeys(names))
