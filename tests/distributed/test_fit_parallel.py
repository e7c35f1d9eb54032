"""`fit` with `parallel` ends where one process does, in a world that is given and in workers that it starts."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.distributed import launcher
from lifted_bregman.errors import CheckpointError, CompatibilityError, LiftedBregmanError, SettingError
from lifted_bregman.solvers import Callback, Outcome, Result, Run
from tests.distributed.processes import children_here, forked, launch_forks, until
from tests.graph.architectures import MODELS, drawn
from tests.solvers.problems import Case, make
from tests.training.runs import StopAt

TWO = lb.Parallel(data=2, timeout=30.0)
SOLVERS: dict[str, solvers.Solver[Any]] = {
    "default": lb.GramSweep(),
    "implicit": lb.ImplicitSGD(prox_weight=1.0, inner_steps=3),
    "adam": lb.baselines.Adam(1e-2),
    "whole set": lb.ProximalGradient(),
    "averaging": lb.ModelAveraging(workers=3, local_steps=2),
}
PLANNED = lb.GramSweep(total_steps=9, epochs=3)  # its rates and decay are those of 3 epochs, however many are asked for


def train(case: Case, solver: solvers.Solver[Any], epochs: int = 3, **more: Any) -> Result:
    """13 samples in batches of 5, so that shares differ, the last batch most."""
    size = 5 if solver.minibatch else None
    second = (case.X[:7].clone(), case.Y[:7].clone())
    return lb.fit(case.problem, case.data, solver, epochs=epochs, batch_size=size, seed=3, validation=second, **more)


def parameters(case: Case) -> list[Tensor]:
    return [p.detach().clone() for p in case.problem.model.parameters()]


Ended = tuple[list[Tensor], list[dict[str, float]], Outcome, str, dict[str, float]]


def ended(case: Case, result: Result) -> Ended:
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]
    return parameters(case), rows, result.outcome, result.message, case.problem.work.as_dict()


def require_close(found: Ended, expected: Ended, accuracy: float = 1e-12) -> None:
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=accuracy, atol=accuracy)
    assert len(found[1]) == len(expected[1])
    for row, other_row in zip(found[1], expected[1], strict=True):
        assert row == pytest.approx(other_row, rel=accuracy, abs=accuracy)
    assert found[2:4] == expected[2:4]


def require_same(found: Ended, expected: Ended) -> None:
    """Bit by bit."""
    assert all(torch.equal(one, other) for one, other in zip(found[0], expected[0], strict=True))
    assert found[1:] == expected[1:]


# In a world that is given


@pytest.mark.parametrize("name", SOLVERS)
def test_the_numbers_are_those_of_one_process(name: str) -> None:
    alone = make("sparse code", samples=13)
    expected = ended(alone, train(alone, SOLVERS[name]))

    def work(rank: int) -> Ended:
        case = make("sparse code", samples=13)
        return ended(case, train(case, SOLVERS[name], parallel=TWO))

    first, second = forked(2, work)
    require_close(first, expected)
    require_same(second, first)


@pytest.mark.parametrize("name", ["default", "implicit", "whole set"])
def test_a_model_of_several_inputs_has_the_numbers_of_one_process(name: str) -> None:
    solver = SOLVERS[name]

    def trained(**more: Any) -> list[Tensor]:
        model, inputs = MODELS["three inputs"]()
        torch.manual_seed(6)
        X, Y = drawn(inputs, 13), torch.randn(13, 2, dtype=torch.float64)
        problem = lb.lift(model, loss=lb.SquaredError(), example=inputs)
        lb.fit(problem, (X, Y), solver, epochs=2, batch_size=5 if solver.minibatch else None, **more)
        return [p.detach().clone() for p in model.parameters()]

    expected = trained()
    first, second = forked(2, lambda rank: trained(parallel=TWO))
    for one, other, alone in zip(first, second, expected, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, alone, rtol=1e-11, atol=1e-11)


def test_early_stopping_restores_the_best_everywhere() -> None:
    def chosen() -> dict[str, Any]:
        return {"epochs": 60, "callbacks": [lb.callbacks.EarlyStopping(patience=2, min_delta=0.02)]}

    alone = make("relu", samples=13)
    expected = ended(alone, train(alone, lb.GramSweep(), **chosen()))
    assert expected[2] is Outcome.STOPPED

    def work(rank: int) -> Ended:
        case = make("relu", samples=13)
        return ended(case, train(case, lb.GramSweep(), parallel=TWO, **chosen()))

    first, second = forked(2, work)
    require_close(first, expected)
    require_same(second, first)


class Visitors(Callback):
    """Notes who called."""

    def __init__(self) -> None:
        self.moments: list[str] = []

    def started(self, run: Run) -> None:
        self.moments.append("started")
        assert float(run.problem.energy(run.problem.forward_state(run.data.X), run.data.X, run.data.Y)) > 0.0

    def stepped(self, run: Run) -> None:
        self.moments.append("stepped")

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        self.moments.append("recorded")


def test_the_first_process_calls_the_callbacks() -> None:
    def work(rank: int) -> list[str]:
        visitors = Visitors()
        train(make("relu", samples=13), lb.GramSweep(), 2, parallel=TWO, callbacks=[visitors])
        return visitors.moments

    first, second = forked(2, work)
    assert first == ["started", *(["stepped"] * 3 + ["recorded"]) * 2] and second == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        *(("default", before, after) for before, after in ((1, 2), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2))),
        *(("averaging", before, after) for before, after in ((1, 2), (4, 1))),
    ],
)
def test_a_run_goes_on_with_other_numbers(name: str, before: int, after: int, tmp_path: Path) -> None:
    alone = make("sparse code", samples=13)
    expected = ended(alone, train(alone, SOLVERS[name], 4))
    cut = 5 if SOLVERS[name].minibatch else 2

    def part(size: int, *callbacks: Callback, resume: bool) -> Callable[[int], Ended]:
        def work(rank: int) -> Ended:
            case = make("sparse code", samples=13)
            parallel = lb.Parallel(data=size) if size > 1 else None
            result = train(
                case, SOLVERS[name], 4, parallel=parallel, out=tmp_path / "run", resume=resume, callbacks=callbacks
            )
            return ended(case, result)

        return work

    answers = forked(before, part(before, StopAt(cut), resume=False))
    assert all(answer[2] is Outcome.INTERRUPTED for answer in answers)
    for answer in forked(after, part(after, StopAt(10**6), resume=True)):
        require_close(answer, expected)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(
        ["checkpoints", "history.jsonl", "lock", "manifest.json", "model.safetensors", "result.json"]
    )


def test_a_restarted_attempt_resumes(tmp_path: Path) -> None:
    """Without being asked to, and only from what there is."""

    def work(rank: int) -> Ended:
        case = make("relu", samples=13)
        stop = StopAt(4 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" else 10**6)
        return ended(case, train(case, lb.GramSweep(), parallel=TWO, out=tmp_path / "run", callbacks=[stop]))

    started = forked(2, work, TORCHELASTIC_RESTART_COUNT="1")
    assert started[0][2] is Outcome.INTERRUPTED and not started[0][1][1:]
    again = forked(2, work, TORCHELASTIC_RESTART_COUNT="2")
    other = make("relu", samples=13)
    require_close(again[0], ended(other, train(other, lb.GramSweep())))
    held = forked(2, work, TORCHELASTIC_RESTART_COUNT="0")
    assert [type(error) for error in held] == [CheckpointError] * 2 and "holds a run already" in str(held[0])


def test_all_go_back_to_the_checkpoint_that_the_first_takes(tmp_path: Path) -> None:
    alone = make("relu", samples=13)
    expected = ended(alone, train(alone, PLANNED))
    train(make("relu", samples=13), PLANNED, 2, out=tmp_path, callbacks=[StopAt(5)])
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    (newest / "model.safetensors").write_bytes(b"damaged")

    def work(rank: int) -> Ended:
        case = make("relu", samples=13)
        with pytest.warns(RuntimeWarning, match="was taken, because") if rank == 0 else nullcontext():
            result = train(case, PLANNED, out=tmp_path, resume=True, callbacks=[StopAt(10**6)], parallel=TWO)
        return ended(case, result)

    for answer in forked(2, work):
        require_close(answer, expected)


def test_all_begin_with_the_parameters_of_the_first() -> None:
    alone = make("relu", samples=13)
    expected = ended(alone, train(alone, lb.GramSweep()))

    def work(rank: int) -> Ended:
        case = make("relu", samples=13)
        with torch.no_grad():
            for p in case.problem.model.parameters():
                p.add_(rank)
        return ended(case, train(case, lb.GramSweep(), parallel=TWO))

    for answer in forked(2, work):
        require_close(answer, expected)


@pytest.mark.parametrize("different", ["data", "validation", "solver"])
def test_processes_with_different_arguments_are_refused(different: str) -> None:
    def work(rank: int) -> Any:
        case = make("relu", samples=13)
        if different == "data":
            case.X[9, 2] += rank
        if different == "validation":
            case.Y[3, 2] += rank
        step = 0.1 + rank if different == "solver" else 0.1
        return train(case, lb.GramSweep(step_size=step), parallel=TWO)

    errors = forked(2, work)
    assert [type(error) for error in errors] == [SettingError] * 2
    assert "data or settings are not those of rank 0" in str(errors[1]) and str(errors[0]) == f"rank 1: {errors[1]}"


# In workers of its own


class Raises(Callback):
    def recorded(self, run: Run, row: dict[str, float]) -> None:
        raise ZeroDivisionError("in a callback")


def test_workers_return_parameters_history_and_callback_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alone, case = (make("sparse code", samples=13) for _ in range(2))
    watches = [lb.callbacks.EarlyStopping(patience=50) for _ in range(2)]
    owned, state = [*case.problem.model.parameters()], torch.get_rng_state()
    expected = ended(alone, train(alone, lb.GramSweep(), 6, callbacks=watches[:1]))
    result = train(case, lb.GramSweep(), 6, callbacks=watches[1:], parallel=TWO)
    require_close(ended(case, result), expected)
    assert all(one is other for one, other in zip(owned, case.problem.model.parameters(), strict=True))
    assert watches[1].best == pytest.approx(watches[0].best, rel=1e-12)
    assert watches[1].best_epoch == watches[0].best_epoch and result.state.steps == 18
    assert torch.equal(torch.get_rng_state(), state)
    assert list(tmp_path.iterdir()) == [] and children_here() == []


def test_an_error_of_a_worker_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "launch", launch_forks)
    with pytest.raises(ZeroDivisionError, match="in a callback") as caught:
        train(make("relu", samples=13), lb.GramSweep(), parallel=TWO, callbacks=[Raises()])
    assert "In worker 0 of 2:" in "".join(caught.value.__notes__) and "recorded" in "".join(caught.value.__notes__)


class OfTheScript(Callback):
    pass


OfTheScript.__module__ = "__main__"

REFUSED: dict[str, tuple[dict[str, Any], type[LiftedBregmanError], str]] = {
    "a class of the script": ({"callbacks": [OfTheScript()]}, SettingError, "OfTheScript is defined in the script"),
    "a local class": ({"callbacks": [type("Local", (Callback,), {})()]}, SettingError, "cannot be handed to worker"),
    "more processes than samples": ({"parallel": lb.Parallel(data=6)}, SettingError, "a batch has 5 samples"),
    "layers": (
        {"parallel": lb.Parallel(data=2, layer=2), "solver": lb.ImplicitSGD()},
        CompatibilityError,
        "moves layers one after another",
    ),
    "more processes than layers": ({"parallel": lb.Parallel(layer=4)}, SettingError, "the network has 3"),
    "a solver": ({"solver": lb.ADMM()}, CompatibilityError, "ADMM as it is set needs the whole of each batch"),
    "no epochs": ({"epochs": 0}, SettingError, "epochs is 0"),
    "text": ({"parallel": "data=2"}, SettingError, r"lb.Parallel\(data=2\)"),
    "an interface": ({"parallel": lb.Parallel(data=2, interface="nowhere9")}, SettingError, "nowhere9"),
    "a checkpoint without a folder": ({"callbacks": [lb.callbacks.Checkpoint()]}, SettingError, "needs a folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_settings_are_refused_before_workers_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/no/such/python")  # whoever starts a worker fails
    chosen, kind, sentence = REFUSED[name]
    chosen = {"solver": lb.GramSweep(), "parallel": TWO, **chosen}
    with pytest.raises(kind, match=sentence):
        train(make("relu", samples=13), **chosen)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_run_is_refused_before_workers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make("relu", samples=13), lb.GramSweep(), 1, out=tmp_path)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(CheckpointError, match="holds a run already"):
        train(make("relu", samples=13), lb.GramSweep(), 1, out=tmp_path, parallel=TWO)


SCRIPT = """
import lifted_bregman as lb
from tests.solvers.problems import make

