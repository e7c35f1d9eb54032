"""Charts with bands: a line for the median or mean, and a band from the smallest to the largest value; SVG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lifted_bregman.errors import SettingError
from lifted_bregman.reports.charts import CHART_SIZE, DASHES, Chart, Curve, draw_lines, set_scales
from lifted_bregman.reports.figures import inline_svg, new_figure, style
from lifted_bregman.reports.palette import DARK, LIGHT, Palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class BandChart(Chart):
    """A chart in which each curve has a band.

    bands  (low, high) of each curve, at its x
    """

    bands: Sequence[tuple[Sequence[float], Sequence[float]]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = len(self.bands) == len(self.curves) and all(
            len(low) == len(high) == len(curve.x) for curve, (low, high) in zip(self.curves, self.bands, strict=False)
        )
        if not fits:
            raise SettingError(f"the chart '{self.title}' needs a band for each curve, of as many points.")

    def legend(self) -> list[tuple[str, int, str]]:
        """(name, number of the colour, kind of line) of each curve; the first eighteen pairs differ."""
        colours, kinds = len(LIGHT.curves), list(DASHES)
        return [
            (curve.name, 1 + place % colours, kinds[(place + place // colours) % len(kinds)])
            for place, curve in enumerate(self.curves)
        ]

    @property
    def logarithmic(self) -> bool:
        """Whether the y axis is logarithmic."""
        return super().logarithmic and all(y > 0.0 for low, _ in self.bands for y in low)

    def svg(self) -> str:
        """The chart as an <svg> element, without title and legend."""
        figure = new_figure(*CHART_SIZE)
        axes = figure.add_axes((0.115, 0.15, 0.86, 0.815))
        style(axes, LIGHT)
        axes.tick_params(labelsize=10.5, left=False, bottom=False, which="both")
        axes.set_xlabel(self.x_label, fontsize=10.5, parse_math=False)
        drawn = list(zip(self.curves, self.legend(), self.bands, strict=True))
        for curve, (_, colour, _), (low, high) in reversed(drawn):
            axes.fill_between(curve.x, low, high, color=LIGHT.curves[colour - 1], alpha=0.16, linewidth=0)
        for curve, (_, colour, kind), _ in reversed(drawn):
            draw_lines(axes, curve, LIGHT.curves[colour - 1], DASHES[kind])  # the first lies on top
        set_scales(axes, self._with_edges())
        return inline_svg(figure, f"{self.title} {self.x_label}")

    def _with_edges(self) -> Chart:
        """Return the chart with the edges of the bands as curves, which set the limits of the axes."""
        edges = [Curve("", curve.x, side) for curve, band in zip(self.curves, self.bands, strict=True) for side in band]
        return Chart(self.title, [*self.curves, *edges], self.x_label, self.alt, self.logarithmic, self.fraction)


def write_svgs(draw: Callable[[Palette], Figure], folder: Path, stem: str) -> None:
    """Write a figure as stem.svg and, for dark readers, stem_dark.svg; the same numbers give the same bytes."""
    import matplotlib

    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": stem}):
        for palette in (LIGHT, DARK):
            drawing = draw(palette)
            target = folder / f"{stem}{palette.suffix}.svg"
            drawing.savefig(target, facecolor=drawing.get_facecolor(), metadata=nothing)
