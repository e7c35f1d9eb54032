"""The store: what is written is read again, and what cannot be believed is named and ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lifted_bregman.errors import CheckpointError
from lifted_bregman_lab.reproduction import Job, RecipeRun, ResultStore, read_run
from lifted_bregman_lab.reproduction.packing import PARTS, SHOWN, pack
from lifted_bregman_lab.reproduction.store import job_entries, settings_hash
from tests.lab.reproductions import CODES, DIGITS

JOB = Job(DIGITS, seed=1)
IMAGES = {f"{part}_{name}": pack(np.eye(4, dtype=np.uint8)[None]) for part in PARTS for name in SHOWN}
ROWS = ({"epoch": 1, "loss": 0.1 + 0.2}, {"epoch": 2, "loss": 1e-300})


@pytest.fixture
def run() -> RecipeRun:
    return RecipeRun(
        DIGITS.name, 1, job_entries(JOB), {"threads": "1"}, {"samples": 3}, ROWS, "FINISHED", "It ended.", 2.5,
        {"parameters": 7.0}, IMAGES | {"code": {"width": 3, "values": [[0, 0.5]]}},
    )  # fmt: skip


def test_a_run_is_read_as_it_was_written(tmp_path: Path, run: RecipeRun) -> None:
    store = ResultStore(tmp_path / "results")
    path = store.write(JOB, run)
    assert path == tmp_path / "results" / "tiny-digits" / "1.jsonl"
    assert store.read(JOB) == run and store.ignored == {}
    header, *rows, last = map(json.loads, path.read_text().splitlines())
    assert rows == list(ROWS) and last["end"]["outcome"] == "FINISHED"
    assert header["hash"] == settings_hash(header["settings"])
    assert header["settings"]["solver"]["learning_rate"] == 0.01 and header["settings"]["seed"] == 1
    assert "data_dir" not in header["settings"] and str(tmp_path) not in path.read_text()


def test_where_a_run_took_place_does_not_change_what_it_was(tmp_path: Path) -> None:
    entries = job_entries(JOB)
    assert job_entries(replace(JOB, data_dir=tmp_path, threads=2)) == entries
    others = [replace(JOB, seed=2), replace(JOB, smoke=True), Job(CODES, seed=1)]
    assert len({settings_hash(job_entries(job)) for job in (JOB, *others)}) == 4
    relaxed = replace(DIGITS, relaxed=lambda problem: problem)
    assert settings_hash(job_entries(Job(relaxed, 1))) != settings_hash(entries)


def changed(path: Path, change: Callable[[list[Any]], None]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _hash(lines: list[Any]) -> None:
    lines[0]["hash"] = "0" * 16


def _settings(lines: list[Any]) -> None:
    lines[0]["settings"]["epochs"] = 50


def _both(lines: list[Any]) -> None:
    lines[0]["settings"]["epochs"] = 50
    lines[0]["hash"] = settings_hash(lines[0]["settings"])


def _solver(lines: list[Any]) -> None:
    lines[0]["settings"]["solver"]["learning_rate"] = 0.02
    lines[0]["hash"] = settings_hash(lines[0]["settings"])


def _row(lines: list[Any]) -> None:
    del lines[1]


def _word(lines: list[Any]) -> None:
    lines[1]["loss"] = "low"


def _nan(lines: list[Any]) -> None:
    lines[1]["loss"] = float("nan")


def _empty(lines: list[Any]) -> None:
    del lines[1:3]
    lines[-1]["end"]["rows"] = 0


def _entry(lines: list[Any]) -> None:
    del lines[2]["loss"]


def _outcome(lines: list[Any]) -> None:
    lines[-1]["end"]["outcome"] = "LOST"


def _seed(lines: list[Any]) -> None:
    lines[0]["seed"] = 2


def _kind(lines: list[Any]) -> None:
    lines[0]["kind"] = "lifted reproduction, format 0"


def _picture(lines: list[Any]) -> None:
    lines[-1]["end"]["pictures"]["train_output"]["pixels"] = "0000"


def _no_picture(lines: list[Any]) -> None:
    del lines[-1]["end"]["pictures"]["validation_input"]


def _code(lines: list[Any]) -> None:
    lines[-1]["end"]["pictures"]["code"]["values"][0][0] = 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_hash, "hash is not that of its settings"),
        (_settings, "hash is not that of its settings"),
        (_both, "it was run with epochs = 50, and tiny-digits/1 has 3"),
        (_solver, "it was run with solver"),
        (_row, "it has 1 rows of 2"),
        (_word, "'loss' is no number"),
        (_nan, "'loss' is no number"),
        (_empty, "it has no rows"),
        (_entry, "its rows do not have the same entries"),
        (_outcome, "LOST"),
        (_picture, "a stored picture is damaged"),
        (_no_picture, "there is no picture 'validation_input'"),
        (_code, "it has a number at 3, and its width is 3"),
        (_seed, "it holds tiny-digits/2"),
        (_kind, "another kind or version"),
    ],
)
def test_a_file_that_does_not_agree_is_named_and_ignored(
    change: Callable[[list[Any]], None], reason: str, tmp_path: Path, run: RecipeRun
) -> None:
    store = ResultStore(tmp_path)
    path = store.write(JOB, run)
    changed(path, change)
    assert store.read(JOB) is None
    assert reason in store.ignored[path]
    assert store.read_all([JOB]).found == ()


def test_a_run_that_diverged_at_once_has_no_rows(tmp_path: Path, run: RecipeRun) -> None:
    store, diverged = ResultStore(tmp_path), replace(run, rows=(), outcome="DIVERGED")
    store.write(JOB, diverged)
    assert store.read(JOB) == diverged


def test_what_a_run_does_not_have_is_told_by_name(run: RecipeRun) -> None:
    assert run.column("loss").tolist() == [0.1 + 0.2, 1e-300] and run.measure("parameters") == 7.0
    with pytest.raises(CheckpointError, match="rows of tiny-digits/1 have no 'accuracy', only epoch, loss: run it"):
        run.column("accuracy")
    with pytest.raises(CheckpointError, match="measures of tiny-digits/1 have no 'edges', only parameters: run it"):
        run.measure("edges")


def test_what_a_solver_has_learnt_since_does_not_matter(tmp_path: Path, run: RecipeRun) -> None:
    """A setting that the stored run does not know has its default; one that it knows must be the same."""
    older = {**run.settings, "solver": {k: v for k, v in run.settings["solver"].items() if k != "momentum"}}
    assert older != run.settings
    store = ResultStore(tmp_path)
    store.write(JOB, replace(run, settings=older))
    assert store.read(JOB) is not None


def test_a_file_that_is_cut_off_anywhere_is_not_taken_for_finished(tmp_path: Path, run: RecipeRun) -> None:
    store = ResultStore(tmp_path)
    path = store.write(JOB, run)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:size])
        assert store.read(JOB) is None, size
    path.write_bytes(whole)
    assert store.read(JOB) == run and store.ignored == {}


@pytest.mark.parametrize("content", [b"", b"[]\n[]\n", b"\xff\xfe", b"{" * 100_000, b'{"kind": 1}\n{"end": 3}\n'])
def test_hostile_files_are_errors_of_ours(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="holds no finished run"):
        read_run(path)


def test_numbers_that_json_does_not_know_are_refused(tmp_path: Path, run: RecipeRun) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        ResultStore(tmp_path).write(JOB, replace(run, seconds=float("nan")))
    assert ResultStore(tmp_path).read(JOB) is None
