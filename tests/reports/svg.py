"""Reads a chart back out of its drawing: the oracle of the charts.

Ticks say which place on the paper means which number.  With them every point of a line can be turned back into numbers.
"""

import math
import re
from dataclasses import dataclass
from xml.etree import ElementTree

Point = tuple[float, float]


@dataclass
class Line:
    style: str
    points: list[Point]


def read_chart(svg: str, logarithmic: bool) -> list[Line]:
    """The lines in the units of the axes, in the order in which they were drawn."""
    root = ElementTree.fromstring(svg)
    texts = [(float(t.get("x", "nan")), float(t.get("y", "nan")), t.text or "") for t in root.iter("text")]
    ticks = [(x, y, _number(text)) for x, y, text in texts if _number(text) is not None]
    # The labels of the x axis share one height, those of the y axis stand at other heights.
    heights = [round(y, 3) for _, y, _ in ticks]
    common = max(set(heights), key=heights.count)
    along = [(x, value) for x, y, value in ticks if round(y, 3) == common]
    upwards = [(y, value) for _, y, value in ticks if round(y, 3) != common]
    assert len(along) >= 2 and len(upwards) >= 2, "an axis has fewer than two ticks"
    grid = _grid_heights(root)
    to_x = _scale(along, logarithmic=False)
    to_y = _scale([(_nearest(y, grid), value) for y, value in upwards], logarithmic)
    lines = []
    for path in root.iter("path"):
        style = path.get("style", "")
        if "var(--curve-" in style and "stroke-width: 2" in style:
            numbers = [tuple(map(float, pair)) for pair in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path.get("d", ""))]
            lines.append(Line(style, [(to_x(x), to_y(y)) for x, y in numbers]))
    return lines


def _number(text: str) -> float | None:
    try:
        value = text.replace(",", "").replace("−", "-")
        return float(value.removesuffix(" %")) / (100.0 if value.endswith(" %") else 1.0)
    except ValueError:
        return None


def _grid_heights(root: ElementTree.Element) -> list[float]:
    """y of the horizontal lines of the grid: labels stand a little below the line they belong to."""
    found = []
    for path in root.iter("path"):
        numbers = re.findall(r"-?[\d.]+", path.get("d", ""))
        grid = "var(--rule); stroke-width: 0.6" in path.get("style", "")  # the axes themselves are thicker
        if grid and len(numbers) == 4 and numbers[1] == numbers[3]:
            found.append(float(numbers[1]))
    return found


def _nearest(y: float, heights: list[float]) -> float:
    return min(heights, key=lambda height: abs(height - y))


def _scale(ticks: list[tuple[float, float]], logarithmic: bool):
    """The affine map through the outermost ticks; the others must agree with it."""
    bend = math.log if logarithmic else float
    (low, first), (high, last) = min(ticks), max(ticks)
    slope = (bend(last) - bend(first)) / (high - low)

    def value(place: float) -> float:
        straight = bend(first) + slope * (place - low)
        return math.exp(straight) if logarithmic else straight

    for place, number in ticks:
        assert math.isclose(value(place), number, rel_tol=2e-3, abs_tol=2e-3 * abs(last - first)), (place, number)
    return value
