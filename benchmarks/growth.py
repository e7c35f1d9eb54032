"""How time and peak memory grow with samples, width, depth and batch: a lifted step beside back-propagation.

    python benchmarks/growth.py [--quick] [--rounds 9] [--threads 2] [--json FILE]
    python benchmarks/growth.py --redraw FILE

Networks of ReLU layers of equal width with a squared error; the solver is the library's default, the opponent plain
PyTorch with fused Adam, timed in turn in one process.  Time is that of one step, and of one epoch where samples grow.
Exponents are slopes in a log-log plot, by least squares over the upper half of each range, with their standard errors.
With --json FILE the table is also written beside it as Markdown (.inc) and the chart as pictures (.svg, _dark.svg);
--redraw makes these again from the numbers in FILE.  It takes about three minutes, --quick some seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from _backprop import FORMS, backprop_step
from _interleaved import report
from _memory import peak_of_a_step
from _rounds import compare, fastest, timed
from _tables import markdown, place, plain
from _tasks import Task, solver_step

import lifted_bregman as lb
from lifted_bregman.experiments.environment import environment
from lifted_bregman.reports.charts import _round_numbers
from lifted_bregman.reports.figures import new_figure, style
from lifted_bregman.reports.palette import DARK, LIGHT, Palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAYERS, WIDTH, BATCH = 4, 512, 100


@dataclass(frozen=True)
class Axis:
    """What grows, in which sizes, and the network of each size."""

    name: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    task: Callable[[int], Task]
    epoch: bool = False
    """Whether a size is a number of samples, and the time that of a pass over them."""


def network(layers: int = LAYERS, width: int = WIDTH, batch: int = BATCH) -> Task:
    return Task(f"{layers} layers of {width}, batch {batch}", (width,) * (layers + 1), batch)


AXES = (
    Axis(
        "samples",
        (1000, 1500, 2000, 3000, 4000, 6000, 8000),
        (200, 400, 800),
        lambda _: network(width=WIDTH // 2),
        epoch=True,
    ),
    Axis("width", (128, 192, 256, 384, 512, 768, 1024, 1536, 2048), (32, 64, 128), lambda n: network(width=n)),
    Axis("depth", (2, 3, 4, 6, 8, 12, 16, 24, 32), (2, 4, 8), lambda n: network(layers=n, width=WIDTH // 2)),
    Axis("batch", (10, 25, 50, 100, 150, 200, 300, 400, 600, 800), (10, 40, 160), lambda n: network(batch=n)),
)
METHODS = {"ours": "lifted", "other": "back-propagation"}
QUANTITIES = {"ms": "time", "bytes": "memory"}

Row = dict[str, Any]


def measure(axis: Axis, size: int, rounds: int) -> Row:
    """Milliseconds and peak bytes of both methods at one size; back-propagation in its best form for each."""
    task = axis.task(size)
    steps = size // task.batch if axis.epoch else 1

    def ours(batches: int) -> Callable[[], object]:
        return solver_step(task, lb.training.default_solver(), batches)

    def other(form: str, batches: int) -> Callable[[], object]:
        return backprop_step(task, form, batches)

    form = fastest(timed({form: other(form, 8) for form in FORMS}, min(rounds, 3), span=0.01))
    found = timed(
        {"ours": repeated(ours(max(steps, 8)), steps), "other": repeated(other(form, max(steps, 8)), steps)}, rounds
    )
    return {
        "axis": axis.name,
        "size": size,
        **compare(found["ours"], found["other"]),
        "adam_form": form,
        "ours_bytes": peak_of_a_step(lambda: ours(steps)),
        "other_bytes": min(peak_of_a_step(lambda form=form: other(form, steps)) for form in FORMS),
    }


def repeated(step: Callable[[], object], times: int) -> Callable[[], object]:
    def several() -> None:
        for _ in range(times):
            step()

    return step if times == 1 else several


class Fit(NamedTuple):
    """value ∝ size^exponent."""

    exponent: float
    error: float

    def __str__(self) -> str:
        return f"{self.exponent:.2f} ± {self.error:.2f}"


def fit(sizes: Sequence[float], values: Sequence[float]) -> Fit:
    """The slope of log(value) over log(size) and its standard error, over the upper half of the sizes (at least 3)."""
    first = min(len(sizes) // 2, len(sizes) - 3)
    x, y = ([math.log(number) for number in numbers[first:]] for numbers in (sizes, values))
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - x_mean) ** 2 for a in x)
    slope = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / spread
    residual = sum((b - y_mean - slope * (a - x_mean)) ** 2 for a, b in zip(x, y, strict=True))
    return Fit(slope, math.sqrt(residual / (len(x) - 2) / spread))


def exponent(rows: Sequence[Row], axis: str, method: str, unit: str) -> Fit:
    chosen = [row for row in rows if row["axis"] == axis]
    return fit([row["size"] for row in chosen], [row[f"{method}_{unit}"] for row in chosen])


def exponents(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table: one line for each axis and quantity."""
    table = [("grows", "from", "to", "quantity", *(f"{name}, exponent" for name in METHODS.values()))]
    table[0] += ("lifted / back-propagation at the smallest", "at the largest")
    for axis in dict.fromkeys(row["axis"] for row in rows):
        chosen = [row for row in rows if row["axis"] == axis]
        for unit, quantity in QUANTITIES.items():
            fits = (str(exponent(rows, axis, method, unit)) for method in METHODS)
            ends = (f"{row[f'ours_{unit}'] / row[f'other_{unit}']:.2f}" for row in (chosen[0], chosen[-1]))
            table.append((axis, str(chosen[0]["size"]), str(chosen[-1]["size"]), quantity, *fits, *ends))
    return table


