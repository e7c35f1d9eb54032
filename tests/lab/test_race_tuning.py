"""Problems, competitors and rates as the race is defined, and how the rates are found."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from lifted_bregman.activations import ReLU, SoftThreshold
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.build import build_problem
from lifted_bregman.penalties import L1
from lifted_bregman.solvers import ImplicitSGD, baselines
from lifted_bregman.training import default_solver
from lifted_bregman_lab.datasets import fetch_missing
from lifted_bregman_lab.race import (
    COMPETITORS,
    PROBLEMS,
    Choice,
    Rates,
    TuneSettings,
    choose_competitors,
    choose_problems,
    quick_problems,
    read_rates,
    tune,
)
from lifted_bregman_lab.race.competitors import QUICK, Competitor
from lifted_bregman_lab.race.tuning import _POINT, _RESULT, _next_place, choose_rates
from tests.lab.races import CLASSIFIER, Clock, Paced

# What the race is.


def test_the_problems() -> None:
    square, narrow = [784] * 5, [784, 784, 64, 64, 10]
    expected = {
        "fashion-1k": ("fashion-mnist-1k", square, 20, 0.09, 50),
        "mnist-1k": ("mnist-1k", square, 20, 0.09, 50),
        "fashion-10k": ("fashion-mnist-10k", square, 200, 0.055, 50),
        "mnist-classify": ("mnist", narrow, 100, None, 20),
        "fashion-classify": ("fashion-mnist", narrow, 100, None, 20),
        "deep-narrow": ("mnist-5k", [784, *[64] * 19, 10], 100, None, 50),
    }
    assert list(PROBLEMS) == list(expected)
    for name, (data, widths, batch_size, alpha, epochs) in expected.items():
        problem = PROBLEMS[name]
        assert (problem.settings.data, problem.batch_size, problem.epochs) == (data, batch_size, epochs)
        built = build_problem(problem.settings.resolved(), 784, 10 if problem.classify else 784)
        linear = [module for module in built.model if isinstance(module, nn.Linear)]
        assert [linear[0].in_features, *(module.out_features for module in linear)] == widths
        activations = [built.network[layer].activation for layer in range(1, len(widths) - 1)]
        if alpha is None:
            assert set(activations) == {ReLU()} and built.penalties == {}
        else:
            assert activations == [ReLU(), SoftThreshold(alpha), ReLU()]
            assert built.penalties == {2: L1(alpha)}


def test_the_competitors() -> None:
    kinds = {name: competitor.kind for name, competitor in COMPETITORS.items()}
    back = ("sgd", "sgd-momentum", "adam", "implicit-backprop")
    assert kinds == dict.fromkeys(("lifted", "lifted-adabreg", "algorithm-1"), "lifted") | dict.fromkeys(
        back, "back-propagation"
    )
    problem = PROBLEMS["fashion-1k"]
    assert COMPETITORS["lifted"].make(float("nan")) == default_solver() and COMPETITORS["lifted"].grid == ()
    printed = COMPETITORS["algorithm-1"].make(2.0)
    assert isinstance(printed, ImplicitSGD) and printed.reading.literal
    assert (printed.inner_steps, printed.prox_weight) == (15, 2.0)
    assert COMPETITORS["sgd"].make(0.3) == baselines.SGD(0.3)
    assert COMPETITORS["sgd-momentum"].make(0.3) == baselines.SGD(0.3, momentum=0.9)
    assert COMPETITORS["adam"].make(0.3) == baselines.Adam(0.3)
    assert isinstance(COMPETITORS["implicit-backprop"].make(0.3), baselines.ImplicitBackprop)
    assert COMPETITORS["adam"].batch_sizes(problem) == (10, 20, 40)
    assert COMPETITORS["sgd"].batch_sizes(problem) == (20,)
    for competitor in COMPETITORS.values():
        assert competitor.tuned is None or len(competitor.grid) >= 4
        assert list(competitor.grid) == sorted(set(competitor.grid))


def test_the_rates_of_the_library_are_points_of_the_grids() -> None:
    rates = read_rates()
    for problem in PROBLEMS.values():
        for competitor in COMPETITORS.values():
            if competitor.tuned is None:
                continue
            chosen = rates.of(problem, competitor)
            assert set(chosen) == {"objective", "validation"}
            for choice in chosen.values():
                assert choice.value in competitor.grid, (problem.name, competitor.name)
                assert choice.batch_size in competitor.batch_sizes(problem), (problem.name, competitor.name)


def test_the_quick_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert QUICK == ("lifted", "sgd", "adam", "algorithm-1")
    monkeypatch.setenv("LIFTED_BREGMAN_DATA", str(tmp_path))
    monkeypatch.setattr("lifted_bregman.data._places.SYSTEM_FOLDERS", ())
    autoencoder, classifier = quick_problems()
    assert autoencoder.name == "mnist-1k" and autoencoder.settings.hidden == (784, 784, 784)
    assert classifier.settings.data == "mnist-10k" and classifier.tuned_as == "mnist-classify"
    assert autoencoder.epochs < 50 and classifier.epochs < 20
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(b"")
    assert quick_problems()[0].name == "fashion-1k"
    rates = read_rates()
    for problem in quick_problems():
        for name in QUICK[1:]:
            rates.of(problem, COMPETITORS[name])


def test_names_are_looked_up_and_unknown_ones_refused() -> None:
    assert [p.name for p in choose_problems(["mnist-1k", "fashion-1k", "mnist-1k"])] == ["mnist-1k", "fashion-1k"]
    assert choose_problems([]) == tuple(PROBLEMS.values())
    assert {p.epochs for p in choose_problems([], epochs=7)} == {7}
    assert [c.name for c in choose_competitors(["adam", "lifted"])] == ["adam", "lifted"]
    assert choose_competitors([]) == tuple(COMPETITORS.values())
    with pytest.raises(SettingError, match=r"no problem of the race 'mnist-1K'.*mnist-1k.*deep-narrow"):
        choose_problems(["mnist-1K"])
    with pytest.raises(SettingError, match=r"no competitor of the race 'adams'; did you mean 'adam'\?.*algorithm-1"):
        choose_competitors(["adams"])


def test_sets_that_are_here_are_not_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    asked = []
    monkeypatch.setattr("lifted_bregman.data.load", lambda name, **options: asked.append((name, options["data_dir"])))
    monkeypatch.setenv("LIFTED_BREGMAN_DATA", str(tmp_path))
    monkeypatch.setattr("lifted_bregman.data._places.SYSTEM_FOLDERS", ())
    sets = (problem.settings.data for problem in (CLASSIFIER, PROBLEMS["fashion-1k"], PROBLEMS["mnist-classify"]))
    fetch_missing(sets, tmp_path)
    assert asked == [("fashion-mnist-1k", tmp_path), ("mnist", tmp_path)]


def test_the_documentation_names_all_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "race.md").read_text(encoding="utf-8")
    for name in (*PROBLEMS, *COMPETITORS):
        assert f"\n| `{name}` |" in page, name


# The file of rates.


def test_the_file_of_rates_gives_them_again(tmp_path: Path) -> None:
    chosen = {"p": {"adam": {"objective": Choice(0.1, 5), "validation": Choice(0.2, 10)}}}
    Rates(chosen, {"seed": 3}).write(tmp_path / "rates.json")
    again = read_rates(tmp_path / "rates.json")
    assert again.chosen == chosen and again.provenance == {"seed": 3}


@pytest.mark.parametrize("damage", ['"kind"', '"validation"', "0.2", "10", "{"])
def test_a_damaged_file_of_rates_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    Rates({"p": {"adam": {"objective": Choice(0.1, 5), "validation": Choice(0.2, 10)}}}).write(path)
    text = path.read_text()
    assert damage in text
    path.write_text(text.replace(damage, {"{": "["}.get(damage, '"x"'), 1))
    with pytest.raises(SettingError, match="is no file of rates"):
        read_rates(path)


# Tuning.


def grid_run(
    competitor: str, value: float, objective: float, error: float, outcome: str = "FINISHED", size: int = 10
) -> dict[str, Any]:
    numbers = ("p", competitor, f"S({value})", value, size, 2, 0, objective, error, 1.0, outcome)
    return dict(zip((*_POINT, *_RESULT), numbers, strict=True))


def test_the_best_of_each_criterion_that_did_not_diverge_is_chosen() -> None:
    runs = [
        grid_run("a", 0.1, 3.0, 0.2),
        grid_run("a", 0.2, 2.0, 0.3),
        grid_run("a", 0.3, 2.5, 0.1, "STOPPED"),
        grid_run("a", 0.4, 0.0, 0.0, "DIVERGED"),
        grid_run("b", 7.0, 1.0, 0.4),
    ]
    chosen = choose_rates(runs)["p"]
    assert chosen["a"] == {"objective": Choice(0.2, 10), "validation": Choice(0.3, 10)}
    assert chosen["b"] == dict.fromkeys(("objective", "validation"), Choice(7.0, 10))
    with pytest.raises(SettingError, match="'c' diverged on 'p' at every point"):
        choose_rates([*runs, grid_run("c", 1.0, 1.0, 1.0, "DIVERGED")])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    pytest.importorskip("sklearn")
    with Clock().installed(monkeypatch) as installed:
        yield installed


def gridded(
    name: str, clock: Clock, log: list[Any], seconds: float = 1.0, factors: Any = (1.0,), on_step: Any = None
) -> Any:
    def make(value: float) -> Paced:
        return Paced(f"{name} {value}", clock, seconds, log, on_step)

    return Competitor(name, name, "back-propagation", make, "learning_rate", (0.1, 0.2), factors)


def stored(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(log: list[Any]) -> int:
    return sum(event[0] == "step" for event in log)


def test_the_reference_walks_first_and_slow_ones_to_the_budget(clock: Clock, tmp_path: Path) -> None:
    """12 steps for batches of 20, 24 for those of 10.  Adam takes 12 s with its own batch size, so that the limit is
    18 s: five steps of 4 s.
    """
    log: list[Any] = []
    pair = [gridded("slow", clock, log, 4.0), gridded("adam", clock, log, 1.0, (1.0, 0.5))]
    rates = tune([CLASSIFIER], [*pair, COMPETITORS["lifted"]], TuneSettings(seed=2), tmp_path / "log.jsonl")
    assert rates is not None
    runs = stored(tmp_path / "log.jsonl")
    points = [(r["competitor"], r["value"], r["batch_size"], r["seconds"], r["outcome"]) for r in runs]
    assert points == [
        ("adam", 0.1, 20, 12.0, "FINISHED"),
        ("adam", 0.2, 20, 12.0, "FINISHED"),
        ("adam", 0.1, 10, 24.0, "FINISHED"),
        ("adam", 0.2, 10, 24.0, "FINISHED"),
        ("slow", 0.1, 20, 20.0, "STOPPED"),
        ("slow", 0.2, 20, 20.0, "STOPPED"),
    ]
    assert set(rates.chosen["tiny"]) == {"adam", "slow"}
    assert rates.provenance["seed"] == 2 and rates.provenance["epochs"] == {"tiny": 4}
    assert rates.provenance["grids"]["adam"] == {"setting": "learning_rate", "values": [0.1, 0.2]}
    assert rates.provenance["environment"]["torch"]


@pytest.mark.parametrize("best", [(1, 1), (3, 1), (0, 0), (3, 2)])
def test_a_walk_finds_the_end_of_a_slanting_valley(best: tuple[int, int]) -> None:
    """Off the valley, in which the value grows with the batch size, all is worse than in it."""
    sizes = (10, 20, 40)
    grid = (0.1, 0.2, 0.3, 0.4)
    walker = Competitor("a", "a", "lifted", lambda _: default_solver(), "rate", grid, (0.5, 1.0, 2.0))
    visited: dict[tuple[int, int], Any] = {}
    while (place := _next_place(visited, walker, CLASSIFIER)) is not None:
        assert place not in visited
        a, b = place[0] - best[0], place[1] - best[1]
        height = 10.0 * abs(a - b) + abs(a + b)
        visited[place] = grid_run("a", grid[place[0]], height, height, size=sizes[place[1]])
    assert min(visited, key=lambda place: visited[place]["objective"]) == best
    around = {(best[0] + a, best[1] + b) for a, b in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1))}
    assert {(v, s) for v, s in around if 0 <= v < 4 and 0 <= s < 3} <= set(visited)


def test_a_walk_follows_both_criteria_and_flees_divergence() -> None:
    grid = (0.1, 0.2, 0.3, 0.4, 0.5)
    walker = Competitor("a", "a", "lifted", lambda _: default_solver(), "rate", grid)
    visited: dict[tuple[int, int], Any] = {}
    while (place := _next_place(visited, walker, CLASSIFIER)) is not None:
        visited[place] = grid_run("a", grid[place[0]], -float(place[0]), float(place[0]))
    assert set(visited) == {(value, 0) for value in range(5)}  # the objective leads up, the validation error down
    visited = {}
    while (place := _next_place(visited, walker, CLASSIFIER)) is not None:
        visited[place] = grid_run("a", grid[place[0]], 0.0, 0.0, "FINISHED" if place[0] == 0 else "DIVERGED")
    assert list(visited) == [(2, 0), (1, 0), (0, 0)]
    visited = {(value, 0): grid_run("a", grid[value], 0.0, 0.0, "DIVERGED") for value in range(3)}
    assert _next_place(visited, walker, CLASSIFIER) is None


def test_a_tuning_that_was_ended_goes_on_where_it_stopped(clock: Clock, tmp_path: Path) -> None:
    def interrupt(solver: Any, problem: Any, state: Any) -> None:
        if steps(log) == 15:
            os.kill(os.getpid(), signal.SIGINT)

    log: list[Any] = []
    path = tmp_path / "log.jsonl"
    assert tune([CLASSIFIER], [gridded("adam", clock, log, on_step=interrupt)], TuneSettings(), path) is None
    assert len(stored(path)) == 1 and steps(log) == 15
    with path.open("a") as file:
        file.write('{"problem": "ti')  # a process that was killed while it wrote
    log.clear()
    assert tune([CLASSIFIER], [gridded("adam", clock, log)], TuneSettings(), path) is not None
    assert steps(log) == 12 and [run["value"] for run in stored(path)] == [0.1, 0.2]
    log.clear()
    rates = tune([CLASSIFIER], [gridded("adam", clock, log)], TuneSettings(), path)
    assert rates is not None and steps(log) == 0 and set(rates.chosen["tiny"]) == {"adam"}
    tune([CLASSIFIER], [gridded("adam", clock, log)], TuneSettings(seed=1), path)
    assert steps(log) == 24  # another seed is another run


def test_runs_of_other_epochs_are_not_chosen_from(clock: Clock, tmp_path: Path) -> None:
    log: list[Any] = []
    path = tmp_path / "log.jsonl"
    tune([CLASSIFIER.with_epochs(1)], [gridded("adam", clock, log)], TuneSettings(), path)
    better = [run | {"value": 0.9, "objective": 0.0} for run in stored(path)]
    path.write_text("".join(json.dumps(run) + "\n" for run in better))
    rates = tune([CLASSIFIER], [gridded("adam", clock, log)], TuneSettings(), path)
    assert rates is not None and rates.chosen["tiny"]["adam"]["objective"].value in (0.1, 0.2)
    assert len(stored(path)) == 4


def test_a_real_grid_finds_the_better_rate(tmp_path: Path) -> None:
    """Of a rate that hardly moves and one that trains, the second is chosen."""
    pytest.importorskip("sklearn")
    sgd = Competitor("sgd", "SGD", "back-propagation", baselines.SGD, "learning_rate", (1e-6, 0.1))
    seen: list[tuple[str, float]] = []
    rates = tune([CLASSIFIER], [sgd], TuneSettings(threads=1), tmp_path / "l.jsonl", lambda *s: seen.append(s))
    assert rates is not None and rates.chosen["tiny"]["sgd"]["objective"] == Choice(0.1, 20)
    assert [part for _, part in seen] == [0.0, 0.0] and "sgd, learning_rate 0.1, batches of 20" in seen[1][0]


def test_settings_of_a_tuning_are_checked(tmp_path: Path) -> None:
    for settings in ({"seed": -1}, {"threads": 0}, {"budget": 0.9}):
        with pytest.raises(SettingError, match=next(iter(settings))):
            TuneSettings(**settings)
    with pytest.raises(SettingError, match="has a grid"):
        tune([CLASSIFIER], [COMPETITORS["lifted"]], TuneSettings(), tmp_path / "log.jsonl")
    (tmp_path / "log.jsonl").write_text("no run\n")
    with pytest.raises(SettingError, match="holds no runs of a tuning"):
        tune([CLASSIFIER], [COMPETITORS["sgd"]], TuneSettings(), tmp_path / "log.jsonl")
    with pytest.raises(SettingError, match="a tuned setting and its grid"):
        Competitor("x", "x", "lifted", lambda _: default_solver(), "rate")
    with pytest.raises(SettingError, match="above 0"):
        Competitor("x", "x", "lifted", lambda _: default_solver(), "rate", (0.0,))
