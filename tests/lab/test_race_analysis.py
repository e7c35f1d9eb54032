"""Targets, ratios and frontiers of a race written by hand, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman.errors import CheckpointError
from lifted_bregman_lab.race.archive.analysis import bests, frontier, reference_entry, targets_of, times_to_target
from lifted_bregman_lab.race.archive.results import read_race
from lifted_bregman_lab.race.archive.tables import best_rows, frontier_rows, halves, target_rows
from lifted_bregman_lab.text import plain_table
from tests.lab.races import by_hand, run_by_hand, write_race

INF = math.inf


def spread(found: Any, entry: str, name: str) -> tuple[float, ...]:
    """Median, least and most."""
    return tuple(found.loc[entry, name])


def times(race: Any, target: str) -> Any:
    return times_to_target(race, race.problems[0], target)


def test_the_target_is_set_by_the_entry_tuned_for_it() -> None:
    problem = by_hand().problems[0]
    assert targets_of(problem) == ("objective", "validation")
    assert targets_of(replace(problem, classify=True)) == ("objective", "accuracy")
    assert [reference_entry(problem, t) for t in ("objective", "validation", "accuracy")] == [
        "adam",
        "adam-validation",
        "adam-validation",
    ]
    untuned = replace(problem, reference="lifted")
    assert reference_entry(untuned, "validation") == "lifted"


def test_time_to_the_last_objective() -> None:
    """Adam ends at 2.0 and 3.0, which it has first at 8 s and at 12 s; lifted has them at 4 s and 6 s."""
    found = times(by_hand(), "objective")
    assert list(found.index) == ["lifted", "slow", "adam", "adam-validation"]
    assert spread(found, "adam", "ratio") == (1.0, 1.0, 1.0)
    assert spread(found, "adam", "seconds") == (10.0, 8.0, 12.0)
    assert spread(found, "lifted", "ratio") == (0.5, 0.5, 0.5)
    assert spread(found, "lifted", "seconds") == (5.0, 4.0, 6.0)
    assert spread(found, "lifted", "epoch") == (2.5, 2.0, 3.0)
    assert spread(found, "slow", "ratio") == (INF, INF, INF)
    assert list(found["reached"]) == [2, 0, 2, 0]


def test_time_to_the_lowest_error_at_no_lower_sparsity() -> None:
    """0.3 with 0.5 zeros at 6 s: lifted has 0.3 at 2 s with 0.4 zeros, which is too few, and 0.25 with 0.5 at 4 s.

    0.2 with 0.5 zeros at 8 s: lifted has 0.2 with 0.1 zeros, and does not arrive.
    """
    found = times(by_hand(), "validation")
    assert spread(found, "adam-validation", "seconds") == (7.0, 6.0, 8.0)
    assert spread(found, "lifted", "ratio") == (INF, pytest.approx(4.0 / 6.0), INF)
    assert found["reached"]["lifted"] == 1


def test_time_to_the_best_accuracy_does_not_ask_for_zeros() -> None:
    found = times(by_hand(classify=True), "accuracy")
    assert spread(found, "lifted", "ratio") == pytest.approx(((2.0 / 6.0 + 6.0 / 8.0) / 2, 2.0 / 6.0, 0.75))
    assert found["reached"]["lifted"] == 2


def test_the_frontier_shows_the_last_rows_up_to_a_time() -> None:
    """Adam took 10 s and 12 s.  At half of that lifted is at its row of 4 s, and at its row of 6 s."""
    race = by_hand()
    at = frontier(race, race.problems[0]).set_index(["fraction", "entry"])
    assert list(at.index.unique("fraction")) == [0.1, 0.25, 0.5, 0.75, 1.0, 1.5]
    half = at.loc[0.5, "lifted"]
    assert (half["seconds"], half["epoch"], half["objective"]) == (5.5, 2.5, 2.5)
    assert half["validation_error"] == pytest.approx(0.225) and half["sparsity"] == pytest.approx(0.3)
    objective = at["objective"]
    assert objective[0.1, "lifted"] == objective[0.1, "adam"] == 9.0
    assert objective[1.0, "adam"] == 2.5 and at["epoch"][1.0, "adam"] == 2.5
    assert objective[1.0, "slow"] == (8.0 + 9.0) / 2 and objective[1.5, "slow"] == (7.0 + 9.0) / 2
    limited = replace(race, budget=1.0)
    assert list(frontier(limited, limited.problems[0])["fraction"].unique()) == [0.1, 0.25, 0.5, 0.75, 1.0]


def test_what_was_reached_at_all() -> None:
    race = by_hand()
    best = bests(race, race.problems[0])
    assert spread(best, "lifted", "objective") == (2.0, 1.0, 3.0)
    assert spread(best, "lifted", "validation_error") == pytest.approx((0.225, 0.2, 0.25))
    assert spread(best, "lifted", "sparsity") == pytest.approx((0.3, 0.1, 0.5))
    assert list(best["diverged"]) == [0, 1, 0, 0]


def test_a_reference_that_starts_at_its_best() -> None:
    race = by_hand()
    rows = [(0.0, 0.0, 9.0, 0.1, 0.0), (1.0, 1.0, 8.0, 0.2, 0.0)]
    late = [(0.0, 0.0, 9.0, 0.3, 0.0), (1.0, 1.0, 8.0, 0.1, 0.0)]
    runs = [run_by_hand("lifted", late), *(run_by_hand(name, rows) for name in ("slow", "adam", "adam-validation"))]
    ratio = times(replace(race, repetitions=(race.repetitions[0] | {"traces": runs},)), "validation")["ratio", "median"]
    assert ratio["slow"] == 1.0 and ratio["lifted"] == INF


def test_cut_repetitions_count_only_where_there_is_no_whole_one() -> None:
    race = by_hand()
    first, cut = race.repetitions[0], race.repetitions[1] | {"whole": False}
    mixed = replace(race, repetitions=(first, cut))
    assert set(mixed.rows_of("p")["seed"]) == {0} and mixed.count("p") == 1
    assert set(replace(race, repetitions=(cut,)).rows_of("p")["seed"]) == {1}


def test_a_table_has_a_line_for_each_evaluation() -> None:
    rows = by_hand().rows
    assert len(rows) == (4 + 3 + 4 + 3) + (3 + 1 + 3 + 3)
    third = rows.iloc[2]
    assert (third["problem"], third["seed"], third["entry"], third["step"]) == ("p", 0, "lifted", 2.0)
    assert (third["seconds"], third["objective"], third["sparsity"]) == (4.0, 2.0, 0.5)


# The file.


def test_the_file_gives_the_race_again(tmp_path: Path) -> None:
    race = by_hand()
    write_race(tmp_path / "race.json", race)
    assert read_race(tmp_path / "race.json") == race
    stored = json.loads((tmp_path / "race.json").read_text())
    assert stored["heats"][0]["traces"][0]["rows"][2]["objective"] == 2.0
    assert stored["problems"][0]["entries"][2]["grid"] == [0.001, 0.01, 0.1]


def damage(name: str, stored: dict[str, Any]) -> str:
    match name:
        case "kind":
            stored["kind"] = "lifted demo, format 1"
        case "missing":
            del stored["heats"][0]["traces"][0]["rows"][0]["objective"]
        case "word":
            stored["heats"][0]["traces"][0]["rows"][0]["seconds"] = "soon"
        case "entry":
            stored["heats"][0]["traces"][0]["entry"] = "somebody"
        case "problem":
            stored["heats"][0]["problem"] = "other"
        case "empty":
            stored["heats"][0]["traces"][0]["rows"] = []
        case "budget":
            stored["budget"] = "much"
        case "reference":
            stored["problems"][0]["reference"] = "nobody"
        case "heats":
            stored["heats"] = []
        case "load":
            stored["heats"][0]["load"] = "much"
        case "whole":
            stored["heats"][0]["whole"] = None
        case "huge":
            stored["heats"][0]["traces"][0]["rows"][0]["objective"] = 10**400
        case "value":
            stored["problems"][0]["entries"][1]["value"] = "small"
        case "grid":
            stored["problems"][0]["entries"][1]["grid"] = "0.1"
        case "list":
            return "[]"
        case "text":
            return "no json"
    return json.dumps(stored)


DAMAGES = "kind missing word entry problem empty budget reference heats load whole huge value grid list text".split()


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    write_race(path, by_hand())
    path.write_text(damage(name, json.loads(path.read_text())))
    with pytest.raises(CheckpointError, match="holds no race"):
        read_race(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no race"):
        read_race(tmp_path / "none.json")


# The tables.

RACE = by_hand()
PROBLEM = RACE.problems[0]


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


def test_plain_tables_align_words_left_and_numbers_right() -> None:
    lines = plain_table(("entry", "ratio"), [("a", "10.00"), ("longer", "-"), ("b", "1.00")])
    assert lines == ["entry   ratio", "a       10.00", "longer      -", "b        1.00"]
