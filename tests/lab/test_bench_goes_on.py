"""A race that is ended, or killed, has stored every repetition that was whole, and the same command goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman.solvers import _loop
from lifted_bregman_lab import race
from lifted_bregman_lab.commands import bench
from lifted_bregman_lab.race import PROBLEMS, Race, read_race, running, write_race
from tests.cli.program import Called, Warm, call, environment, wait_for
from tests.lab.races import AUTOENCODER, CLASSIFIER, rates, run_of, steady
from tests.sampling import every

pytest.importorskip("sklearn")
Capture = pytest.CaptureFixture[str]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
WARM_UP = 2  # steps of SGD before each repetition
IN_THE_SECOND = WARM_UP + 12 + WARM_UP + 1  # a repetition has 12


class WarmRaces(Warm):
    """A warm process that knows the tiny problems."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        command = [sys.executable, "-m", "tests.lab.warm_races"]
        root, pipe = Path(__file__).parents[2], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment(), cwd=root)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("races")
    chosen = rates(CLASSIFIER, adam=0.01, sgd=0.05).chosen["tiny"]
    race.Rates({"tiny": chosen, "tiny-code": chosen}, {"note": "by hand"}).write(folder / "rates.json")
    return folder


@pytest.fixture(scope="module")
def warm(world: Path) -> Iterator[Warm]:
    server = WarmRaces(world)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem in (CLASSIFIER, AUTOENCODER):
        monkeypatch.setitem(PROBLEMS, problem.name, problem)
    monkeypatch.setattr(_loop, "time", steady())


def racing(world: Path, *more: object) -> list[object]:
    chosen = ["--problems", "tiny", "--competitors", "sgd,adam", "--repetitions", 3, "--threads", 1]
    return ["bench", "race", *chosen, "--rates", world / "rates.json", *more]


def seeds(stored: Race) -> list[tuple[int, bool]]:
    """Of each repetition the seed, and whether it is whole."""
    return [(repetition["seed"], repetition["whole"]) for repetition in stored.repetitions]


def begun(called: Called) -> list[str]:
    """The repetitions that were run, as told on the way."""
    lines = (line.partition(" (")[0] for line in called.err.splitlines() if ", seed " in line)
    return list(dict.fromkeys(lines))


