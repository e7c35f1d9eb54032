"""The charts of the scale model.  Needs the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lifted_bregman.reports.charts import _round_numbers
from lifted_bregman.reports.figures import new_figure, style
from lifted_bregman.reports.palette import DARK, LIGHT, Palette
from lifted_bregman_lab.scale.analysis import Model
from lifted_bregman_lab.scale.layouts import Best, Scene, best_layouts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = {
    "back-propagation, batch shared, sums hidden": "backprop",
    "lifted, batch shared": "data",
    "lifted, layers shared": "layer",
    "the same, Gram sweep": "passes",
    "lifted, both": "mixed",
}
_KINDS = ((0, ()), (0, (4.5, 1.8)), (0, (1.1, 1.6)), (0, (3.0, 1.2, 1.0, 1.2, 1.0, 1.2)), (0, (6.0, 1.5, 1.0, 1.5)))


def model_figure(model: Model, scenes: Sequence[Scene], palette: Palette = LIGHT) -> Figure:
    """Small multiples: the time of a step against the number of workers, for each scene."""
    drawing = new_figure(11.0, 7.0, palette)
    columns = 2
    panels = drawing.subplots(-(-len(scenes) // columns), columns, squeeze=False).flatten()
    for axes in panels[len(scenes) :]:
        axes.set_visible(False)
    for axes, scene in zip(panels, scenes, strict=False):
        _panel(axes, best_layouts(model, scene), palette)
        axes.set_title(scene.name, fontsize=10.5, color=palette.ink, loc="left", pad=7)
    handles, names = panels[0].get_legend_handles_labels()
    drawing.legend(handles, names, loc="upper left", ncols=5, frameon=False, labelcolor=palette.ink, fontsize=9.5)
    drawing.subplots_adjust(left=0.07, right=0.985, top=0.89, bottom=0.07, hspace=0.32, wspace=0.16)
    return drawing


def write_model_figure(model: Model, scenes: Sequence[Scene], path: Path) -> list[Path]:
    """PATH.svg, for light and for dark pages; the same numbers give the same bytes."""
    import matplotlib

    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    written = []
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "scale"}):
        for palette in (LIGHT, DARK):
            drawing = model_figure(model, scenes, palette)
            written.append(path.with_name(f"{path.name}{palette.suffix}.svg"))
            drawing.savefig(written[-1], facecolor=drawing.get_facecolor(), metadata=nothing)
    return written


def _panel(axes: Axes, found: Sequence[Best], palette: Palette) -> None:
    from matplotlib.ticker import FixedLocator, StrMethodFormatter

    style(axes, palette)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for number, (name, field) in enumerate(CURVES.items()):
        points = [(best.workers, getattr(best, field)) for best in found]
        there = [(workers, 1e3 * at.seconds) for workers, at in points if at is not None]
        x, y = zip(*there, strict=True) if there else ((), ())
        colour, kind = palette.curves[number], _KINDS[number]
        axes.plot(x, y, color=colour, linestyle=kind, linewidth=1.8, marker="o", markersize=3.0, label=name)
    axes.set_xlabel("workers", fontsize=9)
    axes.set_ylabel("model: ms of a step", fontsize=9)
    axes.xaxis.set_major_locator(FixedLocator([best.workers for best in found][::2]))
    axes.yaxis.set_major_locator(FixedLocator(_round_numbers(*axes.get_ylim())))
    for direction in (axes.xaxis, axes.yaxis):
        direction.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.minorticks_off()
