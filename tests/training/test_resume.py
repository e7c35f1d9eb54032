"""A run that was cut and resumed is the run that was not: parameters, variables, multipliers, history, bit by bit.

The oracle is the undisturbed run.  Cuts fall inside epochs and at their ends; every piece starts with fresh objects and
wrong parameters, so that all it knows comes from the checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import Outcome
from lifted_bregman.training.fit import run_settings
from lifted_bregman.training.ranks import stable_repr
from tests.cases import name, solver_cases
from tests.training.checkpoint_helpers import sign
from tests.training.runs import Recorder, StopAt, assert_same, assert_same_end, case_in, scrambled, train

EVERY = [(solver, dtype) for solver in solver_cases() for dtype in (torch.float64, torch.float32)]
# Each solver in one precision, the two in turn; the long test has both.
CASES = [(solver, (torch.float64, torch.float32)[number % 2]) for number, solver in enumerate(solver_cases())]


def ids(cases: list[tuple[solvers.Solver, torch.dtype]]) -> list[str]:
    return [f"{name(solver)}-{str(dtype).removeprefix('torch.')}" for solver, dtype in cases]


@pytest.fixture
def folder(tmp_path):
    """In memory where there is such a place: these tests fsync thousands of times, and kill nothing."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path / "run"
        return
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield path / "run"
    shutil.rmtree(path)


def problem_for(solver: solvers.Solver) -> str:
    """A problem that the solver takes."""
    for candidate in ("sparse code", "relu", "classes"):
        try:
            solver.require(case_in(torch.float64, candidate).problem)
        except errors.CompatibilityError:
            continue
        return candidate
    raise AssertionError(f"no problem for {solver}")


def check_cuts(folder: Path, solver: solvers.Solver, dtype: torch.dtype, steps: int, cuts: list[int]) -> None:
    """One undisturbed run against one that is stopped and resumed at every cut."""
    problem = problem_for(solver)
    per_epoch = 3 if solver.minibatch else 1  # 12 samples in batches of 5
    epochs = -(-steps // per_epoch)
    whole, recorder = case_in(dtype, problem), Recorder(cuts)
    expected = train(whole, solver, epochs, None, recorder, record_every=2)
    assert expected.outcome is Outcome.FINISHED, expected.message
    case, resume = case_in(dtype, problem), False
    for cut in cuts:
        stopped = train(case, solver, epochs, folder, StopAt(cut), record_every=2, resume=resume)
        assert stopped.outcome is Outcome.INTERRUPTED and stopped.state.steps == cut
        assert_same(list(case.problem.model.parameters()), recorder.parameters[cut], f"parameters after step {cut}")
        case, resume = scrambled(case_in(dtype, problem)), True
    result = train(case, solver, epochs, folder, StopAt(), record_every=2, resume=True)
    assert_same_end(case, result, whole, expected)
    assert_same(lb.training.RunFolder(folder).history(), expected.history, "history on disk")


@pytest.mark.parametrize(("solver", "dtype"), CASES, ids=ids(CASES))
def test_five_cuts(folder, solver, dtype):
    """After the first step, within epochs and at the end of one, and before the last step."""
    check_cuts(folder, solver, dtype, 15, [1, 5, 6, 11, 14])


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("solver", "dtype"), EVERY, ids=ids(EVERY))
def test_a_cut_at_every_step(folder, solver, dtype):
    check_cuts(folder, solver, dtype, 200, list(range(1, 200)))


def test_a_finished_run_can_be_made_longer(tmp_path):
    solver = solvers.ImplicitSGD(prox_weight=5.0, inner_steps=2)
    whole, case = case_in(torch.float64), case_in(torch.float64)
    expected = train(whole, solver, 6)
    train(case, solver, 4, tmp_path / "run")
    case = scrambled(case_in(torch.float64))
    assert_same_end(case, train(case, solver, 6, tmp_path / "run", resume=True), whole, expected)
    case = scrambled(case_in(torch.float64))  # nothing is left to do: what was reached comes back
    assert_same_end(case, train(case, solver, 6, tmp_path / "run", resume=True), whole, expected)


