"""The README's picture: the error on new samples against the clock, lifted beside the optimisers of the race."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lifted_bregman.reports.figures import new_figure, style
from lifted_bregman.reports.palette import LIGHT, Palette
from lifted_bregman_lab.charts import write_svgs
from lifted_bregman_lab.front.tables import NAMES, FrontEvidence
from lifted_bregman_lab.race.opponents import OURS
from lifted_bregman_lab.race.problems import Budget
from lifted_bregman_lab.race.store import Row

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEM = "evidence"
PANELS: tuple[tuple[str, Budget, str, str], ...] = (
    ("fashion-10k", "short", "Sparse autoencoder, Fashion-MNIST", "squared error, new images"),
    ("cifar-lenet", "short", "LeNet-5, CIFAR-10", "wrong classes, new images"),
    ("shakespeare", "short", "GPT, tiny Shakespeare", "nats per character, new text"),
    ("puma32h", "short", "Table puma32h, two layers of 256", "error, new samples"),
)
"""Problem, budget, title and y axis of each panel."""
_DASHES = ("-", (0, (6, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)), (0, (3, 1.5)))


def curve(runs: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Seconds over those of AdamW for as many steps, and the error: medians over seeds at each evaluation."""
    traces = [np.array(run["trace"], dtype=float) for run in runs]
    units = [run["reference_seconds"] for run in runs]
    count = min(map(len, traces))
    times = np.median([trace[:count, 1] / unit for trace, unit in zip(traces, units, strict=True)], axis=0)
    errors = np.median([trace[:count, 3] for trace in traces], axis=0)
    return times.tolist(), errors.tolist()


def draw_evidence(evidence: FrontEvidence, palette: Palette = LIGHT) -> Figure:
    """A panel for each problem, with the curves of all opponents that raced on it; ours lies on top."""
    drawing = new_figure(10.6, 6.6, palette)
    panels = drawing.subplots(2, 2).flat
    handles: dict[str, Artist] = {}
    for axes, (problem, budget, title, label) in zip(panels, PANELS, strict=True):
        style(axes, palette, title)
        _draw(axes, evidence, problem, budget, palette, handles)
        axes.set_ylabel(label, fontsize=10)
        axes.set_xlabel("time; 1 is AdamW's for the run", fontsize=10)
    there = [name for name in NAMES if name in handles]
    lines, names = [handles[name] for name in there], [NAMES[name] for name in there]
    options: dict[str, Any] = {"frameon": False, "labelcolor": palette.ink, "fontsize": 11, "handlelength": 2.6}
    drawing.legend(lines, names, loc="upper center", ncols=len(there), **options)
    drawing.subplots_adjust(left=0.065, right=0.99, top=0.88, bottom=0.08, wspace=0.2, hspace=0.36)
    return drawing


def _draw(
    axes: Axes, evidence: FrontEvidence, problem: str, budget: Budget, palette: Palette, handles: dict[str, Artist]
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    lowest, first = [], []
    for place, name in reversed(list(enumerate(NAMES))):
        runs = evidence.races[budget].runs("error", problem, name)
        if runs:
            times, errors = curve(runs)
            colour, width, size = palette.curves[place], *((2.8, 6.0) if name == OURS else (1.8, 4.5))
            (handles[name],) = axes.plot(times, errors, color=colour, linewidth=width, linestyle=_DASHES[place])
            axes.plot(times[-1], errors[-1], "o", color=colour, markersize=size)
            lowest.append(min(errors))
            first.append(errors[1])
    axes.set_yscale("log")
    axes.set_ylim(0.85 * min(lowest), 1.15 * max(first))
    axes.set_xlim(left=0.0)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 5, 10)))


def write_picture(evidence: FrontEvidence, folder: Path) -> None:
    """Write evidence.svg and, for dark readers, evidence_dark.svg."""
    write_svgs(lambda palette: draw_evidence(evidence, palette), folder, STEM)
