"""Jobs: cut anywhere they end with the same rows; what is measured agrees with other ways to compute it."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn import functional as F

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.experiments.build import build_problem
from lifted_bregman.experiments.run_data import RunData
from lifted_bregman.experiments.settings import Settings
from lifted_bregman_lab.reproduction import (
    Deadline,
    Job,
    JobState,
    Places,
    RecipeRun,
    ResultStore,
    running,
    state_of,
    work_through,
)
from lifted_bregman_lab.reproduction.observing import Observer, edge_error, final_measures, measured
from lifted_bregman_lab.reproduction.packing import pack, pack_code, unpack, unpack_code
from lifted_bregman_lab.reproduction.running import build_job_problem, load_job_data, run_job
from tests.lab.reproductions import (
    CLASSIFIER,
    CODES,
    DIGITS,
    LIFTED,
    OTHER,
    STEPS,
    StopAfter,
    places,
)

pytest.importorskip("sklearn")
QUIET = Console(quiet=True)
ROOT = Path(__file__).parents[2]


def finished(folder: Path, job: Job) -> RecipeRun:
    run = ResultStore(folder / "results").read(job)
    assert run is not None
    return run


def without_seconds(run: RecipeRun) -> tuple[list[Mapping[str, float]], Mapping[str, float], Mapping[str, Any]]:
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in run.rows]
    return rows, run.measures, run.pictures


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RecipeRun:
    folder = tmp_path_factory.mktemp("whole")
    assert run_job(Job(CODES), places(folder), Deadline(None), QUIET) is JobState.DONE
    return finished(folder, Job(CODES))


def test_a_run_has_a_row_an_epoch_and_leaves_no_checkpoints(whole: RecipeRun, tmp_path: Path) -> None:
    assert [row["epoch"] for row in whole.rows] == [1, 2, 3, 4]
    assert [row["inner_iterations"] for row in whole.rows] == [6, 12, 18, 24]
    assert whole.rows[-1]["step"] == STEPS and whole.outcome == "FINISHED"
    assert whole.environment["threads"] == "1" and whole.data["samples"] == 45
    assert run_job(Job(DIGITS), places(tmp_path), Deadline(None), QUIET) is JobState.DONE
    assert not (tmp_path / "work" / "tiny-digits" / "0").exists()
    assert run_job(Job(DIGITS), places(tmp_path), StopAfter(0), QUIET) is JobState.DONE  # it is not run again


@pytest.mark.parametrize("saved", [1e-9, 1e9], ids=["a checkpoint a step", "no checkpoint but at the stops"])
def test_a_run_that_is_stopped_again_and_again_ends_with_the_same_rows(
    saved: float, whole: RecipeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_SAVE_SECONDS", saved)
    job, store = Job(CODES), ResultStore(tmp_path / "results")
    assert state_of(job, store, places(tmp_path)) is JobState.MISSING
    pieces = 0
    while run_job(job, places(tmp_path), StopAfter(2), QUIET) is not JobState.DONE:
        pieces += 1
        assert state_of(job, store, places(tmp_path)) is JobState.STARTED
    assert pieces >= STEPS // 2 - 1
    assert state_of(job, store, places(tmp_path)) is JobState.DONE
    assert without_seconds(finished(tmp_path, job)) == without_seconds(whole)


@pytest.mark.long
@pytest.mark.parametrize("steps", [1, 5, STEPS])
def test_a_run_that_is_killed_ends_with_the_same_rows(steps: int, whole: RecipeRun, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.lab.reproductions", str(tmp_path), str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    killed = subprocess.run(command, cwd=ROOT, env=environment, timeout=120, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "work" / "tiny-codes" / "0" / "checkpoints").exists()
    assert not (tmp_path / "results").exists()
    assert run_job(Job(CODES), places(tmp_path), Deadline(None), QUIET) is JobState.DONE
    assert without_seconds(finished(tmp_path, Job(CODES))) == without_seconds(whole)


def test_two_processes_do_not_run_the_same_job(tmp_path: Path) -> None:
    job = Job(DIGITS)
    with running._locked(places(tmp_path).folder(job).with_suffix(".lock")) as free:
        assert free
        assert run_job(job, places(tmp_path), Deadline(None), QUIET) is JobState.BUSY
        work_through([job, Job(OTHER)], places(tmp_path), Deadline(None), QUIET)
    store = ResultStore(tmp_path / "results")
    assert store.read(job) is None and store.read(Job(OTHER)) is not None


def test_work_ends_at_the_deadline_and_begins_nothing_after_it(tmp_path: Path) -> None:
    begun: list[str] = []
    jobs = [Job(DIGITS), Job(CODES), Job(OTHER)]
    work_through(jobs, places(tmp_path), StopAfter(9 + 4), QUIET, lambda job: begun.append(job.name))
    assert begun == ["tiny-digits/0", "tiny-codes/0"]
    states = [state_of(job, ResultStore(tmp_path / "results"), places(tmp_path)) for job in jobs]
    assert states == [JobState.DONE, JobState.STARTED, JobState.MISSING]


def test_a_diverged_run_is_a_result(tmp_path: Path) -> None:
    huge = replace(DIGITS, settings=replace(DIGITS.settings, solver_settings={"learning_rate": 1e30}))
    assert run_job(Job(huge), places(tmp_path), Deadline(None), QUIET) is JobState.DONE
    run = finished(tmp_path, Job(huge))
    assert run.diverged and run.measures == {}


def test_an_overflow_on_validation_samples_alone_is_stored_and_the_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes well; its growing weights overflow on samples that are 9e18 times as large, after some epochs."""

    def enlarged(settings: Settings) -> RunData:
        data = load_job_data(settings)
        if settings.epochs == CLASSIFIER.epochs:
            return data
        assert data.validation is not None
        X, Y = data.validation
        return replace(data, validation=(9e18 * X, Y))

    monkeypatch.setattr(running, "load_job_data", enlarged)
    given = {"learning_rate": 0.7}
    long = replace(DIGITS, settings=replace(CLASSIFIER, solver_settings=given, batch_size=75, epochs=60))
    jobs = [Job(long), Job(OTHER)]
    work_through(jobs, places(tmp_path), Deadline(None), QUIET)
    run = finished(tmp_path, jobs[0])
    assert run.diverged and re.search(r"validation_\w+ is (inf|nan) after epoch", run.message)
    assert [row["epoch"] for row in run.rows] == list(range(1, len(run.rows) + 1)) and 1 <= len(run.rows) < 60
    assert all(math.isfinite(value) for row in run.rows for value in row.values())
    assert run.rows[-1]["objective"] < run.rows[0]["objective"] < 1.0
    assert run.measures == {} and run.seconds == run.rows[-1]["seconds"]
    assert finished(tmp_path, jobs[1]).outcome == "FINISHED"


