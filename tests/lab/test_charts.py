"""Charts with bands: the band is drawn where it belongs, and many curves can be told apart."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lifted_bregman.errors import SettingError
from lifted_bregman.reports import Curve
from lifted_bregman_lab.charts import BandChart
from tests.reports.svg import read_chart


def test_a_band_lies_inside_the_axes_and_around_its_curve() -> None:
    curve = Curve("a", [0.0, 1.0, 2.0], [2.0, 3.0, 4.0])
    chart = BandChart("t", [curve], "s", "what", bands=[([1.0, 1.0, 1.0], [8.0, 8.0, 8.0])])
    svg = chart.svg()
    (line,) = read_chart(svg, False)
    assert [y for _, y in line.points] == pytest.approx([2.0, 3.0, 4.0], abs=0.05)
    identifier, shift = re.search(
        r'<use href="#(\w+)" x="0" y="([\d.]+)" style="fill: var\(--curve-1\); fill-opacity', svg
    ).groups()
    outline = re.search(rf'<path id="{identifier}" d="([^"]*)"', svg)[1]
    places = {round(float(y) + float(shift), 3) for _, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", outline)}
    top = float(re.search(r'M [\d.]+ ([\d.]+)  L [\d.]+ \1  " [^>]*--rule[^>]*/><text [^>]*>8</text>', svg)[1])
    bottom = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', svg)[1])
    assert len(places) == 2 and min(places) == pytest.approx(top, abs=0.01) and max(places) < bottom
    assert min(places) < min(float(y) for _, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", curve_path(svg)))


def curve_path(svg: str) -> str:
    return re.search(r'd="([^"]*)" style="fill: none; stroke: var\(--curve-1\)', svg)[1]


def test_bands_that_do_not_fit_are_refused_and_many_curves_differ() -> None:
    curve = Curve("a", [0.0, 1.0], [2.0, 3.0])
    for bands in ([], [([1.0], [2.0, 3.0])], [([1.0, 2.0], [2.0, 3.0])] * 2):
        with pytest.raises(SettingError, match="a band for each curve"):
            BandChart("t", [curve], "s", "what", bands=bands)
    many = BandChart("t", [replace(curve, name=str(n)) for n in range(18)], "s", "what", bands=[((1, 1), (4, 4))] * 18)
    assert len({(colour, kind) for _, colour, kind in many.legend()}) == 18
    below = BandChart("t", [curve], "s", "what", log=True, bands=[((0.0, 1.0), (4.0, 4.0))])
    assert not below.logarithmic and "<svg" in below.svg()