def figure(rows: Sequence[Row], palette: Palette = LIGHT) -> Figure:
    """Small multiples: time above memory, one column for each axis, both logarithmic."""
    drawing = new_figure(12.0, 5.8, palette)
    axes_names = list(dict.fromkeys(row["axis"] for row in rows))
    panels = drawing.subplots(len(QUANTITIES), len(axes_names), squeeze=False)
    for column, axis in enumerate(axes_names):
        chosen = [row for row in rows if row["axis"] == axis]
        for line, unit in enumerate(QUANTITIES):
            _panel(panels[line][column], chosen, unit, palette)
        panels[0][column].set_title(axis, fontsize=11, color=palette.ink, loc="left", pad=7)
        panels[-1][column].set_xlabel(axis, fontsize=9)
    for line, label in enumerate(("ms per step (samples: per epoch)", "MB at the peak")):
        panels[line][0].set_ylabel(label, fontsize=9)
    handles, names = panels[0][0].get_legend_handles_labels()
    drawing.legend(handles, names, loc="upper left", ncols=2, frameon=False, labelcolor=palette.ink, fontsize=10)
    drawing.subplots_adjust(left=0.06, right=0.985, top=0.875, bottom=0.09, hspace=0.22, wspace=0.24)
    return drawing


def _panel(axes: Axes, rows: Sequence[Row], unit: str, palette: Palette) -> None:
    from matplotlib.ticker import FixedLocator, StrMethodFormatter

    style(axes, palette)
    sizes = [row["size"] for row in rows]
    axes.set_xscale("log")
    axes.set_yscale("log")
    for number, (method, name) in enumerate(METHODS.items()):
        values = [row[f"{method}_{unit}"] / (1e6 if unit == "bytes" else 1.0) for row in rows]
        colour, kind = palette.curves[number], ("-", (0, (4.5, 1.8)))[number]
        axes.plot(sizes, values, color=colour, linestyle=kind, linewidth=1.8, marker="o", markersize=3.5, label=name)
        found = exponent(rows, rows[0]["axis"], method, unit)
        axes.text(
            0.04,
            0.93 - 0.1 * number,
            f"exponent {found}",
            transform=axes.transAxes,
            color=colour,
            fontsize=8.5,
            va="top",
        )
    low, high = axes.get_ylim()
    high = max(high, 1.5 * low)
    axes.set_ylim(low, high * (high / low) ** 0.3)  # room for the exponents
    axes.xaxis.set_major_locator(FixedLocator(_apart(sizes)))
    axes.yaxis.set_major_locator(FixedLocator(_round_numbers(low, high)))
    for direction in (axes.xaxis, axes.yaxis):
        direction.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.minorticks_off()


def _apart(sizes: Sequence[int]) -> list[int]:
    """Sizes whose names have room beside each other: each at least 1.9 times the one before."""
    kept = [sizes[0]]
    for size in sizes:
        if size >= 1.9 * kept[-1]:
            kept.append(size)
    return kept


def write(result: Mapping[str, Any], path: Path) -> None:
    """The table and the pictures of FILE.json beside it."""
    import matplotlib

    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth"}):
        for palette in (LIGHT, DARK):
            drawing = figure(result["rows"], palette)
            target = path.with_name(f"{path.stem}{palette.suffix}.svg")
            drawing.savefig(target, facecolor=drawing.get_facecolor(), metadata=nothing)
    path.with_suffix(".inc").write_text(page(result, path), encoding="utf-8")


def page(result: Mapping[str, Any], path: Path) -> str:
    """Chart and table, as a page in the folder above that of FILE includes them."""
    stem = f"{path.parent.name}/{path.stem}"
    alt = "Time and peak memory of a lifted step and of back-propagation against samples, width, depth and batch."
    pictures = [
        f"```{{image}} {stem}{palette.suffix}.svg\n:class: {shown}\n:alt: {alt} The table below has the exponents.\n```"
        for palette, shown in ((LIGHT, "only-light"), (DARK, "only-dark"))
    ]
    return "\n\n".join([*pictures, markdown(exponents(result["rows"])), place(result)]) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three small sizes of each")
    parser.add_argument("--rounds", type=int, help="timings of each competitor (9; 3 with --quick)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    parser.add_argument("--json", type=Path, help="also write numbers, table and pictures, to this file and beside it")
    parser.add_argument("--redraw", type=Path, help="measure nothing: table and pictures from this file's numbers")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.redraw:
        write(json.loads(given.redraw.read_text(encoding="utf-8")), given.redraw)
        return
    torch.set_num_threads(given.threads)
    given.load = os.getloadavg()[0]
    rounds = given.rounds or (3 if given.quick else 9)
    sizes = {axis: axis.quick if given.quick else axis.sizes for axis in AXES}
    rows = [measure(axis, size, rounds) for axis in AXES for size in sizes[axis]]
    result = {"rows": rows, "rounds": rounds, "environment": environment()}
    print(plain(exponents(rows)), end="\n\n")
    report(given, result)
    if given.json:
        write(result | {"load_before": given.load}, given.json)


if __name__ == "__main__":
    main()
