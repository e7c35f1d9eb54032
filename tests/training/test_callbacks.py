"""Callbacks: early stopping with the best parameters, checkpoints, time limits, progress, TensorBoard."""

from __future__ import annotations

import copy
import importlib
import io
import math
import pickle
import re
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import Outcome
from tests.solvers.problems import make
from tests.training.runs import Recorder, StopAt, assert_same, train


@dataclass(frozen=True)
class Scripted(solvers.Solver):
    """Sets the bias of the last layer so that the objective on zero targets is a given list of numbers."""

    objectives: tuple[float, ...] = ()

    def init(self, problem, batch):
        return solvers.SolverState()

    def step(self, problem, state, batch):
        with torch.no_grad():
            for p in problem.model.parameters():
                p.zero_()
            problem.model[-1].bias[0] = math.sqrt(2 * self.objectives[state.steps])
        state.steps += 1
        return state


def scripted(objectives, *callbacks, **more):
    """They are numbers up to 100, with which the run starts; far above the start it would have diverged."""
    case = make("relu")
    data = (case.X, torch.zeros_like(case.Y))
    with torch.no_grad():
        case.problem.model[-1].bias[0] = math.sqrt(200.0)
    solver = Scripted(tuple(objectives))
    return case, lb.fit(case.problem, data, solver, epochs=len(objectives), callbacks=callbacks, **more)


def test_early_stopping_waits_and_puts_the_best_back():
    stopping = lb.callbacks.EarlyStopping(patience=3)
    case, result = scripted([5, 3, 4, 2, 2.5, 2.4, 2.3, 1.0, 0.5], stopping)
    assert result.outcome is Outcome.STOPPED and result.history[-1]["epoch"] == 7
    assert "epoch 4" in result.message and "objective" in result.message
    assert case.problem.model[-1].bias[0].item() == pytest.approx(math.sqrt(4.0))
    assert stopping.best == pytest.approx(2.0)


def test_without_restoring_the_last_parameters_stay():
    case, _ = scripted([5, 3, 4, 4], lb.callbacks.EarlyStopping(patience=2, restore_best=False))
    assert case.problem.model[-1].bias[0].item() == pytest.approx(math.sqrt(8.0))


def test_a_finished_run_gets_the_best_parameters_too():
    case, result = scripted([5, 3, 4], lb.callbacks.EarlyStopping(patience=9))
    assert result.outcome is Outcome.FINISHED and case.problem.model[-1].bias[0].item() == pytest.approx(math.sqrt(6.0))


def test_a_change_below_min_delta_is_no_improvement():
    _, result = scripted([5.0, 4.9, 4.8, 4.7, 1.0], lb.callbacks.EarlyStopping(patience=3, min_delta=0.5))
    assert result.outcome is Outcome.STOPPED and result.history[-1]["epoch"] == 4


def test_early_stopping_takes_a_larger_accuracy_as_better():
    case = make("classes", samples=60)
    stopping = lb.callbacks.EarlyStopping("validation_accuracy", patience=4)
    validation = (case.X[:20], case.Y[:20])
    solver = lb.baselines.SGD(learning_rate=0.5)
    result = lb.fit(case.problem, case.data, solver, epochs=40, validation=validation, callbacks=[stopping])
    best = max(row["validation_accuracy"] for row in result.history)
    with torch.no_grad():
        kept = float((case.problem.model(validation[0]).argmax(1) == validation[1]).double().mean())
    assert kept == pytest.approx(best) and stopping.best == pytest.approx(-best)


