"""`fit` and `lifted train` with layers over processes: the bits of one, in a world and in workers of their own."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lifted_bregman as lb
from lifted_bregman.cli import main
from lifted_bregman.errors import CheckpointError, CompatibilityError, SettingError
from lifted_bregman.solvers import Callback, Outcome, Run
from tests.distributed.processes import PATIENCE, forked, until
from tests.distributed.test_faults import program, steps, workers
from tests.distributed.test_fit_parallel import Ended, ended, require_close, train
from tests.solvers.problems import make
from tests.training.runs import StopAt

TWO = lb.Parallel(layer=2, timeout=30.0)
NAME = "sparse code"
SOLVERS: dict[str, Any] = {
    "pipelined": lb.PipelinedSweep(micro_batches=2),
    "Jacobi": lb.ProximalGradient(sweep=lb.solvers.Jacobi(), step_rule=lb.solvers.CurvatureStep(0.8)),
    "simultaneous": lb.StochasticProximalGradient(0.05, order=lb.solvers.Simultaneous()),
}


def require_bits(found: Ended, expected: Ended) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found[0], expected[0], strict=True))
    require_close(found, expected)


@pytest.mark.parametrize("name", SOLVERS)
def test_fit_joins_a_given_world_with_the_bits_of_one_process(name: str) -> None:
    alone = make(NAME, samples=13)
    expected = ended(alone, train(alone, SOLVERS[name]))

    def work(rank: int) -> Ended:
        case = make(NAME, samples=13)
        return ended(case, train(case, SOLVERS[name], parallel=TWO))

    for answer in forked(2, work):
        require_bits(answer, expected)


def test_a_mesh_of_samples_and_layers() -> None:
    alone = make(NAME, samples=13)
    expected = ended(alone, train(alone, SOLVERS["pipelined"]))

    def work(rank: int) -> Ended:
        case = make(NAME, samples=13)
        return ended(case, train(case, SOLVERS["pipelined"], parallel=lb.Parallel(data=2, layer=2)))

    for answer in forked(4, work):
        require_close(answer, expected)


class Reader(Callback):
    """Keeps what the nested network is worth at each row, from the parameters it sees."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        self.seen.append(float(run.problem.objective(run.data.X, run.data.Y)) - row["objective"])

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, entries: Any) -> None:
        self.seen = list(entries["seen"])


@pytest.mark.long
def test_workers_of_its_own_with_callbacks_that_read_and_stop_early(tmp_path: Path) -> None:
    def chosen() -> dict[str, Any]:
        return {"epochs": 40, "callbacks": [lb.callbacks.EarlyStopping(patience=2, min_delta=0.02), Reader()]}

    alone, case = make("relu", samples=13), make("relu", samples=13)
    expected = ended(alone, train(alone, SOLVERS["pipelined"], **chosen()))
    assert expected[2] is Outcome.STOPPED
    mine = chosen()
    result = train(case, SOLVERS["pipelined"], parallel=TWO, out=tmp_path / "run", **mine)
    require_bits(ended(case, result), expected)
    assert mine["callbacks"][1].seen == pytest.approx([0.0] * len(result.history), abs=1e-12)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in case.problem.model.state_dict().items())


def test_early_stopping_alone_has_the_best_parameters_of_all_layers() -> None:
    """Nothing else brings the layers together at a row."""

    def stopped(parallel: lb.Parallel | None) -> Ended:
        case = make("relu", samples=13)
        callbacks = [lb.callbacks.EarlyStopping(patience=2, min_delta=0.02)]
        return ended(case, train(case, SOLVERS["pipelined"], 40, parallel=parallel, callbacks=callbacks))

    expected = stopped(None)
    assert expected[2] is Outcome.STOPPED
    for answer in forked(2, lambda rank: stopped(TWO)):
        require_bits(answer, expected)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_run_is_resumed_with_another_number_of_processes(name: str, before: int, after: int, tmp_path: Path) -> None:
    """What is saved does not depend on the number of processes."""
    alone = make(NAME, samples=13)
    solver = SOLVERS[name]
    cut = 5 if solver.minibatch else 2
    expected = ended(alone, train(alone, solver, 4))

    def part(size: int, at: int, resume: bool) -> Any:
        def work(rank: int) -> Ended:
            case = make(NAME, samples=13)
            parallel = lb.Parallel(layer=size) if size > 1 else None
            saver = lb.callbacks.Checkpoint(every_steps=2)
            more = {"out": tmp_path / "run", "resume": resume, "callbacks": [StopAt(at), saver]}
            return ended(case, train(case, solver, 4, parallel=parallel, **more))

        return work

    assert all(answer[2] is Outcome.INTERRUPTED for answer in forked(before, part(before, cut, False)))
    for answer in forked(after, part(after, 10**6, True)):
        require_bits(answer, expected)


class Poison(Callback):
    """Makes one number of the last layer NaN, where that is."""

    everywhere = True
    reads_parameters = False

    def stepped(self, run: Run) -> None:
        if run.state.steps == 4 and run.agreement.rank == 1:
            with torch.no_grad():
                run.problem.model[-1].weight[0, 0] = torch.nan


