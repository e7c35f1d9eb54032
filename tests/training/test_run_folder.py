"""A run's folder where the file system fails, and what it holds at the end."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.experiments.reproduction.running import _locked
from lifted_bregman.training.checkpoints import Checkpoints
from tests.training.runs import assert_same, assert_same_end, case_in, scrambled, train

SOLVER = solvers.ImplicitSGD(inner_steps=2)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses longer ones: it writes what still fits, and then as little as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_history_that_cannot_grow_ends_the_run_with_what_to_do_and_it_goes_on_from_there(tmp_path):
    whole, case = case_in(torch.float64), case_in(torch.float64)
    expected = train(whole, SOLVER, 60)
    with files_of_at_most(16_000), pytest.raises(errors.CheckpointError) as caught:
        train(case, SOLVER, 60, tmp_path / "run")
    assert all(word in str(caught.value) for word in ("history.jsonl", "File too large", "Free some disk space"))
    rows = lb.training.RunFolder(tmp_path / "run").history()
    assert 1 < len(rows) < 60
    assert_same(rows, expected.history[: len(rows)])
    case = scrambled(case_in(torch.float64))  # in the same process, while the error is looked at
    assert_same_end(case, train(case, SOLVER, 60, tmp_path / "run", resume=True), whole, expected)
    assert_same(lb.training.RunFolder(tmp_path / "run").history(), expected.history)


def test_an_earlier_end_that_cannot_be_removed_is_told_as_such(tmp_path, monkeypatch):
    train(case_in(torch.float64), SOLVER, 1, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "result.json").mkdir()  # which no `unlink` removes
    with pytest.raises(errors.CheckpointError, match=r"result\.json was not written"):
        train(case_in(torch.float64), SOLVER, 2, tmp_path / "run", resume=True)


def test_a_folder_that_cannot_be_opened_is_not_kept_locked(tmp_path, monkeypatch):
    def failing(self):
        raise errors.CheckpointError("it cannot be read.")

    with monkeypatch.context() as patch, pytest.raises(errors.CheckpointError, match="cannot be read") as caught:
        patch.setattr(Checkpoints, "sweep", failing)
        train(case_in(torch.float64), SOLVER, 1, tmp_path / "run")
    train(case_in(torch.float64), SOLVER, 1, tmp_path / "run")
    assert caught.tb is not None


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_a_callback_that_cannot_be_closed_keeps_no_other_open(tmp_path, kind):
    class Last(lb.callbacks.Callback):
        def __init__(self, *errors):
            self.errors, self.closed = errors, False

        def close(self):
            self.closed = True
            for error in self.errors:
                raise error

    first, second, third = Last(kind("the first")), Last(ValueError("the second")), Last()
    with pytest.raises(kind, match="the first") as caught:
        train(case_in(torch.float64), SOLVER, 1, tmp_path / "run", first, second, third)
    assert first.closed and second.closed and third.closed
    again = train(case_in(torch.float64), SOLVER, 2, tmp_path / "run", Last(), Last(), Last(), resume=True)
    assert again.outcome is solvers.Outcome.FINISHED and caught.tb is not None


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_can_hold_a_run(tmp_path, monkeypatch, number):
    def unsupported(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert train(case_in(torch.float64), SOLVER, 1, tmp_path / "run").outcome is solvers.Outcome.FINISHED
    with _locked(tmp_path / "job.lock") as free:
        assert free


@pytest.mark.parametrize(
    "line", ['{"a": 1}', "5", "[" * 100_000, '{"step": 1, "epoch": "one", "seconds": 0, "objective": 1}']
)
def test_rows_that_no_run_wrote_are_told_by_their_line(tmp_path, line):
    (tmp_path / "history.jsonl").write_text('{"step": 1, "epoch": 1, "seconds": 0.1, "objective": 2.0}\n' + line + "\n")
    with pytest.raises(errors.CheckpointError, match=r"line 2 of .*history\.jsonl is (damaged|no row of a history)"):
        lb.training.RunFolder(tmp_path).history()
