"""Workers that are killed, stopped, told to end or fail: a run ends where the undisturbed one does, or says why not.

The programs are real ones, `lifted train --parallel data=2`; what they are compared with runs in forks of this process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lifted_bregman as lb
from lifted_bregman.cli import main
from lifted_bregman.errors import CheckpointError
from lifted_bregman.solvers import Callback, Outcome, Run
from tests.cli.program import PROGRAM, environment
from tests.distributed.processes import PATIENCE, alive, children_of, forked, until, variables_of
from tests.solvers.problems import make

TWO = lb.Parallel(data=2, timeout=30.0)
FOR_EVER = 10**6


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults") / "table.npz"
    X = np.random.default_rng(0).normal(size=(60, 6))
    np.savez(path, X=X, y=(X[:, 0] + X[:, 1] > 0).astype(np.int64))
    return path


def training(table: Path, out: Path, epochs: int, parallel: str = "data=2") -> list[str]:
    """Five steps an epoch, a checkpoint after each second epoch and each seventh step; rates that never end."""
    settings = "--hidden 8,7 --batch-size 10 --dtype float64 --checkpoint-epochs 2 --checkpoint-steps 7 --threads 1"
    settings += " --set total_steps=inf"
    chosen = f"train --data {table} {settings} --epochs {epochs} --parallel {parallel} --quiet --out {out}"
    return chosen.split()


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`lifted` as a process of its own, which is killed with its workers if the test fails."""
    command = [*PROGRAM, *arguments]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def in_forks(*arguments: str) -> None:
    """`lifted` in a world of two forks of this process."""

    def work(rank: int) -> int:
        return main(arguments)

    assert forked(2, work) == [0, 0]


def workers(process: subprocess.Popen[str], attempt: int) -> dict[int, int]:
    """The process of each rank, once all of an attempt are there."""

    def found() -> dict[int, int]:
        assert process.poll() is None, process.communicate()
        pids = {}
        for pid in children_of(process.pid):
            try:
                variables = variables_of(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if variables.get("TORCHELASTIC_RESTART_COUNT") == str(attempt):
                pids[int(variables["RANK"])] = pid
        return pids if len(pids) == 2 else {}

    pids: dict[int, int] = until(found)
    return pids


def steps(out: Path) -> int:
    """Of the newest checkpoint; -1 where there is none."""
    try:
        return int((out / "checkpoints" / "LATEST").read_text().strip().rpartition("-")[2])
    except FileNotFoundError:
        return -1


def stopped_and_saved(out: Path) -> str:
    """All that a run says on standard error which was sent SIGTERM, whatever happened to it before."""
    return f"lifted: stopped, everything is saved; 'lifted resume {out}' continues.\n"


def rows(out: Path) -> list[dict[str, float]]:
    """The history, times aside."""
    told = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in told]


def require_undisturbed(out: Path, table: Path) -> None:
    """A run that was stopped goes on to the end of an epoch, and is bit by bit the one that nothing happened to."""
    epochs, other = len(rows(out)) + 1, out.with_name(f"{out.name}-undisturbed")
    in_forks("resume", str(out), "--epochs", str(epochs), "--quiet")
    in_forks(*training(table, other, epochs))
    assert rows(out) == rows(other) and len(rows(out)) == epochs
    found, expected = (load_file(folder / "model.safetensors") for folder in (out, other))
    assert found.keys() == expected.keys()
    assert all(found[name].numpy().tobytes() == value.numpy().tobytes() for name, value in expected.items())


def disturb(table: Path, out: Path, kills: int, seed: int) -> list[float]:
    """Kills random workers at random moments of one run, from their first instant on; the seconds of each recovery."""
    draw, recoveries = random.Random(seed), []
    with program(*training(table, out, FOR_EVER, f"data=2,restarts={kills}")) as process:
        for attempt in range(kills):
            pids, before = workers(process, attempt), steps(out)
            if attempt % 2 or kills == 1:
                until(lambda before=before: steps(out) > before)  # every other time it is in the middle of its work
            time.sleep(draw.uniform(0.0, 1.0))
            os.kill(pids[draw.randrange(2)], signal.SIGKILL)
            killed = time.monotonic()
            workers(process, attempt + 1)
            assert not any(map(alive, pids.values()))
            recoveries.append(time.monotonic() - killed)
        before = steps(out)
        until(lambda: steps(out) > before)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (143, stopped_and_saved(out))
    return recoveries


def test_killed_workers_do_not_change_the_run(table: Path, tmp_path: Path) -> None:
    disturb(table, tmp_path / "run", kills=1, seed=1)
    require_undisturbed(tmp_path / "run", table)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_killed_workers_do_not_change_the_run(table: Path, tmp_path: Path) -> None:
    disturb(table, tmp_path / "run", kills=50, seed=2)
    require_undisturbed(tmp_path / "run", table)


