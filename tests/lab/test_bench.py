"""`lifted bench` as a user types it: a tiny race, its page again, tuning, and what is refused before work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lifted_bregman_lab import race
from lifted_bregman_lab.commands import bench
from lifted_bregman_lab.race import COMPETITORS, PROBLEMS, read_race
from tests.cli.program import call
from tests.lab.races import AUTOENCODER, CLASSIFIER, by_hand, rates, run_of

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two tiny problems among those of the race, and a file with their rates."""
    pytest.importorskip("sklearn")
    for problem in (CLASSIFIER, AUTOENCODER):
        monkeypatch.setitem(PROBLEMS, problem.name, problem)
    values = {"adam": 0.01, "sgd": 0.05, "algorithm_1": 1.0, "sgd_momentum": 0.01, "implicit_backprop": 0.01}
    made = rates(CLASSIFIER, **values, lifted_adabreg=0.01)
    path = tmp_path / "rates.json"
    race.Rates({CLASSIFIER.name: made.chosen["tiny"], AUTOENCODER.name: made.chosen["tiny"]}).write(path)
    return path


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "load_average", lambda: 0.0)


def test_a_tiny_race_of_everybody(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    stored, out = tmp_path / "new" / "race.json", tmp_path / "out"
    called = call(
        capsys, "bench", "race", "--problems", "tiny,tiny-code", "--repetitions", 2, "--threads", 1,
        "--rates", tiny, "--json", stored, "--out", out,
    )  # fmt: skip
    assert called.code == 0, called.err
    result = read_race(stored)
    assert [problem.name for problem in result.problems] == ["tiny", "tiny-code"]
    for problem in result.problems:
        assert [entry.name for entry in problem.entries] == list(COMPETITORS)
        assert list(result.rows_of(problem.name)["seed"].unique()) == [0, 1]
    assert len(result.whole) == 4 and set(result.rows["outcome"]) <= {"FINISHED", "STOPPED"}
    for number, repetition in enumerate(result.repetitions):
        starts = [run["rows"][0] for run in repetition["traces"]]
        assert all(start == starts[0] for start in starts)
        assert run_of(result, "adam", number)["rows"][-1]["objective"] < starts[0]["objective"]
    settings = json.loads(stored.read_text())
    assert settings["environment"]["threads"] == "1" and settings["environment"]["torch"] == torch.__version__
    assert "load_before" in settings and settings["problems"][0]["entries"][1]["grid"]
    for name in COMPETITORS:
        assert f"\n{name} " in called.out
    assert "time to the last training objective of adam\n" in called.out
    assert "time to the best test accuracy of adam\n" in called.out
    assert "time to the lowest validation error of adam, at no lower sparsity\n" in called.out
    reached = called.out.partition("\nreached at all\n")[2].partition("\nreached by")[0]
    assert "best test accuracy" in reached and max(map(len, reached.splitlines())) <= 80  # a terminal's width
    page = (out / "index.html").read_text(encoding="utf-8")
    assert called.out.rstrip().endswith(f"page: {out / 'index.html'}")
    assert all(name in page for name in COMPETITORS) and "Only steps are timed" in page
    assert "tiny, seed 0" in called.err and "warning" not in called.err
    # The page and the tables again, without training.
    again = call(capsys, "bench", "show", stored, "--out", tmp_path / "again")
    assert again.code == 0 and (tmp_path / "again" / "index.html").read_text(encoding="utf-8") == page
    assert again.out.split("page:")[0] == called.out.split("page:")[0]
    assert call(capsys, "bench", "show", out).out == again.out.split("page:")[0]
    (out / "index.html").unlink()
    assert call(capsys, "report", out).out == f"page: {out / 'index.html'}\n"
    assert (out / "index.html").read_text(encoding="utf-8") == page


def test_names_are_refused_before_any_work(tmp_path: Path, capsys: Capture, monkeypatch: Any) -> None:
    monkeypatch.setattr(race, "run_race", lambda *_, **__: pytest.fail("work was done"))
    monkeypatch.setattr(bench, "fetch_missing", lambda *_: pytest.fail("work was done"))
    monkeypatch.setattr(race, "tune", lambda *_, **__: pytest.fail("work was done"))
    for options, words in (
        (("race", "--problems", "mnist-1k,nope"), ("'nope'", "fashion-10k", "deep-narrow")),
        (("race", "--competitors", "adamm"), ("'adamm'", "did you mean 'adam'", "implicit-backprop")),
        (("race", "--repetitions", 0), ("repetitions is 0", "at least 1")),
        (("race", "--epochs", 0), ("epochs is 0", "at least 1")),
        (("race", "--threads", 0), ("threads is 0",)),
        (("race", "--rates", tmp_path / "none.json"), ("is no file of rates", "lifted bench tune")),
        (("race", "--json", tmp_path), ("is a folder",)),
        (("tune", "--problems", "nope", "--out", tmp_path / "r.json"), ("'nope'",)),
    ):
        called = call(capsys, "bench", *options)
        assert called.code == 2 and "Traceback" not in called.err, options
        for word in words:
            assert word in called.err, options
    (tmp_path / "no.json").write_text("{}")
    called = call(capsys, "bench", "show", tmp_path / "no.json")
    assert called.code == 4 and "holds no race" in called.err


def test_the_quick_race_is_2_problems_4_competitors_3_repetitions(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(bench, "fetch_missing", lambda *_: None)
    monkeypatch.setattr(race, "run_race", lambda *arguments, **_: (seen.append(arguments), by_hand())[1])
    monkeypatch.setattr(bench, "load_average", lambda: 3.0)
    called = call(capsys, "bench", "race", "--quick", "--data-dir", tmp_path)
    assert called.code == 0 and "warning: the machine is not idle (load 3.00)" in called.err
    problems, competitors, found, settings, _ = seen[0]
    assert len(problems) == 2 and problems[1].name == "mnist-classify-10k"
    assert [competitor.name for competitor in competitors] == ["lifted", "sgd", "adam", "algorithm-1"]
    assert settings.repetitions == 3 and settings.data_dir == tmp_path
    for problem in problems:
        for competitor in competitors[1:]:
            found.of(problem, competitor)
    call(capsys, "bench", "race", "--quick", "--repetitions", 1, "--epochs", 2, "--competitors", "adam")
    problems, competitors, _, settings, _ = seen[1]
    assert {problem.epochs for problem in problems} == {2} and settings.repetitions == 1 and len(competitors) == 1
    call(capsys, "bench", "race", "--threads", 2)
    problems, competitors, _, settings, _ = seen[2]
    assert (len(problems), len(competitors), settings.repetitions, settings.threads) == (6, 7, 5, 2)


def test_tuning_writes_rates_that_the_race_takes(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "found" / "rates.json"
    command = ("bench", "tune", "--problems", "tiny", "--competitors", "lifted,sgd", "--epochs", 1, "--out", out)
    called = call(capsys, *command, "--threads", 1)
    assert called.code == 0 and called.out == f"rates: {out}\n" and "sgd, learning_rate 0.02" in called.err
    lines = out.with_suffix(".jsonl").read_text()
    grid, tried = COMPETITORS["sgd"].grid, {json.loads(line)["value"] for line in lines.splitlines()}
    for choice in race.read_rates(out).chosen["tiny"]["sgd"].values():
        place = grid.index(choice.value)
        assert set(grid[max(0, place - 1) : place + 2]) <= tried
    assert call(capsys, *command).code == 0 and out.with_suffix(".jsonl").read_text() == lines
    called = call(
        capsys, "bench", "race", "--problems", "tiny", "--competitors", "lifted,sgd", "--rates", out,
        "--repetitions", 1, "--epochs", 1, "--json", tmp_path / "race.json",
    )  # fmt: skip
    assert called.code == 0
    assert read_race(tmp_path / "race.json").provenance["epochs"] == {"tiny": 1}


def test_a_tuning_that_is_interrupted_says_how_to_go_on(capsys: Capture, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "fetch_missing", lambda *_: None)
    monkeypatch.setattr(race, "tune", lambda *_, **__: None)
    called = call(capsys, "bench", "tune", "--out", tmp_path / "rates.json")
    assert called.code == 130 and "the same command goes on" in called.err and not (tmp_path / "rates.json").exists()


@pytest.mark.parametrize("command", ["race", "show", "tune"])
def test_every_command_has_help_with_an_example(command: str, capsys: Capture) -> None:
    called = call(capsys, "bench", command, "--help")
    assert called.code == 0 and f"lifted bench {command} " in called.out