def test_a_schedule_that_ends_with_the_run_is_resumed_exactly_and_refuses_other_epochs(tmp_path):
    solver = lb.baselines.AdamW(solvers.CosineDecay(0.02, warm_up=2), clip_norm=0.5)
    whole, case = case_in(torch.float64), case_in(torch.float64)
    expected = train(whole, solver, 4)
    train(case, solver, 4, tmp_path / "run", StopAt(7))
    for epochs in (3, 5):
        with pytest.raises(errors.CheckpointError, match=rf"epochs = 4 and this run has {epochs}.*schedule"):
            train(scrambled(case_in(torch.float64)), solver, epochs, tmp_path / "run", StopAt(), resume=True)
    case = scrambled(case_in(torch.float64))
    assert_same_end(case, train(case, solver, 4, tmp_path / "run", StopAt(), resume=True), whole, expected)


def test_early_stopping_and_best_parameters_are_resumed_too(tmp_path):
    solver = lb.baselines.SGD(learning_rate=0.3)  # too long a step: the objective goes up and down

    def early() -> lb.callbacks.EarlyStopping:
        return lb.callbacks.EarlyStopping(patience=4)

    whole = case_in(torch.float64)
    expected = train(whole, solver, 60, None, early(), StopAt())
    assert expected.outcome is Outcome.STOPPED and "best" in expected.message
    last = int(expected.history[-1]["step"])
    case, resume = case_in(torch.float64), False
    for cut in (4, last - 5, last - 1):
        train(case, solver, 60, tmp_path / "run", early(), StopAt(cut), resume=resume)
        case, resume = scrambled(case_in(torch.float64)), True
    result = train(case, solver, 60, tmp_path / "run", early(), StopAt(), resume=True)
    assert_same_end(case, result, whole, expected)


def test_damaged_checkpoints_are_passed_over_with_a_warning_and_the_end_is_the_same(tmp_path):
    solver = solvers.ImplicitSGD(prox_weight=5.0, inner_steps=2)
    whole, case = case_in(torch.float64), case_in(torch.float64)
    expected = train(whole, solver, 6, None, StopAt())
    train(case, solver, 6, tmp_path / "run", StopAt(14))
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-3] ^= 16
    (newest / "model.safetensors").write_bytes(content)
    case = scrambled(case_in(torch.float64))
    with pytest.warns(RuntimeWarning, match="not sound"):
        result = train(case, solver, 6, tmp_path / "run", StopAt(), resume=True)
    assert_same_end(case, result, whole, expected)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seed": 4}, "seed"),
        ({"batch_size": 4}, "batch_size"),
        ({"solver": solvers.ImplicitSGD(prox_weight=6.0, inner_steps=2)}, "solver"),
        ({"record_every": 2}, "record_every"),
    ],
)
def test_other_settings_are_refused_before_anything_is_touched(tmp_path, change, word):
    settings = {"solver": solvers.ImplicitSGD(prox_weight=5.0, inner_steps=2), "batch_size": 5, "seed": 3, "epochs": 4}
    case = case_in(torch.float64)
    lb.fit(case.problem, case.data, out=tmp_path / "run", callbacks=[StopAt(4)], **settings)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}
    fresh = case_in(torch.float64)
    kept = [p.detach().clone() for p in fresh.problem.model.parameters()]
    with pytest.raises(errors.CheckpointError, match=word):
        lb.fit(
            fresh.problem, fresh.data, out=tmp_path / "run", resume=True, callbacks=[StopAt()], **{**settings, **change}
        )
    assert_same(list(fresh.problem.model.parameters()), kept)
    assert before == {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}


def test_other_data_are_refused(tmp_path):
    case = case_in(torch.float64)
    train(case, solvers.ImplicitSGD(), 2, tmp_path / "run")
    other = case_in(torch.float64)
    other.X[3, 1] += 1e-9
    with pytest.raises(errors.CheckpointError, match="data"):
        train(other, solvers.ImplicitSGD(), 3, tmp_path / "run", resume=True)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    case = case_in(torch.float64)
    train(case, solvers.ImplicitSGD(), 1, tmp_path / "run")
    with pytest.raises(errors.CheckpointError, match="resume=True"):
        train(case_in(torch.float64), solvers.ImplicitSGD(), 1, tmp_path / "run")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["history.jsonl", "model.safetensors", "result.json"])
