"""The page and the tables of a race show what is in its rows, and say by which rules it was run."""

from __future__ import annotations

import copy
import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.reports import Charts, Curve
from lifted_bregman_lab.race import write_race
from lifted_bregman_lab.race.charts import BandChart
from lifted_bregman_lab.race.page import race_page
from lifted_bregman_lab.race.results import Race
from lifted_bregman_lab.race.rules import rules
from lifted_bregman_lab.race.tables import best_rows, frontier_rows, halves, overview, target_rows
from lifted_bregman_lab.reports import write_report
from lifted_bregman_lab.text import plain_table
from tests.lab.races import by_hand
from tests.reports.svg import read_chart

RACE = by_hand()
PROBLEM = RACE.problems[0]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = race_page(RACE).write(tmp_path_factory.mktemp("race") / "index.html")
    return html.unescape(path.read_text(encoding="utf-8"))


def test_the_page_needs_nothing_else(page: str) -> None:
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org", "")
    assert "prefers-color-scheme: dark" in page


def test_the_report_of_a_folder_with_a_race_is_its_page(page: str, tmp_path: Path) -> None:
    write_race(tmp_path / "race.json", RACE)
    written = write_report(tmp_path)
    assert written == tmp_path / "index.html"
    assert html.unescape(written.read_text(encoding="utf-8")) == page
    written.unlink()
    (tmp_path / "race.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds no race"):
        write_report(tmp_path)
    assert not written.exists()


def test_a_row_without_sparsity_leaves_its_chart_out() -> None:
    repetition = copy.deepcopy(RACE.repetitions[0])
    del repetition["traces"][0]["rows"][1]["sparsity"]

    def titles(race: Race) -> list[str]:
        blocks = [block for section in race_page(race).sections for block in section.blocks]
        return [chart.title for block in blocks if isinstance(block, Charts) for chart in block.charts]

    whole, part = titles(RACE), titles(replace(RACE, repetitions=(repetition, *RACE.repetitions[1:])))
    assert whole == [*part, "Zeros in the code"]


def test_every_rule_and_every_entry_is_on_the_page(page: str) -> None:
    for rule in rules(RACE):
        assert rule in page
    told = " ".join(rules(RACE))
    for fact in ("same initial weights", "Only steps are timed", "whoever goes first", "best of a grid", "1.5 times"):
        assert fact in told
    for entry in PROBLEM.entries:
        assert page.count(entry.name) >= 5 and entry.title in page
    assert "0.001, 0.01, 0.1; batches of 5, 10, 20" in page
    assert "learning_rate = 0.01" in page and "not tuned" in page
    assert "objective and validation" in page
    assert "From nowhere." in page and "by hand" in page
    assert "lifted bench race --problems p" in page


def test_the_result_is_the_ratio_to_the_reference(page: str) -> None:
    header, rows = overview(RACE)
    assert header == ("", "p objective", "p validation")
    assert rows == [
        ("lifted", "0.50", "-"),
        ("slow", "-", "-"),
        ("adam", "1.00", "-"),
        ("adam-validation", "-", "1.00"),
    ]
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.S)]
    assert cells[0] == ["", "p objective", "p validation"]
    assert cells[1] == ["lifted", "0.50", "-"] and cells[3] == ["adam", "1.00", "-"]


def test_the_table_of_a_target() -> None:
    header, rows = target_rows(RACE, PROBLEM, "objective")
    named = dict(zip(header, rows[0], strict=True))
    assert named == {
        "entry": "lifted",
        "ratio": "0.50",
        "from": "0.50",
        "to": "0.50",
        "seconds": "5.00",
        "epochs": "2.5",
        "reached": "2 of 2",
    }
    assert target_rows(RACE, PROBLEM, "validation")[1][0] == ("lifted", "-", "0.67", "-", "-", "-", "1 of 2")


def test_the_tables_of_what_was_reached() -> None:
    _, rows = best_rows(RACE, PROBLEM)
    assert rows[0] == ("lifted", "3.0", "6.00", "2", "1", "3", "0.22500", "0.20000", "0.25000", "30.0 %")
    assert rows[1][0] == "slow (diverged 1 times)"
    race = by_hand(classify=True)
    header, rows = best_rows(race, race.problems[0])
    assert header[6] == "best test accuracy" and rows[0][6:9] == ("77.50 %", "75.00 %", "80.00 %")
    header, rows = frontier_rows(RACE, PROBLEM)
    half = [row for row in rows if row[0] == "0.5"]
    assert half[0] == ("0.5", "5.50", "lifted", "2.5", "2.5", "0.22500", "30.0 %")
    assert [row[2] for row in half] == [entry.name for entry in PROBLEM.entries]
    assert frontier_rows(race, race.problems[0])[1][8][5] == "77.50 %"


