"""The figures of a reproduction, from stored rows and pictures: means over seeds as lines, all seeds as a band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lifted_bregman.reports.charts import Charts, Curve
from lifted_bregman.reports.page import Block, Text
from lifted_bregman.reports.strips import Strip, Strips
from lifted_bregman_lab.race.charts import BandChart
from lifted_bregman_lab.reproduction import RecipeRun
from lifted_bregman_lab.reproduction.exhibits import ShownChart, ShownCharts, ShownCodes, ShownCurve, ShownImages
from lifted_bregman_lab.reproduction.packing import CODE, unpack, unpack_code
from lifted_bregman_lab.reproduction.report.results import Results

Band = tuple[list[float], list[float]]
_OVER_SEEDS = "Lines are means over seeds, and bands go from the least to the most of them."


def charts_block(results: Results, shown: ShownCharts) -> Block:
    """The charts, with what is missing or diverged named below them; a sentence where nothing was run."""
    drawn = [chart for chart in (_chart(results, one) for one in shown.charts) if chart is not None]
    if not drawn:
        return Text(f"{shown.caption} {_diverged(results, shown.recipes) or 'None of these runs is stored yet.'}")
    several = any(len(results.evidence.runs(name)) > 1 for name in shown.recipes)
    caption = [shown.caption, _OVER_SEEDS if several else "", _diverged(results, shown.recipes)]
    return Charts(drawn, " ".join(filter(None, caption)))


def images_block(results: Results, shown: ShownImages) -> Block:
    """Rows of images of seed 0, what should come out first."""
    runs, caption = _pictured(results, shown.recipes), _with_missing(results, shown.caption, shown.outputs)
    if not runs:
        return Text(caption)
    first = next(iter(runs.values()))
    strips = [Strip("original", _grey(first, f"{shown.part}_target"))]
    if shown.inputs:
        strips.append(Strip("input", _grey(first, f"{shown.part}_input")))
    strips += [
        Strip(label, _grey(runs[recipe], f"{shown.part}_output")) for label, recipe in shown.outputs if recipe in runs
    ]
    return Strips(strips, caption, "a row of small images")


def codes_block(results: Results, shown: ShownCodes) -> Block:
    """One row of coloured pixels for each code."""
    runs, caption = _pictured(results, shown.recipes), _with_missing(results, shown.caption, shown.codes)
    if not runs:
        return Text(caption)
    strips = []
    for label, recipe in shown.codes:
        if recipe not in runs:
            continue
        code = unpack_code(runs[recipe].pictures[CODE])
        size = f"{np.count_nonzero(code)} of {len(code)}, up to {np.abs(code).max():.3g}"
        strips.append(Strip(f"{label}: {size}", code.reshape(1, _height(len(code)), -1), signed=True))
    return Strips(strips, caption, "a code, mostly zeros")


def curve_of(results: Results, shown: ShownCurve, against: str) -> tuple[Curve, Band]:
    """The mean over seeds where all of them have a row, and from the least to the most; empty where none is stored."""
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
    """A single point as a line over the whole chart."""
    ends = [min(reach), max(reach)]
    return Curve(curve.name, ends, [*curve.y, *curve.y]), ([*band[0], *band[0]], [*band[1], *band[1]])


def _diverged(results: Results, recipes: Sequence[str]) -> str:
    runs = [run for name in recipes for run in results.evidence.runs(name).values()]
    told = [f"{run.recipe} with seed {run.seed}" for run in runs if run.diverged]
    return f"Diverged, and shown as far as it went: {', '.join(told)}." if told else ""


def _pictured(results: Results, recipes: Sequence[str]) -> dict[str, RecipeRun]:
    """The runs with pictures, by recipe; those of the first seed."""
    first = {name: next(iter(results.evidence.runs(name).values()), None) for name in recipes}
    return {name: run for name, run in first.items() if run is not None and run.pictures}


def _grey(run: RecipeRun, name: str) -> NDArray[np.float64]:
    return unpack(run.pictures[name]) / 255.0


def _with_missing(results: Results, caption: str, rows: Sequence[tuple[str, str]]) -> str:
    """The caption with the rows that have no pictures, and why: they were not run, or diverged."""
    found = _pictured(results, [recipe for _, recipe in rows])
    left = [(label, results.evidence.runs(recipe)) for label, recipe in rows if recipe not in found]
    diverged = [label for label, runs in left if any(run.diverged for run in runs.values())]
    missing = [label for label, _ in left if label not in diverged]
    if len(missing) == len(rows):
        return f"{caption} None of these runs is stored yet."
    words = (("Not run yet", missing), ("Diverged, and left no picture", diverged))
    return " ".join([caption, *(f"{said}: {', '.join(labels)}." for said, labels in words if labels)])


def _height(width: int) -> int:
    """The largest divisor for which rows are at least four times as long as high, or 1."""
    return max(
        height for height in range(1, width + 1) if width % height == 0 and (4 * height**2 <= width or height == 1)
    )
