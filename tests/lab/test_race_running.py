"""Tuning, racing and the store: what is stored is not run again, and a race that was ended goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.training.signals import Signals
from lifted_bregman_lab.race import running
from lifted_bregman_lab.race.opponents import OPPONENTS
from lifted_bregman_lab.race.running import (
    RaceSettings,
    best_rates,
    next_place,
    run_race,
)  # fmt: skip
from lifted_bregman_lab.race.store import KIND, Store, final, identify
from lifted_bregman_lab.race.verdicts import chosen_rows
from tests.lab.races import TINY, race_row

PAIR = [OPPONENTS["lifted"], OPPONENTS["adamw"]]
TWO = RaceSettings(seeds=2)


def race(path: Path, settings: RaceSettings = TWO, opponents: Any = PAIR, **options: Any) -> Store:
    store = Store.open(path)
    run_race([TINY], opponents, settings, store, **options)
    return store


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("race") / "rows.jsonl"
    race(path)
    return path


@pytest.fixture
def copy(stored: Path, tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(stored.read_text())
    return path


def test_every_run_has_a_row_with_its_settings(stored: Path) -> None:
    rows = [json.loads(line) for line in stored.read_text().splitlines()]
    tuning, races = ([row for row in rows if row["part"] == part] for part in ("tune", "race"))
    assert {row["opponent"] for row in tuning} == {"adamw"} and {row["seed"] for row in tuning} == {1000}
    assert {row["rate"] for row in tuning} <= set(OPPONENTS["adamw"].grid) and len(tuning) >= 3
    assert {row["samples"] for row in tuning} == {48} and {row["samples"] for row in races} == {60}
    rates = {*best_rates(tuning).values()}
    runs = {(row["opponent"], row["rate"], row["seed"]) for row in races}
    assert runs == {("adamw", rate, seed) for rate in rates for seed in (0, 1)} | {("lifted", None, s) for s in (0, 1)}
    for row in races:
        assert row["hash"] == identify(row) and row["kind"] == KIND and row["outcome"] == "FINISHED"
        assert [point[0] for point in row["trace"]] == list(range(21)) and row["steps"] == row["trace"][-1][0] == 20
        assert row["loss"] == pytest.approx(row["trace"][-1][2], rel=1e-5) and row["seconds"] > 0.0
        assert row["versions"]["threads"] == "1" and row["versions"]["torch"] and row["reference_seconds"] > 0.0
    starts = {(row["seed"], *row["trace"][0][2:]) for row in races}
    assert len(starts) == 2  # one for each seed: all opponents start from the same weights
    own = next(row for row in races if row["opponent"] == "lifted")
    assert "GramSweep" in own["settings"] or "(" in own["settings"]


def test_what_is_stored_is_not_run_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "start_run", lambda *_: pytest.fail("it is stored"))
    before = copy.read_text()
    race(copy)
    assert copy.read_text() == before


def test_more_seeds_add_their_rows_alone(copy: Path) -> None:
    before = copy.read_text()
    store = race(copy, RaceSettings(seeds=3))
    added = [json.loads(line) for line in copy.read_text()[len(before) :].splitlines()]
    assert copy.read_text().startswith(before) and {row["seed"] for row in added} == {2}
    assert {row["seed"] for row in store.select(part="race")} == {0, 1, 2}


def test_opponents_whose_code_has_changed_run_again_and_the_last_row_counts(copy: Path) -> None:
    lines = copy.read_text().splitlines()
    changed = [json.loads(line) for line in lines]
    for row in changed:
        row["loss"] = 77.0 if row["opponent"] == "lifted" else row["loss"]
    copy.write_text("".join(json.dumps(row) + "\n" for row in changed))
    assert {row["loss"] for row in race(copy).select(opponent="lifted")} == {77.0}
    store = race(copy, replace(TWO, again=("lifted",)))
    assert len(copy.read_text().splitlines()) == len(lines) + 2
    assert all(row["loss"] < 5.0 for row in store.select(opponent="lifted"))


def test_a_race_that_was_ended_goes_on(stored: Path, tmp_path: Path) -> None:
    """A signal in the second seed's group leaves its rows out; the same call adds them, equal to those of one go."""
    path, signals = tmp_path / "rows.jsonl", Signals()

    def watch(what: str, part: float) -> None:
        if "seed 1" in what:
            signals.received = 15

    store = Store.open(path)
    assert not run_race([TINY], PAIR, TWO, store, watch, signals)
    assert {row["seed"] for row in store.select(part="race")} == {0}
    with path.open("a") as file:
        file.write('{"kind": "lif')  # a process that was killed while it wrote
    again = race(path)
    whole = Store.open(stored)
    assert again.rows.keys() == whole.rows.keys()
    for name, row in again.rows.items():
        assert [point[2:] for point in row["trace"]] == [point[2:] for point in whole.rows[name]["trace"]]


