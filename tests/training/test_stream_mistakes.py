"""Streams that fail: a sentence with epoch and batch, the last whole step in the model, and a checkpoint of it."""

from __future__ import annotations

import math
import os
import signal
import time
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import Outcome
from tests.solvers.problems import make
from tests.training.runs import StopAt, assert_same, assert_same_end, parameters, scrambled

SOLVER = solvers.ImplicitSGD(prox_weight=5.0, inner_steps=2)


class Failing:
    """Batches of 4 of 12 samples; `spoil` changes or refuses a batch, by epoch and number from 1."""

    def __init__(self, case, spoil=lambda epoch, number, batch: batch):
        self.case, self.spoil, self.epoch = case, spoil, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 3

    def __iter__(self):
        order = torch.randperm(12)
        for number in (1, 2, 3):
            places = order[4 * number - 4 : 4 * number]
            found = self.spoil(self.epoch, number, (self.case.X[places], self.case.Y[places]))
            if found is not None:
                yield found


def at(change):
    """Changes batch 2 of epoch 2 alone."""
    return lambda epoch, number, batch: change(*batch) if (epoch, number) == (2, 2) else batch


def broken(X, Y):
    raise OSError("the disk is gone")


MISTAKES = {
    "features": (lambda X, Y: (X[:, :4], Y), r"shape \(4,\).*takes 5 features"),
    "targets": (lambda X, Y: (X, Y[:, :2]), r"targets are torch.float64 of shape \(4, 2\)"),
    "samples": (lambda X, Y: (X, Y[:3]), r"4 samples and Y has 3"),
    "precision": (
        lambda X, Y: (X.float(), Y),
        r"holds torch.float32, torch.float64, but the first batch torch.float64, torch.float64",
    ),
    "whole numbers": (lambda X, Y: (X.long(), Y), r"holds torch.int64"),
    "NaN": (lambda X, Y: (X * math.nan, Y), r"X holds NaN or infinity"),
    "infinity": (lambda X, Y: (X, Y / 0.0), r"Y holds NaN or infinity"),
    "no samples": (lambda X, Y: (X[:0], Y[:0]), r"at least one sample"),
    "three parts": (lambda X, Y: (X, Y, Y), r"batches of 3 parts; expected pairs \(x, y\).*collate_fn"),
    "nothing": (lambda X, Y: (), r"batches of 0 parts"),
    "a dict": (lambda X, Y: {"x": X, "y": Y}, r"a dict with the keys 'x', 'y'; expected pairs"),
    "an error": (broken, r"raised at batch 2 of epoch 2: OSError: the disk is gone"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_bad_batch_in_an_epoch_is_named_and_nothing_is_lost(mistake, tmp_path):
    change, sentence = MISTAKES[mistake]
    case, other, whole = make("relu"), make("relu"), make("relu")
    settings = {"epochs": 3, "out": tmp_path}
    with pytest.raises(errors.StreamError, match=sentence) as raised:
        lb.fit(case.problem, Failing(case, at(change)), SOLVER, **settings, callbacks=[StopAt()])
    for words in ("batch 2 of epoch 2", "parameters of step 4", str(tmp_path), "resume=True"):
        assert words in str(raised.value)
    # the model and the result are those of four steps
    expected = lb.fit(other.problem, Failing(other), SOLVER, epochs=3, callbacks=[StopAt(4)])
    assert_same(parameters(case), parameters(other))
    assert_same(raised.value.result.history, expected.history)
    assert raised.value.result.outcome is Outcome.INTERRUPTED
    # and the run goes on once the stream is mended
    finished = lb.fit(whole.problem, Failing(whole), SOLVER, epochs=3)
    resumed = lb.fit(scrambled(case).problem, Failing(case), SOLVER, **settings, resume=True, callbacks=[StopAt()])
    assert_same_end(case, resumed, whole, finished)


def test_without_a_folder_the_model_and_the_history_are_kept():
    case = make("relu")
    with pytest.raises(errors.StreamError, match=r"parameters of step 4, the last whole one\.$") as raised:
        lb.fit(case.problem, Failing(case, at(broken)), SOLVER, epochs=3)
    assert [row["step"] for row in raised.value.result.history] == [3]
    assert isinstance(raised.value.__cause__, OSError)


def test_a_validation_stream_that_fails_is_named(tmp_path):
    case = make("relu")
    state = {"epoch": 0}

    def spoil(epoch, number, batch):
        state["epoch"] += number == 1
        return broken(*batch) if (state["epoch"], number) == (3, 3) else batch

    with pytest.raises(errors.StreamError, match=r"validation raised at batch 3 of epoch 1.*of step 6"):
        lb.fit(case.problem, case.data, SOLVER, epochs=9, batch_size=4, validation=Failing(case, spoil), out=tmp_path)


def test_a_batch_that_is_none_is_no_end():
    case = make("relu")
    loader = DataLoader(TensorDataset(*case.data), batch_size=4, collate_fn=lambda samples: None)
    with pytest.raises(errors.TensorError, match="NoneType batches; expected pairs"):
        lb.fit(case.problem, loader, SOLVER, epochs=1)


class UsedUp:
    """Its batches can be read once."""

    def __init__(self, case):
        self._batches = iter([case.data, case.data])

    def __iter__(self):
        return self._batches


def test_an_epoch_without_batches_is_an_error():
    case = make("relu")
    with pytest.raises(errors.StreamError, match=r"epoch 2 of data has no batch.*begin anew.*of step 2"):
        lb.fit(case.problem, UsedUp(case), SOLVER, epochs=3)


def test_fewer_batches_than_the_length_says_are_told_once():
    case = make("relu")
    fewer = Failing(case, lambda epoch, number, batch: None if epoch > 1 and number == 3 else batch)
    with pytest.warns(
        RuntimeWarning, match="epoch 2 of data had 2 batches, and its length or epoch_steps says 3"
    ) as told:
        result = lb.fit(case.problem, fewer, SOLVER, epochs=4)
    assert result.state.steps == 9 and len(told) == 1


def test_a_continuation_with_fewer_batches_than_were_done_is_refused(tmp_path):
    case = make("relu")
    lb.fit(case.problem, Failing(case), SOLVER, epochs=2, out=tmp_path, callbacks=[StopAt(5)])
    fewer = Failing(case, lambda epoch, number, batch: None if epoch > 1 and number > 1 else batch)
    with pytest.raises(errors.StreamError, match="epoch 2 of data has 1 batches, and 2 were done"):
        lb.fit(case.problem, fewer, SOLVER, epochs=2, out=tmp_path, resume=True, callbacks=[StopAt()])


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (lambda case: DataLoader(TensorDataset(case.X[:8], case.Y[:8]), batch_size=4), "batches = 3.*has 2"),
        (
            lambda case: DataLoader(TensorDataset(2 * case.X, case.Y), batch_size=4),
            "data = .*hashes of the first batch",
        ),
        (lambda case: DataLoader(TensorDataset(*case.data), batch_size=4, num_workers=1), "workers = 0.*has 1"),
        (lambda case: case.data, "batch"),
    ],
    ids=["another length", "another first batch", "other workers", "tensors"],
)
def test_a_continuation_with_other_data_is_refused(other, sentence, tmp_path):
    case = make("relu")
    loader = DataLoader(TensorDataset(*case.data), batch_size=4)
    lb.fit(case.problem, loader, SOLVER, epochs=2, out=tmp_path)
    kept = parameters(case)
    with pytest.raises(errors.CheckpointError, match=sentence):
        lb.fit(case.problem, other(case), SOLVER, epochs=3, out=tmp_path, resume=True)
    assert_same(parameters(case), kept)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch_size": 4}, "batch_size is 4, but data is a DataLoader, which sets its own"),
        ({"sample_weights": torch.ones(12)}, r"weights.*WeightedRandomSampler.*lb\.data\.gathered"),
        ({"parallel": lb.Parallel(data=2)}, r"2 processes.*stream.*lb\.data\.gathered\(data\)"),
        ({"tolerance": 0.1}, "tolerance"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_need_a_set_in_memory_are_refused(settings, sentence):
    case = make("relu")
    loader = DataLoader(TensorDataset(*case.data), batch_size=5)
    with pytest.raises(errors.LiftedBregmanError, match=sentence):
        lb.fit(case.problem, loader, SOLVER, epochs=1, **settings)


def test_more_settings_that_do_not_go_together():
    case = make("relu")
    loader = DataLoader(TensorDataset(*case.data), batch_size=5)
    with pytest.raises(errors.SettingError, match="epoch_steps is for streams"):
        lb.fit(case.problem, case.data, SOLVER, epochs=1, epoch_steps=3)
    with pytest.raises(errors.SettingError, match="epoch_steps is 0"):
        lb.fit(case.problem, loader, SOLVER, epochs=1, epoch_steps=0)
    with pytest.raises(errors.SettingError, match="evaluate_training is for streams"):
        lb.fit(case.problem, case.data, SOLVER, epochs=1, evaluate_training=True)
    hasty = DataLoader(TensorDataset(*case.data), batch_size=5, num_workers=1, in_order=False)
    with pytest.raises(errors.SettingError, match="in_order=True"):
        lb.fit(case.problem, hasty, SOLVER, epochs=1)
    with pytest.raises(errors.SettingError, match="validation is a stream"):
        lb.fit(case.problem, case.data, SOLVER, epochs=1, validation=loader, parallel=lb.Parallel(data=2))
    with pytest.raises(errors.SettingError, match="weights were given for validation"):
        lb.fit(case.problem, case.data, SOLVER, epochs=1, validation=loader, validation_weights=torch.ones(12))


def test_a_batch_of_one_sample_is_no_batch_for_batch_normalisation():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()
    case = make("relu", samples=9)
    problem = lb.lift(model, loss=lb.SquaredError())
    with pytest.raises(errors.StreamError, match=r"batch 3 of epoch 1.*one sample.*drop_last=True"):
        lb.fit(problem, DataLoader(TensorDataset(*case.data), batch_size=4), epochs=1)


class Raising(IterableDataset):
    """Fails in a worker process."""

    def __iter__(self):
        yield torch.zeros(5, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        raise OSError("the disk is gone")


def test_an_error_in_a_worker_process_is_named():
    case = make("relu")
    with pytest.raises(errors.StreamError, match="raised at batch 2 of epoch 1: OSError: OSError: the disk is gone"):
        lb.fit(case.problem, DataLoader(Raising(), batch_size=1, num_workers=1), SOLVER, epochs=1)


class Dying(IterableDataset):
    """Its worker process is killed before the fourth sample, as by a system that is out of memory."""

    def __iter__(self):
        for _ in range(3):
            yield torch.ones(5, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        os.kill(os.getpid(), signal.SIGKILL)


class SlowSteps(StopAt):
    """Waits after the second step until the worker is dead, so that its death is noticed within a run's own code."""

    def stepped(self, run):
        if run.state.steps == 1:
            (self.worker,) = [child.pid for child in active_children()]
        while (
            run.state.steps == 2 and Path(f"/proc/{self.worker}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        ):
            time.sleep(0.01)


@pytest.mark.long  # the loader looks after its workers every five seconds
def test_a_worker_that_is_killed_breaks_off_no_step(tmp_path):
    case = make("relu")
    loader = DataLoader(Dying(), batch_size=1, num_workers=1)
    with pytest.raises(errors.StreamError, match=r"raised at batch [34] of epoch 1: ") as raised:
        lb.fit(case.problem, loader, SOLVER, epochs=1, out=tmp_path, callbacks=[SlowSteps()])
    steps = raised.value.result.state.steps
    assert steps >= 2 and (tmp_path / "checkpoints" / f"step-{steps:08d}").exists()
    assert signal.getsignal(signal.SIGCHLD).__module__ == "torch.utils.data._utils.signal_handling"  # as torch left it


def test_a_signal_while_a_batch_is_awaited_ends_the_run_with_a_checkpoint(tmp_path):
    def interrupt(X, Y):
        signal.raise_signal(signal.SIGINT)
        raise OSError("the workers were interrupted too")

    case, other = make("relu"), make("relu")
    result = lb.fit(case.problem, Failing(case, at(interrupt)), SOLVER, epochs=3, out=tmp_path)
    assert result.outcome is Outcome.INTERRUPTED and result.state.steps == 4
    resumed = lb.fit(scrambled(case).problem, Failing(case), SOLVER, epochs=3, out=tmp_path, resume=True)
    assert_same_end(case, resumed, other, lb.fit(other.problem, Failing(other), SOLVER, epochs=3))