def test_what_a_run_without_checkpoints_left_is_not_overwritten(tmp_path, name, resume):
    """Somebody may have deleted them to save space, or have a model of another origin there."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_bytes(b"precious")
    with pytest.raises(errors.CheckpointError, match=f"{name} and no checkpoint"):
        train(case_in(torch.float64), solvers.ImplicitSGD(), 1, tmp_path / "run", resume=resume)
    assert (tmp_path / "run" / name).read_bytes() == b"precious"


def test_callbacks_in_another_order_take_their_own_states(tmp_path):
    solver, whole, case = lb.baselines.SGD(learning_rate=0.3), case_in(torch.float64), case_in(torch.float64)

    def stopper() -> lb.callbacks.EarlyStopping:
        return lb.callbacks.EarlyStopping(patience=4)

    expected = train(whole, solver, 60, None, stopper(), StopAt())
    cut = int(expected.history[-1]["step"]) - 5
    train(case, solver, 60, tmp_path / "run", stopper(), StopAt(cut))
    result = train(case, solver, 60, tmp_path / "run", lb.callbacks.Timer(1e9), StopAt(), stopper(), resume=True)
    assert_same_end(case, result, whole, expected)


def test_a_callback_that_is_added_at_a_resume_starts_afresh_and_is_named(tmp_path):
    """It sees the rows from there on; the run is the one that it was, and the next resume has nothing to say."""
    solver, whole, case = solvers.ImplicitSGD(inner_steps=2), case_in(torch.float64), case_in(torch.float64)
    expected = train(whole, solver, 6)
    train(case, solver, 2, tmp_path / "run")
    stopping = lb.callbacks.EarlyStopping(patience=9, restore_best=False)
    stopping.best, stopping.waited = -1.0, 8  # as another run has left it
    with pytest.warns(RuntimeWarning, match="^EarlyStopping starts afresh"):
        train(case, solver, 6, tmp_path / "run", stopping, StopAt(7), resume=True)
    stopping = lb.callbacks.EarlyStopping(patience=9, restore_best=False)
    result = train(case, solver, 6, tmp_path / "run", stopping, StopAt(), resume=True)
    assert_same_end(case, result, whole, expected)
    assert stopping.best == min(row["objective"] for row in expected.history[2:])


def test_callbacks_without_a_memory_may_come_and_go(tmp_path):
    solver, whole, case = solvers.ImplicitSGD(inner_steps=2), case_in(torch.float64), case_in(torch.float64)
    expected = train(whole, solver, 4)
    train(case, solver, 2, tmp_path / "run", lb.callbacks.Timer(1e9), StopAt())
    result = train(case, solver, 4, tmp_path / "run", lb.callbacks.Progress(Console(quiet=True)), resume=True)
    assert_same_end(case, result, whole, expected)


def test_the_last_checkpoint_has_a_callback_that_was_added_before_the_first_step(tmp_path):
    """A kill in the first interval does not lose that it was there."""
    train(case_in(torch.float64), solvers.ImplicitSGD(), 1, tmp_path / "run")
    with pytest.warns(RuntimeWarning, match="starts afresh"), pytest.raises(ZeroDivisionError):
        added = (lb.callbacks.EarlyStopping(), Broken())
        train(case_in(torch.float64), solvers.ImplicitSGD(), 2, tmp_path / "run", *added, resume=True)
    with pytest.raises(errors.CheckpointError, match=r"holds the state of EarlyStopping.*give it one"):
        train(case_in(torch.float64), solvers.ImplicitSGD(), 2, tmp_path / "run", resume=True)


class Broken(lb.callbacks.Callback):
    def stepped(self, run):
        raise ZeroDivisionError


def test_a_checkpoint_of_an_earlier_version_that_lacks_an_entry_is_told_by_the_version(tmp_path):
    """Such as one without the names of its callbacks."""
    train(case_in(torch.float64), solvers.ImplicitSGD(), 1, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("step-*"):
        state = json.loads((path / "state.json").read_text())
        del state["state"]["callbacks"]
        (path / "state.json").write_text(json.dumps(state))
        sign(path, library="0.0.7")
    with pytest.raises(errors.CheckpointError, match=r"version 0\.0\.7 wrote, does not fit this run: 'callbacks'"):
        train(case_in(torch.float64), solvers.ImplicitSGD(), 2, tmp_path / "run", resume=True)


@pytest.mark.parametrize("kept", [0, 2, None], ids=["cut to nothing", "cut in a row", "deleted"])
def test_rows_that_the_history_has_lost_are_told_and_the_run_goes_on(tmp_path, kept):
    """The rest is the run that was never cut: parameters, later rows, and what early stopping knows of earlier ones."""
    solver, whole, case = lb.baselines.SGD(learning_rate=0.3), case_in(torch.float64), case_in(torch.float64)

    def stopper() -> lb.callbacks.EarlyStopping:
        return lb.callbacks.EarlyStopping(patience=4)

    expected = train(whole, solver, 60, None, stopper(), StopAt())
    assert expected.outcome is Outcome.STOPPED
    train(case, solver, 60, tmp_path / "run", stopper(), StopAt(11))  # three epochs of three steps, and two steps
    path = tmp_path / "run" / "history.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    path.unlink()
    if kept is not None:
        path.write_bytes(b"".join(lines[:kept]) + lines[kept][:10])
    lost = 3 - (kept or 0)
    where = "ends with the row of epoch 2" if kept else "is missing or empty"
    said, resumed = rf"history\.jsonl {where}, and 3 epochs are done: {lost} of 3 rows are lost", stopper()
    with pytest.warns(RuntimeWarning, match=said):
        train(case, solver, 60, tmp_path / "run", resumed, StopAt(12), resume=True)
    assert resumed.best == min(row["objective"] for row in expected.history[:3])
    result = train(case, solver, 60, tmp_path / "run", stopper(), StopAt(), resume=True)  # which has nothing to say
    expected.history[3 - lost : 3] = []
    assert_same_end(case, result, whole, expected)
    assert_same(lb.training.RunFolder(tmp_path / "run").history(), expected.history)


@pytest.mark.parametrize("change", ["another number", "other rows", "rows in another order", "a damaged row"])
def test_a_shorter_history_that_is_not_the_beginning_of_the_old_one_is_refused(tmp_path, change):
    train(case_in(torch.float64), solvers.ImplicitSGD(), 4, tmp_path / "run", StopAt(11))
    path = tmp_path / "run" / "history.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    changed = {
        "another number": [json.dumps(json.loads(lines[0]) | {"objective": 1}).encode() + b"\n", *lines[1:]],
        "other rows": [lines[0], lines[1].replace(b'"step": 6', b'"step": 60')],
        "rows in another order": [lines[2], lines[0]],
        "a damaged row": [lines[0], b"{}\n"],
    }
    path.write_bytes(b"".join(changed[change]))
    with pytest.raises(errors.CheckpointError, match=r"history\.jsonl is (not the history|no row of a history)"):
        train(case_in(torch.float64), solvers.ImplicitSGD(), 4, tmp_path / "run", StopAt(), resume=True)


@pytest.mark.parametrize("fault", ["fewer callbacks", "another callback", "another history", "another shape"])
def test_a_resume_that_is_refused_leaves_the_parameters_as_they_were(tmp_path, fault):
    class Own(torch.nn.Linear):
        def __repr__(self):
            return "Own()"  # which does not tell its shape

    def problem(hidden: int) -> lb.LiftedProblem:
        layers = (lb.Map(Own(2, hidden)), torch.nn.ReLU(), lb.Map(Own(hidden, 2)))
        return lb.lift(torch.nn.Sequential(*layers), loss=lb.SquaredError())

    X, Y = torch.randn(2, 12, 2).unbind()
    callbacks = [lb.callbacks.EarlyStopping(), lb.callbacks.Timer(1e9)]
    settings = {"epochs": 3, "batch_size": 5, "out": tmp_path / "run"}
    lb.fit(problem(3), (X, Y), callbacks=callbacks, **settings)
    again, message = problem(4 if fault == "another shape" else 3), "does not fit this run"
    if fault == "fewer callbacks":
        callbacks, message = callbacks[1:], "holds the state of EarlyStopping, and this run has no such callback"
    elif fault == "another callback":
        namesake = type("EarlyStopping", (OfOther,), {})
        callbacks, message = [namesake()], "a state that EarlyStopping cannot take"
    elif fault == "another history":
        (tmp_path / "run" / "history.jsonl").write_text("{}\n" * 1000)
        message = "not the history"
    with torch.no_grad():
        for p in again.model.parameters():
            p.fill_(0.5)
    with pytest.raises(errors.CheckpointError, match=message):
        lb.fit(again, (X, Y), callbacks=callbacks, resume=True, **settings)
    assert all(bool((p == 0.5).all()) for p in again.model.parameters())


class OfOther(lb.callbacks.Callback):
    def load_state_dict(self, entries):
        raise KeyError("something else")


def test_a_layer_that_was_frozen_since_is_another_run(tmp_path):
    train(case_in(torch.float64), solvers.ImplicitSGD(), 3, tmp_path / "run", StopAt(4))
    case = case_in(torch.float64)
    case.problem.model[0].requires_grad_(False)
    with pytest.raises(errors.CheckpointError, match="trained"):
        train(case, solvers.ImplicitSGD(), 3, tmp_path / "run", StopAt(), resume=True)


def test_a_function_of_ones_own_has_no_address_in_its_name():
    """It is compared when a run is continued, in another process."""
    assert repr(lb.activations.FromScalar(F.logsigmoid)) == "FromScalar(log_sigmoid)"
    assert repr(lb.activations.FromScalar(_half, name="half")) == "FromScalar(_half, name='half')"
    assert repr(lb.activations.FromScalar(torch.nn.Softsign())) == "FromScalar(Softsign())"
    assert repr(lb.activations.FromScalar(_half).as_module()) == repr(lb.activations.FromScalar(_half).as_module())


def _half(z):
    return 0.5 * z


def test_a_history_that_was_changed_is_found(tmp_path):
    case = case_in(torch.float64)
    train(case, solvers.ImplicitSGD(), 3, tmp_path / "run", StopAt(4))
    path = tmp_path / "run" / "history.jsonl"
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(errors.CheckpointError, match="history"):
        train(case_in(torch.float64), solvers.ImplicitSGD(), 3, tmp_path / "run", StopAt(), resume=True)


def test_what_a_dying_process_left_in_the_history_is_cut_off(tmp_path):
    solver, whole, case = solvers.ImplicitSGD(inner_steps=2), case_in(torch.float64), case_in(torch.float64)
    expected = train(whole, solver, 4, None, StopAt())
    train(case, solver, 4, tmp_path / "run", StopAt(5))
    with (tmp_path / "run" / "history.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "epoch": 2}\n' * 1000 + b'{"step": 9, "epo')
    case = scrambled(case_in(torch.float64))
    result = train(case, solver, 4, tmp_path / "run", StopAt(), resume=True)
    assert_same_end(case, result, whole, expected)
    assert_same(lb.training.RunFolder(tmp_path / "run").history(), expected.history)


def test_parts_of_ones_own_without_a_repr_are_the_same_in_another_process():
    """Python's own has an address in it, which no other process has."""

    class Plain:
        pass

    assert stable_repr((Plain(), [Plain()], {"a": Plain()})) == stable_repr((Plain(), [Plain()], {"a": Plain()}))
    assert "0x" not in stable_repr(Plain()) and "Plain" in stable_repr(Plain())
    assert stable_repr("at 0x noon") == "'at 0x noon'"
    case = case_in(torch.float64)
    run = solvers.Run(
        case.problem, solvers.ImplicitSGD(Doubling()), solvers.Batch.whole(case.problem, *case.data), epochs=1
    )
    assert "Doubling object" in run_settings(run, run.solver)["solver"] and "0x" not in str(
        run_settings(run, run.solver)
    )


class Doubling(solvers.Schedule):
    def value(self, step):
        return 2.0**step