@pytest.mark.long
def test_a_silent_worker_is_noticed_and_started_again(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with program(*training(table, out, FOR_EVER, "data=2,timeout=5,restarts=1")) as process:
        pids = workers(process, 0)
        until(lambda: steps(out) > 20)
        os.kill(pids[1], signal.SIGSTOP)
        stopped = time.monotonic()
        before = steps(out)
        workers(process, 1)
        assert time.monotonic() - stopped >= 5.0
        until(lambda: steps(out) > before)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (143, stopped_and_saved(out))
    require_undisturbed(out, table)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "rank", "code"),
    [(signal.SIGTERM, 1, 143), pytest.param(signal.SIGINT, None, 130, marks=pytest.mark.long)],
    ids=["SIGTERM to rank 1", "SIGINT"],
)
def test_all_end_after_the_same_step(number: int, rank: int | None, code: int, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with program(*training(table, out, FOR_EVER)) as process:
        pids = workers(process, 0)
        until(lambda: steps(out) > 20)
        os.kill(process.pid if rank is None else pids[rank], number)
        told, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code and "Traceback" not in err
    assert (told + err).count(f"lifted resume {out}") == 1
    ending = json.loads((out / "result.json").read_text())
    assert ending["outcome"] == "INTERRUPTED" and signal.Signals(number).name in ending["message"]
    assert steps(out) == ending["steps"]
    require_undisturbed(out, table)


@pytest.mark.long
def test_a_run_without_a_folder_starts_anew(tmp_path: Path) -> None:
    """The first time its workers are killed by a callback of the first."""
    case, other = (make("relu", samples=13) for _ in range(2))
    told = lb.fit(case.problem, case.data, epochs=2, batch_size=5, callbacks=[KillOnce(tmp_path)], parallel=TWO)

    def work(rank: int) -> list[Any]:
        lb.fit(other.problem, other.data, epochs=2, batch_size=5, parallel=TWO)
        return [p.detach() for p in other.problem.model.parameters()]

    assert (tmp_path / "killed").exists() and told.outcome is Outcome.FINISHED
    for found, expected in zip(case.problem.model.parameters(), forked(2, work)[0], strict=True):
        assert torch.equal(found.detach(), expected)


class KillOnce(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stepped(self, run: Run) -> None:
        if run.state.steps == 4 and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_save_that_fails_in_one_process_raises_in_all(tmp_path: Path) -> None:
    """The first save, the last one, and the trained model; the folder is a file there."""

    def work(rank: int) -> Any:
        case, out = make("relu", samples=13), tmp_path / os.environ["WHERE"]

        class Obstacle(Callback):
            def started(self, run: Run) -> None:
                if out.name == "first":
                    (out / "checkpoints").write_text("in the way")

            def ended(self, run: Run) -> None:
                if out.name == "last":
                    (out / "checkpoints").rename(out / "away")
                    (out / "checkpoints").write_text("in the way")

            def finished(self, run: Run) -> None:
                if out.name == "model":
                    (out / "model.safetensors").mkdir()

        saver = lb.callbacks.Checkpoint(every_epochs=100)
        chosen = {"epochs": 1, "batch_size": 5, "parallel": TWO}
        return lb.fit(case.problem, case.data, out=out, callbacks=[Obstacle(), saver], **chosen)

    for where in ("first", "last", "model"):
        first, second = forked(2, work, WHERE=where)
        assert type(first) is CheckpointError and type(second) is CheckpointError, where
        assert str(second) == f"rank 0: {first}"


def test_a_diverged_process_stops_all_and_is_named() -> None:
    """NaN in one weight of one process, after its third step."""

    class Bad(Callback):
        everywhere = True

        def stepped(self, run: Run) -> None:
            if run.state.steps == 3 and run.agreement.rank == 1:
                with torch.no_grad():
                    run.problem.model[2].weight[0, 0] = float("nan")

    def work(rank: int) -> tuple[Outcome, str, bool]:
        case = make("relu", samples=13)
        chosen = {"epochs": 5, "batch_size": 5, "parallel": TWO}
        result = lb.fit(case.problem, case.data, lb.baselines.SGD(1e-3), callbacks=[Bad()], **chosen)
        finite = all(bool(p.isfinite().all()) for p in case.problem.model.parameters())
        return result.outcome, result.message, finite

    for outcome, message, finite in forked(2, work):
        assert outcome is Outcome.DIVERGED and finite
        assert "weight of model.2" in message and "on rank 1" in message, message