def test_the_curves_are_medians_against_seconds(page: str) -> None:
    charts = re.findall(r"<h3>(.*?)</h3>.*?(<svg .*?</svg>)", page, re.S)
    assert [title for title, _ in charts] == [
        "Training objective (log scale)",
        "Validation error (log scale)",
        "Zeros in the code",
    ]
    lines = read_chart(charts[0][1], True)[::-1]
    assert len(lines) == 4
    ends = [line.points[-1] for line in lines]
    # The shorter repetition's end, and the median there; of 'slow' one repetition has its first row alone.
    assert ends[0] == (pytest.approx(6.0, abs=0.05), pytest.approx(2.0, rel=0.02))
    assert ends[2] == (pytest.approx(10.0, abs=0.05), pytest.approx((2.0 + (4.0 - 5.0 / 7.0)) / 2, rel=0.02))
    assert lines[0].points[0] == (pytest.approx(0.0, abs=0.05), pytest.approx(9.0, rel=0.02))


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


def test_a_dash_stands_in_a_column_of_numbers() -> None:
    page = html.unescape(race_page(RACE).html())
    result = re.search(r"<table>.*?</table>", page, re.S)[0]  # type: ignore[index]
    assert "-" in re.findall(r'<td class="number">(.*?)</td>', result)
    assert re.findall(r"<td>(.*?)</td>", result) == [entry.name for entry in PROBLEM.entries]


def test_counts_and_targets_are_those_of_the_race(page: str) -> None:
    told = "Targets: objective: the last training objective of the reference; "
    assert "1 problem, 2 repetitions each" in page and f"{told}validation: the lowest" in page
    single = race_page(replace(by_hand(classify=True), repetitions=RACE.repetitions[:1])).html()
    assert "1 problem, 1 repetition each" in single and f"{told}accuracy: the best" in single


@pytest.mark.parametrize(
    ("name", "epochs", "told"),
    [
        ("p", 3, "lifted bench race --problems p \\\n"),
        ("fashion-1k", 50, "lifted bench race --problems fashion-1k \\\n"),
        ("fashion-1k", 3, "lifted bench race --problems fashion-1k --epochs 3 \\\n"),
        ("mnist-classify-10k", 8, "lifted bench race --quick \\\n"),
        ("mnist-classify-10k", 2, "lifted bench race --quick --epochs 2 \\\n"),
    ],
)
def test_the_command_that_runs_it_again(name: str, epochs: int, told: str) -> None:
    own = tuple(repetition | {"problem": name} for repetition in RACE.repetitions)
    shown = race_page(replace(RACE, problems=(replace(PROBLEM, name=name, epochs=epochs),), repetitions=own)).html()
    assert told in shown and "--competitors lifted,slow,adam \\\n    --repetitions 2 --threads 2 --json" in shown


def test_short_times_have_milliseconds() -> None:
    quick = by_hand()
    for repetition in quick.repetitions:
        for run in repetition["traces"]:
            run["rows"] = [{**row, "seconds": row["seconds"] / 100} for row in run["rows"]]
    assert best_rows(quick, PROBLEM)[1][0][2] == "0.060" and best_rows(RACE, PROBLEM)[1][0][2] == "6.00"


def test_a_wide_table_in_halves() -> None:
    (header, rows), (other, more) = halves(best_rows(RACE, PROBLEM))
    assert header == ("entry", "epochs", "seconds", "last objective", "from", "to")
    assert other == ("entry", "lowest validation error", "from", "to", "zeros there")
    assert rows[0] == ("lifted", "3.0", "6.00", "2", "1", "3")
    assert more[0] == ("lifted", "0.22500", "0.20000", "0.25000", "30.0 %")


def test_a_busy_machine_and_an_early_end_are_told(tmp_path: Path) -> None:
    busy = race_page(replace(RACE, load_before=2.5, interrupted=True)).html()
    assert "not idle before the race (load 2.50)" in busy and "ended early" in busy
    calm = race_page(RACE).html()
    assert "not idle before" not in calm and "ended early" not in calm
    assert "Nothing was finished" in race_page(replace(RACE, problems=(), repetitions=())).html()


def test_how_the_rates_were_found_is_told() -> None:
    provenance = {"seed": 7, "epochs": {"p": 3}, "budget": 1.5, "environment": {"torch": "9.9"}}
    shown = race_page(replace(RACE, provenance=provenance)).html()
    assert "with seed 7" in shown and "p 3" in shown and "torch 9.9" in shown


def test_plain_tables_align_words_left_and_numbers_right() -> None:
    lines = plain_table(("entry", "ratio"), [("a", "10.00"), ("longer", "-"), ("b", "1.00")])
    assert lines == ["entry   ratio", "a       10.00", "longer      -", "b        1.00"]
