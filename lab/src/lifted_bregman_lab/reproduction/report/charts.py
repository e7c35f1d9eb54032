"""The figures of a reproduction, from stored rows and pictures: means over seeds as lines, all seeds as a band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lifted_bregman.reports.charts import Charts, Curve
from lifted_bregman.reports.page import Block, Text
from lifted_bregman.reports.strips import Strip, Strips
from lifted_bregman_lab.charts import BandChart
from lifted_bregman_lab.reproduction import RecipeRun
from lifted_bregman_lab.reproduction.exhibits import ShownChart, ShownCharts, ShownCodes, ShownCurve, ShownImages
from lifted_bregman_lab.reproduction.packing import CODE, unpack, unpack_code
from lifted_bregman_lab.reproduction.report.results import Results

Band = tuple[list[float], list[float]]
_OVER_SEEDS = "Lines are means over seeds, and bands go from the least to the most of them."


def charts_block(results: Results, shown: ShownCharts) -> Block:
    """The charts, with the runs that diverged named below them; a sentence where no run is stored."""
    drawn = [chart for chart in (_chart(results, one) for one in shown.charts) if chart is not None]
    if not drawn:
        return Text(f"{shown.caption} {_diverged(results, shown.recipes) or 'None of these runs is stored yet.'}")
    several = any(len(results.evidence.runs(name)) > 1 for name in shown.recipes)
    caption = [shown.caption, _OVER_SEEDS if several else "", _diverged(results, shown.recipes)]
    return Charts(drawn, " ".join(filter(None, caption)))


def images_block(results: Results, shown: ShownImages) -> Block:
    """Rows of images of the first seed: targets, inputs if they are shown, and the outputs of each recipe."""
    pictured, caption = _pictured(results, shown.caption, shown.outputs)
    if not pictured:
        return Text(caption)
    first = pictured[0][1]
    rows = [("original", first, "target"), *([("input", first, "input")] if shown.inputs else [])]
    rows += [(label, run, "output") for label, run in pictured]
    strips = [Strip(label, unpack(run.pictures[f"{shown.part}_{name}"]) / 255.0) for label, run, name in rows]
    return Strips(strips, caption, "a row of small images")


def codes_block(results: Results, shown: ShownCodes) -> Block:
    """One row of coloured pixels for each code."""
    pictured, caption = _pictured(results, shown.caption, shown.codes)
    strips = []
    for label, run in pictured:
        code = unpack_code(run.pictures[CODE])
        size = f"{np.count_nonzero(code)} of {len(code)}, up to {np.abs(code).max():.3g}"
        strips.append(Strip(f"{label}: {size}", code.reshape(1, _height(len(code)), -1), signed=True))
    return Strips(strips, caption, "a code, mostly zeros") if strips else Text(caption)


def curve_of(results: Results, shown: ShownCurve, against: str) -> tuple[Curve, Band]:
    """Mean, and least and most, over seeds at every x that all seeds have; empty where no run is stored."""
    runs = results.evidence.runs(shown.recipe)
    if not runs:
        return Curve(f"{shown.name} (not run)", [], []), ([], [])
    rows = pd.concat([pd.DataFrame({"x": run.column(against), "y": run.column(shown.column)}) for run in runs.values()])
    points = rows.groupby("x")["y"].agg(["count", "mean", "min", "max"])
    points = points[points["count"] == len(runs)].tail(1 if shown.level else len(points))
    y, low, high = (points[name].tolist() for name in ("mean", "min", "max"))
    return Curve(shown.name, points.index.tolist(), y), (low, high)


def _chart(results: Results, shown: ShownChart) -> BandChart | None:
    pairs = [curve_of(results, curve, shown.against) for curve in shown.curves]
    if not any(curve.points for curve, _ in pairs):
        return None
    reach = [x for curve, _ in pairs for x, _ in curve.points]
    levels = [curve.level and bool(pair[0].points) for curve, pair in zip(shown.curves, pairs, strict=True)]
    pairs = [_stretched(*pair, reach) if level else pair for pair, level in zip(pairs, levels, strict=True)]
    ends = ", ".join(f"{curve.name} {curve.y[-1]:.4g}" for curve, _ in pairs if curve.points)
    alt = f"{shown.title} against {shown.x_label}. Means over seeds end at: {ends}."
    curves, bands = [curve for curve, _ in pairs], [band for _, band in pairs]
    return BandChart(shown.title, curves, shown.x_label, alt, shown.log, shown.fraction, bands)


def _stretched(curve: Curve, band: Band, reach: Sequence[float]) -> tuple[Curve, Band]:
    """A single point as a horizontal line over the whole chart."""
    ends = [min(reach), max(reach)]
    return Curve(curve.name, ends, [*curve.y, *curve.y]), ([*band[0], *band[0]], [*band[1], *band[1]])


def _diverged(results: Results, recipes: Sequence[str]) -> str:
    runs = [run for name in recipes for run in results.evidence.runs(name).values()]
    names = [f"{run.recipe} with seed {run.seed}" for run in runs if run.diverged]
    return f"Diverged, and shown as far as it went: {', '.join(names)}." if names else ""


def _pictured(
    results: Results, caption: str, labelled: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, RecipeRun]], str]:
    """(label, run of the first seed) of each recipe with stored pictures; and the caption, which names the others."""
    pictured, diverged, missing = list[tuple[str, RecipeRun]](), list[str](), list[str]()
    for label, recipe in labelled:
        runs = list(results.evidence.runs(recipe).values())
        if runs and runs[0].pictures:
            pictured.append((label, runs[0]))
        else:
            (diverged if any(run.diverged for run in runs) else missing).append(label)
    if len(missing) == len(labelled):
        return [], f"{caption} None of these runs is stored yet."
    notes = (("Not run yet", missing), ("Diverged, and left no picture", diverged))
    return pictured, " ".join([caption, *(f"{note}: {', '.join(labels)}." for note, labels in notes if labels)])


def _height(width: int) -> int:
    """The largest divisor h of `width` with width / h >= 4 h, or 1."""
    return max((height for height in range(1, width + 1) if width % height == 0 and 4 * height**2 <= width), default=1)