def test_nan_names_rank_and_layer_and_the_last_finite_parameters_stay(tmp_path: Path) -> None:
    alone = make("relu", samples=13)
    train(alone, SOLVERS["pipelined"], 1)
    expected = [p.detach().clone() for p in alone.problem.model.parameters()]

    def work(rank: int) -> Any:
        case = make("relu", samples=13)
        more = {"out": tmp_path / "run", "callbacks": [Poison(), lb.callbacks.Checkpoint(every_steps=1)]}
        result = train(case, SOLVERS["pipelined"], 3, parallel=TWO, **more)
        return result.outcome, result.message, [p.detach() for p in case.problem.model.parameters()]

    for outcome, message, found in forked(2, work):
        assert outcome is Outcome.DIVERGED
        assert message.endswith("weight of model.4 (Linear) is not finite after step 4 on rank 1.")
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_run_that_ends_far_above_its_start_is_cut_and_ends_as_in_one_process(tmp_path: Path) -> None:
    """Only the first row is good, so that the checkpoint of step 7 has the parameters of epoch 1 beside its own."""
    solver, alone = lb.PipelinedSweep(2.2, 0.1, micro_batches=2), make(NAME, samples=13)
    parts, rows, outcome, message, work = ended(alone, train(alone, solver, 3))
    assert outcome is Outcome.DIVERGED and len(rows) == 3 and "the parameters of epoch 1;" in message

    def work_on(rank: int) -> Ended:
        train(make(NAME, samples=13), solver, 3, parallel=TWO, out=tmp_path / "run", callbacks=[StopAt(7)])
        case, more = make(NAME, samples=13), {"out": tmp_path / "run", "resume": True, "callbacks": [StopAt()]}
        return ended(case, train(case, solver, 3, parallel=TWO, **more))

    for answer in forked(2, work_on):
        require_bits(answer, (parts, rows, outcome, message.removesuffix(".") + " on rank 0.", work))


class FailingDisk(Callback):
    """The folder of the run cannot be written from a step on, by whoever writes."""

    everywhere = True
    reads_parameters = False

    def stepped(self, run: Run) -> None:
        if run.state.steps == 4 and run.agreement.rank == 0:
            saver = next(c for c in run.callbacks if isinstance(c, lb.callbacks.Checkpoint))

            def fails(*_: object) -> None:
                raise CheckpointError("the disk is full")

            saver._folder.save = fails  # type: ignore[union-attr, method-assign, assignment]


def test_a_save_that_fails_in_between_is_a_warning_and_the_last_one_an_error_everywhere(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        case = make("relu", samples=13)
        with pytest.warns(RuntimeWarning, match="the disk is full") if rank == 0 else _nothing():
            return train(case, SOLVERS["pipelined"], 3, parallel=TWO, out=tmp_path / "run", callbacks=[FailingDisk()])

    found = forked(2, work)
    assert [type(error) for error in found] == [CheckpointError] * 2
    assert "the disk is full" in str(found[1])


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def test_impossible_degrees_are_refused_before_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(SettingError, match="the network has"):
        train(make("relu", samples=13), SOLVERS["pipelined"], parallel=lb.Parallel(layer=9))
    with pytest.raises(CompatibilityError, match="ImplicitSGD as it is set moves layers one after another"):
        train(make("relu", samples=13), lb.ImplicitSGD(), parallel=TWO)
    with pytest.raises(CompatibilityError, match="GramSweep as it is set needs the whole of each batch"):
        train(make("relu", samples=13), lb.GramSweep(micro_batches=2), parallel=lb.Parallel(data=2, layer=2))


def test_the_default_solver_where_layers_are_shared() -> None:
    assert lb.training.default_solver(TWO) == lb.GramSweep(micro_batches=4)
    for parallel in (None, lb.Parallel(data=2), lb.Parallel(data=2, layer=2)):
        assert lb.training.default_solver(parallel) == lb.GramSweep()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layers") / "table.npz"
    X = np.random.default_rng(0).normal(size=(60, 6))
    np.savez(path, X=X, y=(X[:, 0] + X[:, 1] > 0).astype(np.int64))
    return path


def training(table: Path, out: Path, epochs: int, parallel: str) -> list[str]:
    settings = "--hidden 8,7 --batch-size 10 --dtype float64 --checkpoint-epochs 2 --checkpoint-steps 7 --threads 1"
    chosen = f"train --data {table} {settings} --solver pipelined-sweep --epochs {epochs} --parallel {parallel}"
    return [*chosen.split(), "--quiet", "--out", str(out)]


@pytest.mark.long
def test_sigterm_to_the_second_rank_ends_all_after_the_same_step(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with program(*training(table, out, 10**6, "layer=2")) as process:
        pids = workers(process, 0)
        until(lambda: steps(out) > 20)
        os.kill(pids[1], signal.SIGTERM)
        told, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143 and "Traceback" not in err, (told, err)
    ending = json.loads((out / "result.json").read_text())
    assert ending["outcome"] == "INTERRUPTED" and steps(out) == ending["steps"]
    alone, epochs = tmp_path / "alone", ending["steps"] // 5 + 1
    assert main(training(table, alone, epochs, "layer=1")) == 0
    assert main(["resume", str(out), "--epochs", str(epochs), "--parallel", "data=1", "--quiet"]) == 0
    one, other = (load_file(folder / "model.safetensors") for folder in (alone, out))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.long
def test_killed_workers_are_started_again_and_end_with_the_same_bits(table: Path, tmp_path: Path) -> None:
    """Three kills of either rank at random moments."""
    epochs, kills = 60, 3
    chance = random.Random(7)
    assert main(training(table, tmp_path / "alone", epochs, "layer=1")) == 0
    with program(*training(table, tmp_path / "run", epochs, f"layer=2,restarts={kills}")) as process:
        for attempt in range(kills):
            pids = workers(process, attempt)
            goal = chance.randrange(steps(tmp_path / "run") + 1, steps(tmp_path / "run") + 60)
            while steps(tmp_path / "run") < min(goal, 5 * epochs - 50):
                assert process.poll() is None
            os.kill(pids[chance.randrange(2)], signal.SIGKILL)
        said, complained = process.communicate(timeout=120)
    assert process.returncode == 0, (said, complained)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("alone", "run"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, epochs + 1))