@pytest.mark.parametrize("number", every(list(CODES), 2), ids=lambda number: number.name)
def test_a_race_that_is_ended_goes_on(
    number: signal.Signals, world: Path, warm: Warm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = world / f"{number.name}.json"
    command = racing(world, "--json", stored)
    child = warm.start(*command, pause="step of SGD", at=IN_THE_SECOND)
    wait_for(child.folder / "paused")
    on_the_way = read_race(stored)  # before anybody has ended anything
    assert seeds(on_the_way) == [(0, True)] and on_the_way.interrupted
    child.send(number)
    ended = child.wait()
    assert ended.code == CODES[number] and "Traceback" not in ended.err
    assert f"{stored} keeps what is done, and the same command goes on" in ended.err
    assert "1 of 1" in ended.out  # the tables are those of whole repetitions
    first = read_race(stored)
    assert seeds(first) == [(0, True), (1, False)] and first.interrupted
    assert first.repetitions[0] == on_the_way.repetitions[0]
    taken = run_of(first, "sgd")["rows"][-1]["step"]
    last = run_of(first, "sgd", 1)["rows"][-1]["step"]
    assert last == IN_THE_SECOND - 2 * WARM_UP - taken  # the step in which the signal came is whole
    shown = call(capsys, "bench", "show", stored)
    assert shown.code == 0 and shown.out == ended.out and "ended early" in shown.err

    gone_on = call(capsys, *command)
    assert gone_on.code == 0, gone_on.err
    assert "1 of 3 repetitions are stored" in gone_on.err and begun(gone_on) == ["tiny, seed 1", "tiny, seed 2"]
    whole = read_race(stored)
    assert seeds(whole) == [(0, True), (1, True), (2, True)] and not whole.interrupted
    assert whole.repetitions[0] == first.repetitions[0] and whole.problems == first.problems
    starts = [[run["rows"][0]["objective"] for run in race.repetitions[1]["traces"]] for race in (first, whole)]
    assert starts[0] == starts[1]

    content = stored.read_bytes()
    for module in (bench, running):
        monkeypatch.setattr(module, "load_average", lambda: 1e6)
    again = call(capsys, *command)
    assert again.code == 0 and begun(again) == [] and again.out == gone_on.out
    assert "not idle" not in again.err  # nothing is run
    assert "the whole race is stored already" in again.err and stored.read_bytes() == content


def test_a_race_that_is_killed_loses_one_repetition_at_most(world: Path, warm: Warm, capsys: Capture) -> None:
    """Killed as it writes the second of two files after the second repetition."""
    stored, out = world / "killed.json", world / "killed"
    command = racing(world, "--json", stored, "--out", out)
    child = warm.start(*command, pause="save", at=4)
    child.send(signal.SIGKILL)
    assert child.wait().code == -signal.SIGKILL
    assert seeds(read_race(stored)) == [(0, True), (1, True)]
    assert seeds(read_race(out / "race.json")) == [(0, True)]
    kept = read_race(stored).repetitions
    gone_on = call(capsys, *command)
    assert gone_on.code == 0 and begun(gone_on) == ["tiny, seed 2"]
    assert read_race(stored).repetitions[:2] == kept and len(read_race(stored).repetitions) == 3
    assert (out / "race.json").read_bytes() == stored.read_bytes() and (out / "index.html").exists()


def test_a_tuning_that_is_terminated_goes_on(world: Path, warm: Warm, capsys: Capture) -> None:
    out = world / "found.json"
    command = ["bench", "tune", "--problems", "tiny", "--competitors", "sgd", "--threads", 1, "--out", out]
    child = warm.start(*command, pause="step of SGD", at=12 + 3)
    child.send(signal.SIGTERM)
    ended = child.wait()
    assert ended.code == 143 and "the same command goes on" in ended.err and not out.exists()
    first = out.with_suffix(".jsonl").read_text()
    assert len(first.splitlines()) == 1
    assert call(capsys, *command).code == 0 and out.exists()
    assert out.with_suffix(".jsonl").read_text().startswith(first)


@pytest.fixture(scope="module")
def whole(world: Path, warm: Warm) -> Path:
    """A race of one repetition, from another process."""
    stored = world / "whole.json"
    assert warm.start(*racing(world, "--repetitions", 1, "--json", stored)).wait().code == 0
    return stored


def changed(stored: Path, path: Path, *keys: Any, value: Any) -> Path:
    """The race with one entry changed by hand."""
    entries = json.loads(stored.read_text())
    inner = entries
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(entries))
    return path


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        (("--epochs", 2), (), "of 'tiny', epochs was 4 and is 2"),
        (("--competitors", "adam,sgd"), (), "entries was 'sgd, adam' and is 'adam, sgd'"),
        (("--competitors", "sgd"), (), "reference was 'adam' and is 'sgd'"),
        (("--threads", 2), (), "threads was '1' and is '2'"),
        (("--problems", "tiny-code"), (), "the problem 'tiny', which is not asked for"),
        ((), (("environment", "torch"), "1.0"), "torch was '1.0' and is"),
        ((), (("problems", 0, "entries", 1, "value"), 0.5), "entry adam value was 0.5 and is 0.01"),
        ((), (("problems", 0, "entries", 0, "solver"), "SGD()"), r"solver of sgd was 'SGD\(\)' and is"),
        ((), (("problems", 0, "settings", "hidden"), [6]), r"settings hidden was \[6\] and is \[5\]"),
        ((), (("problems", 0, "rows"), 9), "rows was 9 and is 4"),
        ((), (("problems", 0, "samples"), 61), "60 and 30 samples .* had 61 and 30"),
        ((), (("budget",), 2.0), "budget was 2.0 and is 1.5"),
        ((), (("heats", 0, "seed"), 7), "a repetition with seed 7, which is not asked for"),
        ((), (("provenance", "note"), "guessed"), "rates, note was 'guessed' and is 'by hand'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_race_is_refused(
    options: Any, change: Any, words: str, world: Path, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    stored = tmp_path / "race.json"
    stored.write_bytes(whole.read_bytes())
    if change:
        changed(whole, stored, *change[0], value=change[1])
    content = stored.read_bytes()
    called = call(capsys, *racing(world, *options, "--json", stored))
    assert called.code == 4 and begun(called) == [] and stored.read_bytes() == content, called.err
    assert re.search(words, called.err) and "--fresh" in called.err


def test_what_is_no_race_is_not_overwritten_unless_asked(world: Path, tmp_path: Path, capsys: Capture) -> None:
    stored = tmp_path / "notes.json"
    stored.write_text("my notes")
    command = racing(world, "--repetitions", 1, "--json", stored)
    called = call(capsys, *command)
    assert called.code == 4 and "holds no race" in called.err and "--fresh" in called.err
    assert stored.read_text() == "my notes"
    assert call(capsys, *command, "--fresh").code == 0 and seeds(read_race(stored)) == [(0, True)]
    stored.write_text("")  # as mktemp leaves it
    assert call(capsys, *command).code == 0 and seeds(read_race(stored)) == [(0, True)]


def test_fresh_begins_anew_and_more_repetitions_and_problems_may_follow(
    world: Path, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    stored = tmp_path / "race.json"
    stored.write_bytes(whole.read_bytes())
    more = racing(world, "--problems", "tiny-code,tiny", "--repetitions", 2, "--json", stored)
    gone_on = call(capsys, *more)
    assert gone_on.code == 0 and begun(gone_on) == ["tiny-code, seed 0", "tiny-code, seed 1", "tiny, seed 1"]
    result = read_race(stored)
    assert [(own["problem"], own["seed"]) for own in result.repetitions] == [
        ("tiny-code", 0), ("tiny-code", 1), ("tiny", 0), ("tiny", 1)
    ]  # fmt: skip
    assert [problem.name for problem in result.problems] == ["tiny-code", "tiny"]
    assert result.repetitions[2] == read_race(whole).repetitions[0]
    anew = call(capsys, *racing(world, "--repetitions", 1, "--json", stored, "--fresh"))
    assert anew.code == 0 and begun(anew) == ["tiny, seed 0"]
    assert (
        seeds(read_race(stored)) == [(0, True)] and read_race(stored).repetitions[0] != read_race(whole).repetitions[0]
    )


def test_two_files_with_different_repetitions_are_refused(
    world: Path, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Each could go on, and one would lose what was measured."""
    stored, out = tmp_path / "a.json", tmp_path / "out"
    out.mkdir()
    write_race(stored, read_race(whole))
    changed(whole, out / "race.json", "heats", 0, "load", value=77.0)
    called = call(capsys, *racing(world, "--json", stored, "--out", out))
    assert called.code == 4 and "different races" in called.err and str(stored) in called.err


def test_a_folder_that_takes_no_files_is_found_before_the_race(world: Path, warm: Warm, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    refused = warm.start(*racing(world, "--json", closed / "race.json"), unprivileged=True).wait()
    assert refused.code == 2 and begun(refused) == [] and "check the path, its rights" in refused.err
