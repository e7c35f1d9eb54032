"""Signals: a run that is told to stop saves everything and ends, wherever it was; a second Ctrl-C ends it at once.

Real signals to real processes, forked from this one, which has imported everything already.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.solvers import Outcome
from lifted_bregman.training import checkpoints as checkpoints_module
from tests.sampling import pairwise
from tests.solvers.problems import make
from tests.training.runs import Recorder, assert_same, scrambled, train

EPOCHS = 400
LIMIT = 60.0  # seconds; guards against hanging only


_pipe: int | None = None
_busy = _hanging = False


def announce(where: str) -> None:
    """Tells the parent where the child is."""
    if _pipe is not None:
        os.write(_pipe, where.encode() + b"\n")


@dataclass(frozen=True)
class Slow(solvers.ImplicitSGD):
    """A step that takes a moment and, where `_busy` is set, a fifth step that takes half a minute.

    With a large τ every epoch is better than the one before, so that the best parameters are the last.
    """

    prox_weight: float = 100.0
    inner_steps: int = 1

    def step(self, problem, state, batch):
        time.sleep(0.005)
        if _busy and state.steps == 4:
            announce("inner loop")
            end = time.monotonic() + 30.0
            while time.monotonic() < end:  # an inner loop of many small operations
                super().step(problem, state, batch)
                state.steps -= 1
        return super().step(problem, state, batch)


class Announcer(lb.callbacks.Callback):
    """Says when the first step is over."""

    def stepped(self, run):
        if run.state.steps == 4:
            announce("step")


class SlowCallback(lb.callbacks.Callback):
    """Takes a while, or with `_hanging` half a minute, over the second row; it counts the rows that it has seen."""

    def __init__(self):
        self.rows = 0

    def recorded(self, run, row):
        self.rows += 1
        if row["epoch"] == 2:
            announce("callback")
            time.sleep(30.0 if _hanging else 1.0)

    def state_dict(self):
        return {"rows": self.rows}

    def load_state_dict(self, entries):
        self.rows = entries["rows"]


def callbacks(where: str) -> list[lb.callbacks.Callback]:
    """Those of the child, and of the run that continues it."""
    moments = {"step": [Announcer()], "callback": [SlowCallback()], "callback that hangs": [SlowCallback()]}
    every = 3 if where == "inner loop" else 4  # steps; the others are not at the ends of epochs
    return [*moments.get(where, []), lb.callbacks.EarlyStopping(patience=10**6), lb.callbacks.Checkpoint(1000, every)]


def child(folder: Path, where: str) -> tuple[int, int]:
    """Runs a training in a fork, in which `where` is announced; returns its pid and the pipe's reading end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    global _pipe, _busy, _hanging
    _pipe, _busy, _hanging = writing, where == "inner loop", where == "callback that hangs"
    code = 99
    try:
        if where == "save":
            slow_saves()
        if where == "evaluation":
            slow_evaluation()
        result = train(make("relu"), Slow(), EPOCHS, folder, *callbacks(where))
        code = {Outcome.INTERRUPTED: 130, Outcome.FINISHED: 0}[result.outcome]
    except SystemExit as stop:
        code = int(stop.code)
    except KeyboardInterrupt:
        code = 77
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def slow_saves() -> None:
    """Every file of a checkpoint takes a while, and the first says so."""
    from lifted_bregman.training import _atomic

    write = _atomic.write_file

    def slow(path, pieces):
        announce("save")
        time.sleep(0.05)
        return write(path, pieces)

    _atomic.write_file = slow


def slow_evaluation() -> None:
    """The second row takes half a minute, after the forward pass has been counted."""
    from lifted_bregman.solvers import _loop

    measure, made = _loop.measured, []

    def slow(*arguments, **named):
        made.append(measure(*arguments, **named))
        if len(made) == 3:  # the first is that of the start
            announce("evaluation")
            time.sleep(30.0)
        return made[-1]

    _loop.measured = slow