def test_a_monitor_that_no_row_will_have_is_refused_before_the_first_step(tmp_path):
    """Names that are missing here, and names that are known ones misspelt."""
    cases = {"accuracy": "objective", "validation": "objective", "certificate": "energy"}
    cases |= {"objectiv": "did you mean 'objective'", "enrgy_2": "did you mean 'energy_2'"}
    for monitor, words in cases.items():
        for callback in (lb.callbacks.EarlyStopping(monitor), lb.callbacks.Checkpoint(monitor=monitor)):
            case = make("relu")
            before = [p.detach().clone() for p in case.problem.model.parameters()]
            with pytest.raises(errors.SettingError, match=words):
                lb.fit(case.problem, case.data, epochs=2, callbacks=[callback], out=tmp_path / "run")
            assert_same(list(case.problem.model.parameters()), before)
            assert not list((tmp_path / "run").glob("checkpoints/*")) and not (tmp_path / "run/history.jsonl").exists()


def test_a_monitor_of_a_metric_or_of_an_unknown_name():
    """A solver's metrics are known after its first row, and so is that there is none of this name."""
    case = make("relu")
    watching = lb.callbacks.EarlyStopping("prox_weight", patience=2)
    result = lb.fit(case.problem, case.data, lb.ImplicitSGD(100.0), epochs=9, callbacks=[watching])
    assert result.outcome is Outcome.STOPPED and watching.best == 100.0
    with pytest.raises(errors.SettingError, match="'happiness', which the history does not have"):
        scripted([1.0, 2.0], lb.callbacks.EarlyStopping("happiness"))


def test_a_callback_begins_anew_with_each_run(tmp_path):
    stopping, saving = lb.callbacks.EarlyStopping(patience=2), lb.callbacks.Checkpoint()
    scripted([0.5, 0.25, 0.3], stopping, saving, out=tmp_path / "first")
    case, result = scripted([5, 3, 4, 2], stopping, saving, out=tmp_path / "second")
    assert result.outcome is Outcome.FINISHED and stopping.best == pytest.approx(2.0) and stopping.best_epoch == 4
    assert case.problem.model[-1].bias[0].item() == pytest.approx(math.sqrt(4.0))
    assert saving.best == pytest.approx(2.0)
    assert checkpoints(tmp_path / "second").steps() == checkpoints_alone(tmp_path)


def checkpoints_alone(tmp_path):
    """The steps that a callback of its own saves in the second run above."""
    scripted([5, 3, 4, 2], lb.callbacks.Checkpoint(), out=tmp_path / "alone")
    return checkpoints(tmp_path / "alone").steps()


@pytest.mark.parametrize("bad", [{"patience": 0}, {"patience": 1.5}, {"min_delta": -1.0}, {"min_delta": math.nan}])
def test_bad_settings_of_early_stopping(bad):
    with pytest.raises(errors.SettingError):
        lb.callbacks.EarlyStopping(**bad)


def test_the_default_monitor_is_validation_where_there_is_one():
    case = make("relu")
    stopping = lb.callbacks.EarlyStopping(patience=500)
    validation = (case.X + 1.0, case.Y)
    solver = lb.baselines.SGD(learning_rate=0.3)
    result = lb.fit(case.problem, case.data, solver, epochs=80, validation=validation, callbacks=[stopping])
    assert stopping.best == min(row["validation"] for row in result.history) != result.history[-1]["validation"]
    assert float(case.problem.objective(*validation)) == pytest.approx(stopping.best, rel=1e-12)


def checkpoints(path):
    return lb.training.RunFolder(path).checkpoints


def test_the_last_two_and_the_best_checkpoints_are_kept(tmp_path):
    scripted([5, 3, 4, 6, 7, 8], out=tmp_path / "run")
    kept = checkpoints(tmp_path / "run")
    assert kept.steps() == [2, 5, 6]
    best = kept.best()
    assert best is not None and best.snapshot.step == 2
    assert float(best.snapshot.parts["model"]["4.bias"][0]) == pytest.approx(math.sqrt(6.0))


def test_checkpoints_are_saved_every_so_many_epochs(tmp_path):
    class Watch(lb.callbacks.Callback):
        def __init__(self):
            self.seen = set()

        def stepped(self, run):
            self.seen.update(checkpoints(tmp_path / "run").steps())

    watch = Watch()
    scripted([9, 8, 7, 6, 5, 4, 6, 7, 8, 9], lb.callbacks.Checkpoint(every_epochs=3), watch, out=tmp_path / "run")
    assert watch.seen == {0, 3, 6, 9} and checkpoints(tmp_path / "run").steps() == [6, 9, 10]
    best = checkpoints(tmp_path / "run").best()
    assert best is not None and best.snapshot.step == 6


