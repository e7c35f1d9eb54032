"""Signals: a run that receives one saves a checkpoint and ends, wherever it was; a second Ctrl-C ends it at once.

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
from typing import NoReturn

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.solvers import Outcome
from lifted_bregman.training import checkpoints as checkpoints_module
from lifted_bregman.training import signals as signals_module
from tests.sampling import pairwise
from tests.solvers.problems import make
from tests.training.runs import Recorder, assert_same, scrambled, train

EPOCHS = 400
LONG = 600.0  # seconds, in which every step ends that ends


_pipe: int | None = None  # to the parent
_sent = -1  # from the parent, which writes a byte when it has sent a signal
_busy = _hanging = False


def announce(where: str) -> None:
    """Tells the parent where the child is."""
    if _pipe is not None:
        os.write(_pipe, where.encode() + b"\n")


@dataclass(frozen=True)
class Slow(solvers.ImplicitSGD):
    """Where `_busy` is set, the fifth step does not end, and says when a signal was received.

    With a large τ every epoch is better than the one before, so that the best parameters are the last.
    """

    prox_weight: float = 100.0
    inner_steps: int = 1

    def step(self, problem, state, batch):
        if _busy and state.steps == 4:
            announce("inner loop")
            told = False
            while True:  # an inner loop of many small operations
                super().step(problem, state, batch)
                state.steps -= 1
                if not told and signal.getsignal(signal.SIGINT).__self__.received is not None:
                    told = True
                    announce("received")
        return super().step(problem, state, batch)


class Announcer(lb.callbacks.Callback):
    """Says when the first step is over."""

    def stepped(self, run):
        if run.state.steps == 4:
            announce("step")


class SlowCallback(lb.callbacks.Callback):
    """Waits for a signal, or with `_hanging` for ever, over the second row; it counts the rows that it has seen."""

    def __init__(self):
        self.rows = 0

    def recorded(self, run, row):
        self.rows += 1
        if row["epoch"] == 2:
            announce("callback")
            pause(for_ever=_hanging)

    def state_dict(self):
        return {"rows": self.rows}

    def load_state_dict(self, entries):
        self.rows = entries["rows"]


def pause(for_ever: bool = False) -> None:
    """Until the parent has sent a signal, and with `for_ever` after that; without a parent there is nothing to do."""
    if _pipe is not None:
        os.read(_sent, 1)
        while for_ever:
            time.sleep(0.01)


def callbacks(where: str) -> list[lb.callbacks.Callback]:
    """Those of the child, and of the run that continues it."""
    moments = {"step": [Announcer()], "callback": [SlowCallback()], "callback that hangs": [SlowCallback()]}
    every = 3 if where == "inner loop" else 4  # steps; the others are not at the ends of epochs
    return [*moments.get(where, []), lb.callbacks.EarlyStopping(patience=10**6), lb.callbacks.Checkpoint(1000, every)]


class Child:
    """A training in a fork, in which `where` is announced.

    grace  seconds that a step has to end after a signal
    """

    def __init__(self, folder: Path, where: str, grace: float) -> None:
        reading, writing = os.pipe()
        waiting, self._sent = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            run_child(folder, where, grace, writing, waiting)
        for end in (writing, waiting):
            os.close(end)
        self._reader = os.fdopen(reading)

    def announced(self) -> str:
        """Waits for the next announcement."""
        return self._reader.readline().rstrip()

    def send(self, number: int) -> None:
        os.kill(self._pid, number)
        os.write(self._sent, b"s")

    def ended(self) -> int:
        """The exit code, or minus the signal."""
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._reader.close()
        os.close(self._sent)
        return code


def run_child(folder: Path, where: str, grace: float, writing: int, waiting: int) -> NoReturn:
    global _pipe, _sent, _busy, _hanging
    _pipe, _sent, _busy, _hanging = writing, waiting, where == "inner loop", where == "callback that hangs"
    signals_module._GRACE = grace
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
    """The first file of a checkpoint waits for a signal."""
    from lifted_bregman.training import files

    write, saved = files.write_file, []

    def slow(path, content):
        saved.append(path)
        if len(saved) == 1:
            announce("save")
            pause()
        return write(path, content)

    files.write_file = slow


def slow_evaluation() -> None:
    """The second row does not end, after the forward pass has been counted."""
    from lifted_bregman.solvers import _rows

    measure, made = _rows.evaluate_network, []

    def slow(*arguments, **named):
        made.append(measure(*arguments, **named))
        if len(made) == 3:  # the first is that of the start
            announce("evaluation")
            pause(for_ever=True)
        return made[-1]

    _rows.evaluate_network = slow


BROKEN_OFF = ["inner loop", "evaluation", "callback that hangs"]  # where it does not end by itself
PLACES = ["step", "inner loop", "evaluation", "callback", "callback that hangs", "save"]


@pytest.mark.parametrize(("where", "number"), pairwise(PLACES, [signal.SIGINT, signal.SIGTERM]), ids=str)
def test_a_signal_ends_the_run_with_a_sound_checkpoint_from_which_it_continues_exactly(tmp_path, where, number):
    code = 128 + number
    child = Child(tmp_path / "run", where, grace=0.5 if where in BROKEN_OFF else LONG)
    assert where.startswith(child.announced())
    child.send(number)
    assert child.ended() == code
    folder = lb.training.RunFolder(tmp_path / "run")
    assert folder.result()["outcome"] == "INTERRUPTED" and signal.Signals(number).name in folder.result()["message"]
    for step in folder.checkpoints.steps():
        checkpoints_module.verify_checkpoint(folder.checkpoints.folder / f"step-{step:08d}")
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
    child = Child(tmp_path / "run", "inner loop", grace=LONG)
    assert child.announced() == "inner loop"
    child.send(signal.SIGINT)
    assert child.announced() == "received"
    child.send(signal.SIGINT)
    assert child.ended() == 77  # KeyboardInterrupt came out of fit
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