def test_a_diverged_autoencoder_leaves_no_pictures_and_the_work_goes_on(tmp_path: Path) -> None:
    """One step leaves weights of about 1e25, which are finite, and codes that are not."""
    given = {"learning_rate": 1e25}
    huge = replace(CODES, settings=replace(LIFTED, solver="sgd", solver_settings=given, batch_size=45))
    work_through([Job(huge), Job(OTHER)], places(tmp_path), Deadline(None), QUIET)
    run = finished(tmp_path, Job(huge))
    assert run.diverged and (run.rows, run.measures, run.pictures, run.seconds) == ((), {}, {}, 0.0)
    assert finished(tmp_path, Job(OTHER)).outcome == "FINISHED"


def test_places_must_be_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="which is a file"):
        Places(tmp_path / "file", tmp_path)


_LISTED = {"activation": ("relu", "relu", "soft-threshold:0.05"), "code_threshold": None}
LATE = replace(CODES, name="late-codes", settings=replace(LIFTED, **_LISTED), code_layer=3)


@pytest.mark.parametrize("recipe", [CODES, LATE, DIGITS], ids=lambda recipe: recipe.name)
def test_what_is_measured_is_what_plain_torch_finds(recipe: Any) -> None:
    job = Job(recipe)
    data = load_job_data(job.settings)
    assert data.validation is not None
    problem = build_job_problem(job, data)
    observer = Observer(problem, data.train, data.validation, recipe.code_layer)
    found = measured(problem, observer.train, observer.classify, observer.code)
    X, Y = data.train
    outputs, x = [], X
    with torch.no_grad():
        for module in problem.model:
            x = module(x)
            outputs.append(x)
    target = Y if Y.is_floating_point() else F.one_hot(Y, 10).float()
    loss = 0.5 * (x - target).square().sum(1).mean()
    hidden = [(outputs[i], outputs[i + 1]) for i in range(0, len(outputs) - 1, 2)]
    code = hidden[2 if recipe is LATE else 1][1]
    penalty = 0.0 if recipe is DIGITS else 0.05 * code.abs().sum(1).mean()
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found["objective"] == pytest.approx(float(loss + penalty), rel=1e-5)
    if recipe is not DIGITS:
        assert found["sparsity"] == pytest.approx(float((code == 0).float().mean()), abs=1e-6)
    else:
        assert found["accuracy"] == pytest.approx(float((x.argmax(1) == Y).float().mean()), abs=1e-6)
    for layer, units in enumerate(problem.linear_units(X), start=1):
        z, value = hidden[layer - 1]
        assert found[f"linear_{layer}"] == pytest.approx(100.0 * float((z == value).float().mean()), abs=1e-4)
        assert found[f"linear_{layer}"] == pytest.approx(units.pairs)
        assert found[f"always_linear_{layer}"] == pytest.approx(units.units)