def test_checkpoints_are_saved_every_so_many_steps_inside_epochs_too(tmp_path):
    class Watch(lb.callbacks.Callback):
        def __init__(self):
            self.seen = set()

        def stepped(self, run):
            self.seen.update(checkpoints(tmp_path / "run").steps())

    watch = Watch()
    saver = lb.callbacks.Checkpoint(every_epochs=100, every_steps=2)
    train(make("relu"), solvers.ImplicitSGD(inner_steps=1), 3, tmp_path / "run", saver, watch)
    assert {2, 4, 6, 8} <= watch.seen  # an epoch has three steps


@pytest.fixture
def paced(monkeypatch):
    """A solver each of whose steps takes a quarter of a second of a clock on which nothing else takes time."""
    now = [100.0]

    @dataclass(frozen=True)
    class Paced(solvers.ImplicitSGD):
        inner_steps: int = 1

        def step(self, problem, state, batch):
            now[0] += 0.25
            return super().step(problem, state, batch)

    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=lambda: now[0])
    for module in ("lifted_bregman.solvers.loop", "lifted_bregman.training.callbacks.checkpoint"):
        monkeypatch.setattr(importlib.import_module(module), "time", clock)
    return Paced()


def test_checkpoints_are_saved_every_so_many_seconds(tmp_path, paced):
    """Half a second is two steps."""
    saved = []

    class Watch(lb.callbacks.Callback):
        def stepped(self, run):
            saved.append(max(checkpoints(tmp_path / "run").steps(), default=0))

    saver = lb.callbacks.Checkpoint(every_epochs=100, every_seconds=0.5)
    train(make("relu"), paced, 2, tmp_path / "run", saver, Watch(), StopAt(5))
    assert saved == [0, 0, 2, 2, 4]  # the saver is called after the others, who see it at the next step


@pytest.mark.parametrize("bad", [{"every_epochs": 0}, {"every_steps": 0}, {"every_seconds": 0.0}])
def test_bad_settings_of_checkpoints(bad):
    with pytest.raises(errors.SettingError):
        lb.callbacks.Checkpoint(**bad)


def test_a_save_that_fails_during_the_run_is_a_warning(tmp_path, monkeypatch):
    """The third save hits a full disk; the run ends as it would have, with later checkpoints in place."""
    from lifted_bregman.training import checkpoints as module

    save, calls = module.Checkpoints.save, []

    def failing(self, snapshot, *, best=False):
        calls.append(snapshot.step)
        if len(calls) == 3:
            raise errors.CheckpointError("No space left on device.")
        return save(self, snapshot, best=best)

    monkeypatch.setattr(module.Checkpoints, "save", failing)
    whole, case = make("relu"), make("relu")
    train(whole, solvers.ImplicitSGD(), 4)
    with pytest.warns(RuntimeWarning, match="No space left"):
        result = train(case, solvers.ImplicitSGD(), 4, tmp_path / "run")
    assert result.outcome is Outcome.FINISHED and checkpoints(tmp_path / "run").load().snapshot.step == 12
    assert_same(list(case.problem.model.parameters()), list(whole.problem.model.parameters()))


def test_timer_ends_after_its_seconds_with_a_last_row(paced):
    case = make("relu")
    result = train(case, paced, 1000, None, lb.callbacks.Timer(1.9))
    assert result.outcome is Outcome.STOPPED and "1.9 seconds" in result.message
    assert result.state.steps == result.history[-1]["step"] == 8
    assert result.history[-1]["seconds"] == 2.0
    with pytest.raises(errors.SettingError):
        lb.callbacks.Timer(0.0)


