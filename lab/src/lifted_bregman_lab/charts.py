"""Charts with bands: a median or mean as a line, from the least to the most as a band around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lifted_bregman.errors import SettingError
from lifted_bregman.reports.charts import _DASHES, _SIZE, Chart, Curve, _draw, _scale
from lifted_bregman.reports.figures import inline_svg, new_figure, style
from lifted_bregman.reports.palette import LIGHT


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
        colours, kinds = len(LIGHT.curves), list(_DASHES)
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
        figure = new_figure(*_SIZE)
        axes = figure.add_axes((0.115, 0.15, 0.86, 0.815))
        style(axes, LIGHT)
        axes.tick_params(labelsize=10.5, left=False, bottom=False, which="both")
        axes.set_xlabel(self.x_label, fontsize=10.5, parse_math=False)
        drawn = list(zip(self.curves, self.legend(), self.bands, strict=True))
        for curve, (_, colour, _), (low, high) in reversed(drawn):
            axes.fill_between(curve.x, low, high, color=LIGHT.curves[colour - 1], alpha=0.16, linewidth=0)
        for curve, (_, colour, kind), _ in reversed(drawn):
            _draw(axes, curve, LIGHT.curves[colour - 1], _DASHES[kind])  # the first lies on top
        _scale(axes, self._with_edges())
        return inline_svg(figure, f"{self.title} {self.x_label}")

    def _with_edges(self) -> Chart:
        """The chart with the edges of the bands as curves, from which the limits of the axes follow."""
        edges = [Curve("", curve.x, side) for curve, band in zip(self.curves, self.bands, strict=True) for side in band]
        return Chart(self.title, [*self.curves, *edges], self.x_label, self.alt, self.logarithmic, self.fraction)