def test_pieces_of_a_large_set_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from lifted_bregman_lab.reproduction import observing

    settings = Job(DIGITS).settings
    data = load_job_data(settings)
    assert data.validation is not None
    problem = build_problem(settings, data.inputs, data.outputs)
    observer = Observer(problem, data.train, data.validation)
    at_once = measured(problem, observer.train, True, observer.code)
    monkeypatch.setattr(observing, "_AT_ONCE", 17)
    in_pieces = measured(problem, observer.train, True, observer.code)
    assert in_pieces.keys() == at_once.keys()
    for name, value in at_once.items():
        assert in_pieces[name] == pytest.approx(value, rel=1e-5), name


def test_edges() -> None:
    """A step of height 1 at one place has one difference; moved by a pixel, both places are wrong."""
    step = torch.zeros(1, 1, 6)
    step[..., 3:] = 1.0
    moved = step.roll(1, 2)
    moved[..., 0] = 0.0
    assert edge_error(step, step) == 0.0
    assert edge_error(step + 5.0, step) == pytest.approx(0.0)
    assert edge_error(torch.zeros_like(step), step) == pytest.approx(1.0)
    assert edge_error(moved, step) == pytest.approx(2.0)
    assert edge_error(step.transpose(1, 2) * 0.5, step.transpose(1, 2)) == pytest.approx(0.25)


def test_the_unexplained_part_is_the_error_over_that_of_the_mean_image() -> None:
    settings = Job(CODES).settings
    data = load_job_data(settings)
    assert data.validation is not None
    problem = build_problem(settings, data.inputs, data.outputs)
    observer = Observer(problem, data.train, data.validation)
    X, Y = data.validation
    with torch.no_grad():
        part = float((problem.model(X) - Y).square().sum() / Y.square().sum())
    assert part > 1.01
    assert final_measures(observer, data)["validation_unexplained"] == pytest.approx(part, rel=1e-5)
    last = problem.model[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.zeros_(last.weight)
    measures = final_measures(observer, data)
    assert measures["train_unexplained"] == pytest.approx(1.0) and measures["validation_unexplained"] == pytest.approx(
        1.0
    )
    widths = (64, 8, 6, 8, 64)
    assert measures["parameters"] == sum((a + 1) * b for a, b in pairwise(widths))
    assert 0.0 < measures["train_edge_error"] < 1.0  # the mean image has some of the edges


def test_pictures_are_packed_and_unpacked() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    assert (unpack(pack(images)) == images).all()
    wrong = [
        {"shape": [6, 28, 28], "pixels": "!"},
        {"shape": [10**9], "pixels": ""},
        {},
        {"shape": [2], "pixels": "00"},
    ]
    for damaged in wrong:
        with pytest.raises(CheckpointError, match="picture is damaged"):
            unpack(damaged)


def test_codes_are_packed_and_unpacked() -> None:
    code = np.array([0.0, -2.5, 0.0, 1e-5, 0.0], np.float32)
    packed = pack_code(code)
    assert packed == {"width": 5, "values": [[1, -2.5], [3, 1e-5]]}
    assert (unpack_code(packed) == [0.0, -2.5, 0.0, 1e-5, 0.0]).all()
    wrong = [
        {"width": 5, "values": [[5, 1.0]]},
        {"width": 5, "values": [[-1, 1.0]]},
        {"width": 5, "values": [[0, float("nan")]]},
        {"width": 5, "values": [[0]]},
        {"width": 10**9, "values": []},
        {"values": []},
    ]
    for damaged in wrong:
        with pytest.raises(CheckpointError, match="code is damaged"):
            unpack_code(damaged)
