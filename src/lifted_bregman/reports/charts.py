"""Charts: curves with their axes, drawn from numbers.  Needs the extra `plot`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifted_bregman.errors import SettingError
from lifted_bregman.reports.figures import inline_svg, new_figure, style
from lifted_bregman.reports.palette import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES: dict[str, tuple[float, ...]] = {"solid": (), "dashed": (4.5, 1.8), "dotted": (1.1, 1.6)}
_LARGEST = 1e300  # the largest number drawn, so that the limits of its axis stay finite
CHART_SIZE = (4.7, 3.1)  # inches, at which 10.5 points are 11 pixels on a telephone


@dataclass(frozen=True)
class Curve:
    """Points (x, y) joined by a line; `name` is its entry in the legend.  Numbers beyond 1e300 and NaN are left out.

    Example:
        >>> from lifted_bregman.reports import Curve
        >>> Curve("lifted", [1, 2, 3], [1.0, float("nan"), 0.5]).points
        ((1, 1.0), (3, 0.5))
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise SettingError(f"the curve '{self.name}' has {len(self.x)} x and {len(self.y)} y: give as many y as x.")

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """(x, y) of the points that are drawn."""
        pairs = zip(self.x, self.y, strict=True)
        return tuple((x, y) for x, y in pairs if abs(x) <= _LARGEST and abs(y) <= _LARGEST)  # False for NaN


@dataclass(frozen=True)
class Chart:
    """Curves over one pair of axes.

    title     what the y axis shows
    curves    at least one
    x_label   what the x axis shows
    alt       the chart in a sentence, for those who cannot see it
    log       a logarithmic y axis, where all values allow it
    fraction  y is shown in per cent

    Example:
        >>> from lifted_bregman.reports import Chart, Curve
        >>> curve = Curve("lifted", [1, 2, 3], [1.0, 0.1, 0.01])
        >>> Chart("objective", [curve], "epoch", "a falling curve", log=True).logarithmic
        True
    """

    title: str
    curves: Sequence[Curve]
    x_label: str
    alt: str
    log: bool = False
    fraction: bool = False

    def __post_init__(self) -> None:
        if not any(curve.points for curve in self.curves):
            raise SettingError(f"the chart '{self.title}' has no finite point: give at least one.")
        if not self.alt.strip():
            raise SettingError(f"the chart '{self.title}' has no alt text: say in a sentence what it shows.")

    @property
    def logarithmic(self) -> bool:
        """Whether the y axis is logarithmic."""
        return self.log and all(y > 0.0 for curve in self.curves for _, y in curve.points)

    def legend(self) -> list[tuple[str, int, str]]:
        """(name, number of the colour, kind of line) of each curve."""
        kinds = list(DASHES)
        return [
            (curve.name, 1 + place % len(LIGHT.curves), kinds[place % len(kinds)])
            for place, curve in enumerate(self.curves)
        ]

    def svg(self) -> str:
        """The chart as an <svg> element, without title and legend."""
        figure = new_figure(*CHART_SIZE)
        axes = figure.add_axes((0.115, 0.15, 0.86, 0.815))
        style(axes, LIGHT)
        axes.tick_params(labelsize=10.5, left=False, bottom=False, which="both")
        axes.set_xlabel(self.x_label, fontsize=10.5, parse_math=False)
        for curve, (_, colour, kind) in reversed(list(zip(self.curves, self.legend(), strict=True))):
            draw_lines(axes, curve, LIGHT.curves[colour - 1], DASHES[kind])  # the first lies on top
        set_scales(axes, self)
        return inline_svg(figure, f"{self.title} {self.x_label}")


@dataclass(frozen=True)
class Charts:
    """Charts of one group.  They share a legend if their curves have the same names.

    charts   at least one, with different titles
    caption  the sentences below them; none if empty

    Example:
        >>> from lifted_bregman.reports import Chart, Charts, Curve
        >>> curve = Curve("lifted", [1, 2], [1.0, 0.5])
        >>> Charts([Chart(title, [curve], "epoch", "a falling curve") for title in ("train", "test")]).shared
        True
    """

    charts: Sequence[Chart]
    caption: str = ""

    def __post_init__(self) -> None:
        titles = [chart.title for chart in self.charts]
        if not titles or len(set(titles)) < len(titles):
            raise SettingError(
                f"the charts {titles} need at least one chart, and titles that differ: rename or add charts."
            )

    @property
    def shared(self) -> bool:
        """Whether all charts have the same curves, and one legend."""
        return len({tuple(curve.name for curve in chart.curves) for chart in self.charts}) == 1


def draw_lines(axes: Axes, curve: Curve, colour: str, dashes: tuple[float, ...]) -> None:
    """Draw a curve as a line, its single points as dots."""
    if not curve.points:
        return
    x, y = zip(*curve.points, strict=True)
    kind = (0, dashes) if dashes else "-"
    axes.plot(x, y, color=colour, linestyle=kind, linewidth=2.0, clip_on=False, solid_capstyle="round")
    if len(x) == 1:
        axes.plot(x, y, "o", color=colour, markersize=5, clip_on=False)


def set_scales(axes: Axes, chart: Chart) -> None:
    """Limits just around the data, and ticks at round numbers in plain notation."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    x = [point[0] for curve in chart.curves for point in curve.points]
    y = [point[1] for curve in chart.curves for point in curve.points]
    axes.set_xlim(*_widened(min(x), max(x), 0.0))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    low, high = min(y), max(y)
    if chart.logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.06, high * 1.06)
        axes.yaxis.set_major_locator(FixedLocator(_round_numbers(low, high)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(*_widened(low, high, 0.04))
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    if chart.fraction:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g} %"))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))


def _widened(low: float, high: float, margin: float) -> tuple[float, float]:
    """The interval with a margin on both sides, and never empty."""
    if low == high:
        reach = 0.5 * abs(low) or 0.5
        return low - reach, high + reach
    return low - margin * (high - low), high + margin * (high - low)


def _round_numbers(low: float, high: float) -> list[float]:
    """Three to nine numbers between low and high, as round as possible: powers of ten, or 1, 2, 5, 10, 20, or more."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = 1 + (last - first) // 9
    for digits in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        numbers = [digit * 10.0**power for power in range(first, last + 1, stride) for digit in digits]
        inside = [number for number in numbers if low / 1.06 <= number <= high * 1.06]
        if len(inside) >= 3:
            return inside
    from matplotlib.ticker import MaxNLocator

    return list(MaxNLocator(4).tick_values(low / 1.06, high * 1.06))
