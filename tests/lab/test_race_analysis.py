"""Targets, ratios and frontiers of a race written by hand, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman_lab.race import read_race, write_race
from lifted_bregman_lab.race.analysis import bests, curve, frontier, reference_entry, targets_of, times_to_target
from tests.lab.races import by_hand, run_by_hand

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


def test_a_curve_is_straight_between_rows_and_flat_after_them() -> None:
    found = curve(by_hand().rows, "lifted", "objective", [0.0, 1.0, 3.0, 6.0, 99.0])
    # first repetition: 9, 6.5, 3, 1, 1; second: 9, 7, 4.5, 3, 3
    assert list(found["min"]) == [9.0, 6.5, 3.0, 1.0, 1.0] and list(found["max"]) == [9.0, 7.0, 4.5, 3.0, 3.0]
    assert found["median"][3.0] == 3.75


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
    assert set(mixed.rows_of("p")["seed"]) == {0} and mixed.count("p") == 1 and mixed.whole == (first,)
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


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    write_race(tmp_path / "race.json", replace(by_hand(), load_before=math.nan))
    assert json.loads((tmp_path / "race.json").read_text(), parse_constant=pytest.fail)["load_before"] is None


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
        case "epochs":
            stored["provenance"] = {"seed": 1, "epochs": 3}
        case "list":
            return "[]"
        case "text":
            return "no json"
    return json.dumps(stored)


DAMAGES = (
    "kind missing word entry problem empty budget reference heats load whole huge value grid epochs list text".split()
)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    write_race(path, by_hand())
    path.write_text(damage(name, json.loads(path.read_text())))
    with pytest.raises(CheckpointError, match="holds no race"):
        read_race(path)


def test_a_file_that_is_not_there_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no race"):
        read_race(tmp_path / "none.json")
    with pytest.raises(SettingError, match="cannot be written"):
        write_race(tmp_path / "no" / "folder" / "race.json", by_hand())