class Mine(lb.callbacks.Callback):
    pass

case = make("relu")
lb.fit(case.problem, case.data, epochs=1, callbacks=[Mine()], parallel=lb.Parallel(data=2))
"""


def test_a_script_with_a_class_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=variables, timeout=100)
    assert done.returncode == 1 and "SettingError: Mine is defined in the script" in done.stderr
    assert "torchrun --nproc-per-node 2" in done.stderr


def test_ctrl_c_ends_the_run_after_the_present_step(tmp_path: Path) -> None:
    alone, case = (make("relu", samples=13) for _ in range(2))
    saver = lb.callbacks.Checkpoint(every_epochs=10**6)
    rows, solver = tmp_path / "history.jsonl", lb.GramSweep(total_steps=math.inf)  # whenever the key is pressed

    def press() -> None:
        until(lambda: rows.exists() and rows.stat().st_size)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    result = train(case, solver, 10**6, out=tmp_path, callbacks=[saver], parallel=TWO)
    presser.join()
    assert result.outcome is Outcome.INTERRUPTED and "It was sent SIGINT." in result.message
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 2  # the first, and that of the end
    assert result.state.steps == int(max((tmp_path / "checkpoints").glob("step-*")).name.rpartition("-")[2])

    epochs = result.state.steps // 3 + 1
    saver = lb.callbacks.Checkpoint(every_epochs=10**6)
    resumed = train(case, solver, epochs, out=tmp_path, callbacks=[saver], resume=True)
    require_close(ended(case, resumed), ended(alone, train(alone, solver, epochs)), 1e-9)