def test_a_signal_within_a_group_stores_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals, record = Signals(), running.RaceRun.record

    def stop(run: Any) -> None:
        record(run)
        if run.seed == 0 and run.done == 7:
            signals.received = 2

    monkeypatch.setattr(running.RaceRun, "record", stop)
    store = Store.open(tmp_path / "rows.jsonl")
    assert not run_race([TINY], PAIR, TWO, store, signals=signals)
    assert not store.select(part="race") and store.select(part="tune")


def test_adamw_sets_the_pace_although_it_was_not_asked_for(tmp_path: Path) -> None:
    store = race(tmp_path / "rows.jsonl", RaceSettings(seeds=1), [OPPONENTS["lifted"]])
    assert {row["opponent"] for row in store.select(part="race")} == {"adamw", "lifted"}
    assert len({row["reference_seconds"] for row in store.select(part="race")}) == 1


def test_lifted_signals_take_the_rates_that_were_chosen_for_adamw(tmp_path: Path) -> None:
    """So that the signals are all that differs; the verdicts take the row at the rate of their criterion."""
    store = race(tmp_path / "rows.jsonl", RaceSettings(seeds=1), [OPPONENTS["lifted-adamw"]])
    assert {row["opponent"] for row in store.select(part="tune")} == {"adamw"}
    chosen = best_rates(store.select(part="tune"))
    for name in ("adamw", "lifted-adamw"):
        assert {row["rate"] for row in store.select(part="race", opponent=name)} == {*chosen.values()}
    for criterion, rate in chosen.items():
        assert {row["rate"] for row in chosen_rows(store.rows.values(), "short")[criterion]} == {rate}


def test_rates_may_be_chosen_by_the_other_budget(tmp_path: Path) -> None:
    store = race(tmp_path / "rows.jsonl", RaceSettings("long", seeds=1, tune_on="short"))
    assert {row["budget"] for row in store.select(part="tune")} == {"short"}
    assert {row["epochs"] for row in store.select(part="tune")} == {TINY.short}
    chosen = best_rates(store.select(part="tune"))
    races = store.select(part="race", budget="long", epochs=TINY.long)
    assert {row["rate"] for row in races if row["opponent"] == "adamw"} == {*chosen.values()}
    for criterion, rate in chosen.items():
        kept = chosen_rows(store.rows.values(), "long")[criterion]
        assert {row["rate"] for row in kept if row["opponent"] == "adamw"} == {rate}


def test_a_tuning_alone_stores_no_race(tmp_path: Path) -> None:
    store = race(tmp_path / "rows.jsonl", tune_only=True)
    assert store.select(part="tune") and not store.select(part="race")


# The walk over a grid.


def walk(losses: list[float | None], errors: list[float | None] | None = None) -> dict[int, Any]:
    visited: dict[int, Any] = {}
    errors = losses if errors is None else errors
    while (place := next_place(visited, len(losses))) is not None:
        assert place not in visited
        visited[place] = race_row("adam", 0, losses[place], errors[place], rate=float(place))
    return visited


@pytest.mark.parametrize("best", range(7))
def test_a_walk_ends_at_the_lowest_point_of_a_valley_with_its_neighbours(best: int) -> None:
    visited = walk([float(abs(place - best)) for place in range(7)])
    assert best_rates(list(visited.values())) == {"loss": float(best), "error": float(best)}
    assert {best - 1, best, best + 1} & set(range(7)) <= set(visited)


def test_a_walk_follows_both_criteria_and_flees_divergence() -> None:
    assert set(walk([0.0, 1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0, 0.0])) == set(range(5))
    assert list(walk([3.0, None, None, None, None])) == [2, 1, 0]
    assert list(walk([None] * 5)) == [2, 1, 0]
    lost = [race_row("adam", 0, None, None, rate=rate) for rate in (0.3, 0.1, 0.2)]
    assert best_rates(lost) == {"loss": 0.1, "error": 0.1}  # it races with the smallest, and is stored as diverged


def test_of_equal_errors_the_lower_loss_decides() -> None:
    rows = [race_row("adam", 0, loss, 0.0, rate=loss) for loss in (0.5, 0.1, 0.3)]
    assert best_rates(rows) == {"loss": 0.1, "error": 0.1}
    assert final(race_row("adam", 0, None), "loss") == float("inf")


# The store.


def test_a_row_that_was_changed_and_a_file_of_another_kind_are_refused(copy: Path, tmp_path: Path) -> None:
    text = copy.read_text()
    for damaged in (text.replace('"seed": 0', '"seed": 9', 1), text.replace(KIND, "other", 1), "{}\n", "no rows\n"):
        copy.write_text(damaged)
        with pytest.raises(CheckpointError, match="holds no rows of a race"):
            Store.open(copy)
    assert Store.open(tmp_path / "none.jsonl").rows == {}


def test_settings_are_checked() -> None:
    for settings in ({"seeds": 0}, {"seeds": 1001}, {"threads": 0}):
        with pytest.raises(SettingError, match=next(iter(settings))):
            RaceSettings(**settings)  # type: ignore[arg-type]