def shown(terminal: bool, epochs: int = 4, **settings) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=160)
    case = make("classes")
    train(
        case,
        solvers.ImplicitSGD(inner_steps=1),
        epochs,
        None,
        lb.callbacks.Progress(console, **settings),
        validation=case.data,
    )
    return stream.getvalue()


def test_plain_lines_where_there_is_no_terminal():
    text = shown(False, line_seconds=0.0, title="digits")
    lines = text.splitlines()
    assert len(lines) == 4 and "\x1b" not in text and "\r" not in text
    for epoch, line in enumerate(lines, start=1):
        assert line.startswith(f"digits: epoch {epoch}/4")
        for word in ("objective", "validation", "accuracy", "zeros"):
            assert word in line
    assert "left" in lines[0] and "left" not in lines[-1]


def test_quiet_logs_still_have_the_last_line():
    lines = shown(False, epochs=30, line_seconds=60.0).splitlines()
    assert 1 <= len(lines) <= 2 and "epoch 30/30" in lines[-1]


def test_under_a_time_limit_epochs_have_no_end():
    lines = shown(False, line_seconds=0.0, time_limit=100.0).splitlines()
    assert lines[0].startswith("training: epoch 1  objective")


def test_a_bar_on_a_terminal():
    text = shown(True)
    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "epoch 4/4" in plain and "objective" in plain and "━" in plain


@pytest.mark.parametrize("width", [50, 80, 160])
def test_a_bar_has_room_on_a_narrow_terminal(width):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, color_system=None)
    case = make("classes")
    validation = {"validation": (case.X, case.Y)}
    train(case, solvers.ImplicitSGD(inner_steps=1), 3, None, lb.callbacks.Progress(console), **validation)
    frames = [line for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())) if line]
    assert all(len(line) <= width and line.startswith("training ") and "…" not in line for line in frames)
    assert any(" left" in line for line in frames) and "epoch 3/3" in frames[-1] and "━" * 12 in frames[-1]
    assert ("validation accuracy" in frames[-1]) == (width == 160)


def test_progress_can_be_copied_to_other_processes():
    progress = lb.callbacks.Progress(title="here")
    case = make("relu")
    for _ in range(2):
        progress = pickle.loads(pickle.dumps(copy.deepcopy(progress)))
        train(case, solvers.ImplicitSGD(inner_steps=1), 1, None, progress)


def test_tensorboard_has_every_number(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    case = make("relu")
    result = train(case, solvers.ImplicitSGD(), 3, None, lb.callbacks.TensorBoard(tmp_path / "board"))
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(result.history[0])
    for name in ("objective", "energy", "forward_maps"):
        points = events.Scalars(name)
        assert [point.step for point in points] == [3, 6, 9]
        assert [point.value for point in points] == pytest.approx([row[name] for row in result.history], rel=1e-6)


def test_callbacks_are_called_in_order():
    class Listener(lb.callbacks.Callback):
        def __init__(self):
            self.heard = []

        def started(self, run):
            self.heard.append("started")

        def stepped(self, run):
            self.heard.append(f"step {run.state.steps}")

        def recorded(self, run, row):
            self.heard.append(f"row {row['epoch']}")

        def ended(self, run):
            self.heard.append(f"ended {run.outcome.name}")

        def finished(self, run):
            self.heard.append("finished")

        def close(self):
            self.heard.append("closed")

    listener = Listener()
    train(make("relu"), solvers.ProximalGradient(), 2, None, listener)
    assert listener.heard == ["started", "step 1", "row 1", "step 2", "row 2", "ended FINISHED", "finished", "closed"]


def test_close_is_called_even_if_the_run_raises():
    class Broken(lb.callbacks.Callback):
        closed = False

        def stepped(self, run):
            raise ZeroDivisionError

        def close(self):
            self.closed = True

    broken, recorder = Broken(), Recorder([1])
    with pytest.raises(ZeroDivisionError):
        train(make("relu"), solvers.ProximalGradient(), 2, None, recorder, broken)
    assert broken.closed