def ended(pid: int) -> int:
    """The exit code, or minus the signal."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the run did not end")


PLACES = ["step", "inner loop", "evaluation", "callback", "callback that hangs", "save"]


@pytest.mark.parametrize(("where", "number"), pairwise(PLACES, [signal.SIGINT, signal.SIGTERM]), ids=str)
def test_a_signal_ends_the_run_with_a_sound_checkpoint_from_which_it_continues_exactly(tmp_path, where, number):
    code = 128 + number
    pid, reading = child(tmp_path / "run", where)
    assert where.startswith(os.read(reading, 100).decode().split("\n")[0])
    started = time.monotonic()
    os.kill(pid, number)
    assert ended(pid) == code
    seconds = time.monotonic() - started
    os.close(reading)
    assert seconds < 5.0, f"it took {seconds:.1f} s"
    folder = lb.training.RunFolder(tmp_path / "run")
    assert folder.result()["outcome"] == "INTERRUPTED" and signal.Signals(number).name in folder.result()["message"]
    for step in folder.checkpoints.steps():
        checkpoints_module.verify(folder.checkpoints.folder / f"step-{step:08d}")
    loaded = folder.checkpoints.load()
    assert loaded.warning is None
    reached = loaded.snapshot.step
    if where == "inner loop":
        assert reached == 3
    # From here to a few epochs later, against a run that nobody disturbed.
    epochs = reached // 3 + 3
    case, whole, own = scrambled(make("relu")), make("relu"), callbacks(where)
    result = train(case, Slow(), epochs, tmp_path / "run", *own, resume=True)
    expected = train(whole, Slow(), epochs)
    assert result.outcome is Outcome.FINISHED
    assert_same(list(case.problem.model.parameters()), list(whole.problem.model.parameters()))
    assert_same(result.history, expected.history)
    assert_same(folder.history(), [dict(row) for row in result.history])
    assert [one.rows for one in own if isinstance(one, SlowCallback)] in ([], [epochs])


def test_a_second_ctrl_c_ends_it_at_once(tmp_path):
    pid, reading = child(tmp_path / "run", "inner loop")
    assert os.read(reading, 100)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    os.kill(pid, signal.SIGINT)
    assert ended(pid) == 77  # KeyboardInterrupt came out of fit
    os.close(reading)
    assert lb.training.RunFolder(tmp_path / "run").checkpoints.load().snapshot.step == 3


def test_in_the_library_ctrl_c_returns_what_was_reached_and_puts_the_handler_back():
    case, before = make("relu"), signal.getsignal(signal.SIGINT)

    class CtrlC(lb.callbacks.Callback):
        def stepped(self, run):
            if run.state.steps == 4:
                os.kill(os.getpid(), signal.SIGINT)

    result = train(case, solvers.ImplicitSGD(inner_steps=1), 50, None, CtrlC())
    assert result.outcome is Outcome.INTERRUPTED and "SIGINT" in result.message
    assert result.state.steps in (4, 5) and len(result.history) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_was_not_set_from_python_does_not_break_the_end_of_a_run(monkeypatch):
    """That of a program with a Python inside: Python gives None for it, and takes no None."""
    before, put = signal.getsignal(signal.SIGINT), signal.signal

    def of_the_host(number, handler):
        previous = put(number, handler)
        return None if previous is before else previous

    monkeypatch.setattr(signal, "signal", of_the_host)
    try:
        assert train(make("relu"), solvers.ProximalGradient(), 1).outcome is Outcome.FINISHED
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        put(signal.SIGINT, before)


def test_sigterm_is_left_alone_without_a_folder():
    before, seen = signal.getsignal(signal.SIGTERM), []

    class Look(lb.callbacks.Callback):
        def stepped(self, run):
            seen.append(signal.getsignal(signal.SIGTERM))

    train(make("relu"), solvers.ProximalGradient(), 1, None, Look())
    assert seen == [before] and signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_signals_are_left_alone():
    results = []
    thread = threading.Thread(target=lambda: results.append(train(make("relu"), solvers.ProximalGradient(), 2)))
    thread.start()
    thread.join()
    assert results[0].outcome is Outcome.FINISHED


def test_an_interrupt_inside_a_step_leaves_no_half_changed_parameters_in_a_folder(tmp_path):
    @dataclass(frozen=True)
    class Broken(solvers.ImplicitSGD):
        def step(self, problem, state, batch):
            if state.steps == 4:
                with torch.no_grad():
                    problem.model[0].weight.add_(1.0)
                raise KeyboardInterrupt
            return super().step(problem, state, batch)

    case, good, recorder = make("relu"), make("relu"), Recorder([3])
    train(good, solvers.ImplicitSGD(inner_steps=1), 2, None, recorder)
    result = train(case, Broken(inner_steps=1), 4, tmp_path / "run")
    assert result.outcome is Outcome.INTERRUPTED and "Step 5 was broken off; step 3" in result.message
    assert_same(list(case.problem.model.parameters()), recorder.parameters[3])
    assert result.state.steps == 3
