"""The store: what is written is read again, and what cannot be believed is named and ignored."""

from __future__ import annotations

import json
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


REMOVED = object()


def damage(path: Path, value: object, *place: Any, rehash: bool = False) -> None:
    """Set the entry at this place of the file's lines, or remove it; `rehash` makes the hash fit the settings again."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    entries: Any = lines
    for key in place[:-1]:
        entries = entries[key]
    if value is REMOVED:
        del entries[place[-1]]
    else:
        entries[place[-1]] = value
    if rehash:
        lines[0]["hash"] = settings_hash(lines[0]["settings"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("value", "place", "reason"),
    [
        ("0" * 16, (0, "hash"), "hash is not that of its settings"),
        (50, (0, "settings", "epochs"), "hash is not that of its settings"),
        (REMOVED, (1,), "it has 1 rows of 2"),
        ("low", (1, "loss"), "'loss' is no number"),
        (float("nan"), (1, "loss"), "'loss' is no number"),
        (REMOVED, (2, "loss"), "its rows do not have the same entries"),
        ("LOST", (-1, "end", "outcome"), "LOST"),
        ("0000", (-1, "end", "pictures", "train_output", "pixels"), "a stored picture is damaged"),
        (REMOVED, (-1, "end", "pictures", "validation_input"), "there is no picture 'validation_input'"),
        (3, (-1, "end", "pictures", "code", "values", 0, 0), "it has a number at 3, and its width is 3"),
        (2, (0, "seed"), "it holds tiny-digits/2"),
        ("lifted reproduction, format 0", (0, "kind"), "another kind or version"),
    ],
)
def test_a_damaged_file_is_named_and_ignored(
    value: object, place: tuple[Any, ...], reason: str, tmp_path: Path, run: RecipeRun
) -> None:
    store = ResultStore(tmp_path)
    path = store.write(JOB, run)
    damage(path, value, *place)
    assert store.read(JOB) is None
    assert reason in store.ignored[path]
    assert store.read_all([JOB]).found == ()


def test_a_run_with_other_settings_or_without_rows_is_named_and_ignored(tmp_path: Path, run: RecipeRun) -> None:
    store = ResultStore(tmp_path)
    for value, place, reason in (
        (50, ("epochs",), "it was run with epochs = 50, and tiny-digits/1 has 3"),
        (0.02, ("solver", "learning_rate"), "it was run with solver"),
    ):
        path = store.write(JOB, run)
        damage(path, value, 0, "settings", *place, rehash=True)
        assert store.read(JOB) is None and reason in store.ignored[path]
    store.write(JOB, replace(run, rows=()))
    assert store.read(JOB) is None and "it has no rows" in store.ignored[path]


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
