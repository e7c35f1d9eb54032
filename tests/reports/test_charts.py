"""Charts show the numbers they were given: read back from the drawing, by its own ticks."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifted_bregman.errors import SettingError
from lifted_bregman.reports import Chart, Charts, Curve, Page, Section
from lifted_bregman.reports.palette import DARK, LIGHT
from tests import fresh
from tests.reports.svg import read_chart


def chart(*curves: Curve, **options: bool) -> Chart:
    return Chart("title", curves, "seconds", "what it shows", **options)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("huge", [1.7e308, -1.7e308, math.inf, math.nan])
def test_points_beyond_1e300_are_left_out(huge: float, log: bool) -> None:
    drawn = chart(Curve("one", [1.0, 2.0, 3.0, huge], [4.0, huge, 6.0, 7.0]), log=log)
    assert drawn.curves[0].points == ((1.0, 4.0), (3.0, 6.0))
    assert drawn.svg() == chart(Curve("one", [1.0, 3.0], [4.0, 6.0]), log=log).svg()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([0.0, 1.0, 2.5, 18.0], [34.0, 12.0, 5.0, 2.7]),
        ([1.0, 2.0, 3.0], [0.0753, 0.0201, 0.0130]),
        ([1.0, 2.0, 3.0], [5.01, 5.03, 5.02]),
        ([0.0, 4000.0], [1e-6, 1e6]),
        ([0.0, 1e-3], [1e-3, 1e-30]),
        ([10.0, 20.0, 30.0, 40.0], [1.9, 2.2, 3.1, 1.8]),
    ],
)
def test_a_line_runs_through_its_points(x: list[float], y: list[float], log: bool) -> None:
    drawn = chart(Curve("one", x, y), log=log)
    (line,) = read_chart(drawn.svg(), drawn.logarithmic)
    assert drawn.logarithmic is log
    read_x, read_y = zip(*line.points, strict=True)
    np.testing.assert_allclose(read_x, x, atol=2e-3 * (max(x) - min(x)))
    if log:
        np.testing.assert_allclose(np.log(read_y), np.log(y), atol=4e-3 * math.log(max(y) / min(y)) + 1e-5)
    else:
        np.testing.assert_allclose(read_y, y, atol=4e-3 * (max(y) - min(y)))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(1e-4, 1e4), min_size=2, max_size=8, unique=True), st.booleans())
def test_any_values_can_be_read_off(values: list[float], log: bool) -> None:
    drawn = chart(Curve("one", list(range(len(values))), values), log=log)
    if max(values) < 1.001 * min(values):
        drawn.svg()
        return
    (line,) = read_chart(drawn.svg(), drawn.logarithmic)
    for (_, read), value in zip(line.points, values, strict=True):
        close = 1e-2 * math.log(max(values) / min(values)) * value if log else 1e-2 * (max(values) - min(values))
        assert abs(read - value) <= close + 1e-4 * value


def test_a_fraction_is_shown_in_per_cent() -> None:
    drawn = chart(Curve("one", [0, 1, 2], [0.0, 0.5, 0.91]), fraction=True)
    assert "80 %" in drawn.svg()
    (line,) = read_chart(drawn.svg(), False)
    assert line.points[-1][1] == pytest.approx(0.91, abs=2e-3)


def test_the_first_curve_lies_on_top_and_each_has_its_own_colour_and_dashes() -> None:
    drawn = chart(Curve("a", [0, 1], [1, 2]), Curve("b", [0, 1], [2, 3]), Curve("c", [0, 1], [4, 5]))
    lines = read_chart(drawn.svg(), False)
    assert [line.points[0][1] for line in lines] == pytest.approx([4, 2, 1], abs=1e-2)
    assert drawn.legend() == [("a", 1, "solid"), ("b", 2, "dashed"), ("c", 3, "dotted")]
    for line, (_, colour, _) in zip(reversed(lines), drawn.legend(), strict=True):
        assert f"var(--curve-{colour})" in line.style
    assert len({line.style.partition("dasharray")[2] for line in lines}) == 3


def test_points_that_are_not_finite_are_left_out() -> None:
    drawn = chart(Curve("one", [0, 1, 2, 3], [1.0, math.nan, math.inf, 3.0]))
    (line,) = read_chart(drawn.svg(), False)
    assert [round(x) for x, _ in line.points] == [0, 3]


def test_values_that_are_not_positive_have_no_logarithmic_axis() -> None:
    drawn = chart(Curve("one", [0, 1, 2], [1.0, 0.0, 3.0]), log=True)
    assert not drawn.logarithmic
    html = Page("t", "s", [Section("one", [Charts([drawn])])]).html()
    assert "log scale" not in html
    (line,) = read_chart(drawn.svg(), False)
    assert line.points[1][1] == pytest.approx(0.0, abs=1e-2)


def test_a_curve_of_one_point_is_drawn() -> None:
    svg = chart(Curve("one", [3], [7.0])).svg()
    assert "<use " in svg and 'href="#' in svg


def test_one_legend_serves_charts_of_the_same_curves() -> None:
    def titled(title: str, *names: str) -> Chart:
        return Chart(title, [Curve(name, [0, 1], [1, 2]) for name in names], "x", "alt")

    same = Charts([titled("one", "a", "b"), titled("two", "a", "b")])
    other = Charts([titled("one", "a", "b"), titled("two", "a", "c"), titled("three", "a")])
    assert same.shared and not other.shared
    assert Page("t", "s", [Section("s", [same])]).html().count('aria-label="Legend"') == 1
    assert Page("t", "s", [Section("s", [other])]).html().count('aria-label="Legend"') == 2  # a lone curve needs none


def test_colours_are_the_pages_own() -> None:
    svg = chart(*(Curve(str(number), [0, 1], [number, 2]) for number in range(8))).svg()
    for palette in (LIGHT, DARK):
        for colour in palette.variables().values():
            assert colour not in svg
    assert "#" not in svg.replace('href="#', "")
    assert "font-family" not in svg and "clip-path" not in svg and " id=" not in svg


def test_the_same_numbers_give_the_same_drawing() -> None:
    curves = "[Curve('one', [0, 1, 2], [3, 1, 2]), Curve('point', [1], [2])]"
    script = (
        "from lifted_bregman.reports import Chart, Curve\n"
        f"print(Chart('title', {curves}, 'seconds', 'what it shows').svg())"
    )
    run = fresh.run(script)
    assert run.stdout.strip() == chart(Curve("one", [0, 1, 2], [3, 1, 2]), Curve("point", [1], [2])).svg()


def test_labels_are_text_and_escaped() -> None:
    evil = '<script>alert(1)</script> $x$ & "'
    page = Page(
        "t", "s", [Section("one", [Charts([Chart(evil, [Curve(evil, [0, 1], [1, 2])] * 2, evil, evil)], evil)])]
    )
    html = page.html()
    assert "<script" not in html and "&lt;script&gt;" in html
    assert "$x$" in html  # no mathematics is made of what somebody called something


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Curve("one", [1, 2], [1]), "2 x and 1 y"),
        (lambda: chart(Curve("one", [1.0], [math.nan])), "no finite point"),
        (lambda: Chart("title", [Curve("one", [1], [1])], "x", " "), "alt text"),
        (lambda: Charts([]), "at least one"),
        (lambda: Charts([chart(Curve("one", [1], [1]))] * 2), "titles that differ"),
    ],
)
def test_charts_without_points_titles_or_words_are_refused(make, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make()
