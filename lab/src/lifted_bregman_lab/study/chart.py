"""The chart of the study: the errors of all optimisers and architectures, and the shares of their variance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lifted_bregman.reports.figures import new_figure, style
from lifted_bregman.reports.palette import LIGHT, Palette
from lifted_bregman_lab.charts import write_svgs
from lifted_bregman_lab.study.problems import SETS
from lifted_bregman_lab.study.results import Study
from lifted_bregman_lab.study.running import LEVELS
from lifted_bregman_lab.study.summary import KINDS, analysis, cell_errors, sets

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("o", "s", "^")
_SOURCES = {"optimiser": 3, "architecture": 0, "optimiser x architecture": 1, "seed": 5, "rest": 4}
"""The sources of variance in the order of the bars, with the places of their colours in the palette."""


def write_charts(study: Study, folder: Path, stem: str) -> None:
    """Write the chart as stem.svg and, for dark pages, stem_dark.svg."""
    write_svgs(lambda palette: figure(study, palette), folder, stem)


def figure(study: Study, palette: Palette = LIGHT) -> Figure:
    """Draw a row for each data set: errors at the lowest level on the left, shares of the variance on the right."""
    names = sets(study)
    drawing = new_figure(11.0, 0.9 + 3.3 * len(names), palette)
    panels = drawing.subplots(len(names), 2, squeeze=False, width_ratios=(1.75, 1.0))
    for row, data in enumerate(names):
        _errors(panels[row][0], study, data, palette)
        _shares(panels[row][1], study, data, palette)
    panels[-1][0].set_xlabel(f"error on new samples at the training loss {LEVELS[-1]:g}, per cent", fontsize=9)
    panels[-1][1].set_xlabel("share of the variance, per cent", fontsize=9)
    height = drawing.get_figheight()
    top, options = 1.0 - 0.12 / height, {"frameon": False, "labelcolor": palette.ink, "fontsize": 9}
    for column, x in ((0, 0.1), (1, 0.635)):
        handles, labels = panels[0][column].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="upper left", bbox_to_anchor=(x, top), ncols=3, **options)
    edges = {"left": 0.115, "right": 0.985, "top": 1.0 - 0.95 / height, "bottom": 0.5 / height}
    drawing.subplots_adjust(**edges, hspace=0.26, wspace=0.2)
    return drawing


def _errors(axes: Axes, study: Study, data: str, palette: Palette) -> None:
    """Draw a line for each optimiser: for each architecture the mean, and a bar from the smallest to the largest."""
    style(axes, palette, SETS[data])
    cells, order = cell_errors(study, data, LEVELS[-1]), list(study.optimisers)
    for place, kind in enumerate(KINDS):
        there = [name for name in order if (name, kind) in cells]
        y = np.array([order.index(name) for name in there]) + 0.22 * (place - 1)
        errors = 100.0 * np.stack([cells[name, kind] for name in there])
        middle = errors.mean(1)
        reach = np.stack([middle - errors.min(1), errors.max(1) - middle])
        axes.errorbar(
            middle, y, xerr=reach, fmt=_MARKERS[place], color=palette.curves[place], markersize=5, linewidth=1.4,
            label=kind,
        )  # fmt: skip
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def _shares(axes: Axes, study: Study, data: str, palette: Palette) -> None:
    """Draw a bar for each level, the highest training loss at the top."""
    style(axes, palette)
    for row, level in enumerate(LEVELS):
        left = 0.0
        for effect in sorted(analysis(study, data, level), key=lambda effect: list(_SOURCES).index(effect.source)):
            colour, width = palette.curves[_SOURCES[effect.source]], 100.0 * effect.share
            name = "both together" if "x" in effect.source.split() else effect.source
            axes.barh(row, width, left=left, height=0.55, color=colour, label=name if row == 0 else None)
            if width >= 7.0:
                axes.text(
                    left + width / 2, row, f"{width:.0f}", color=palette.paper, ha="center", va="center", fontsize=9
                )
            left += width
    axes.set_yticks(range(len(LEVELS)), [f"loss {level:g}" for level in LEVELS])
    axes.set_ylim(len(LEVELS) - 0.45, -0.55)
    axes.set_xlim(0.0, 100.0)
    axes.grid(visible=False)
