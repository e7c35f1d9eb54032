"""A run's folder where the file system fails, and what it holds at the end."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.training.checkpoints import Checkpoints
from lifted_bregman_lab.reproduction.running import _locked
from tests.training.runs import assert_same, assert_same_end, case_in, scrambled, train
from tests.training.test_checkpoint_processes import child

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


def test_a_result_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    train(case_in(torch.float64), SOLVER, 1, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "result.json").mkdir()  # which no `unlink` removes
    with pytest.raises(errors.CheckpointError, match=r"result\.json is damaged .* no regular file"):
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
    "line",
    [
        '{"a": 1}',
        "5",
        "[" * 100_000,
        '{"step": 1, "epoch": "one", "seconds": 0, "objective": 1}',
        f'{{"step": 1, "epoch": 1{"0" * 400}, "seconds": 0, "objective": 1}}',
        f'{{"step": 1, "epoch": 1, "seconds": 0, "objective": 1{"0" * 400}}}',
        f'{{"step": 1, "epoch": 1, "seconds": 0, "objective": 1{"0" * 5000}}}',
    ],
    ids=["entries", "number", "nesting", "word", "huge epoch", "huge objective", "thousands of digits"],
)
def test_damaged_rows_are_named_by_their_line(tmp_path, line):
    (tmp_path / "history.jsonl").write_text('{"step": 1, "epoch": 1, "seconds": 0.1, "objective": 2.0}\n' + line + "\n")
    with pytest.raises(errors.CheckpointError, match=r"line 2 of .*history\.jsonl is (damaged|no row of a history)"):
        lb.training.RunFolder(tmp_path).history()


@pytest.mark.parametrize("epoch", [2, 4], ids=["between rows", "after the last row"])
@pytest.mark.parametrize("change", ["deleted", "changed", "cut", "folder deleted"])
def test_a_history_that_is_deleted_or_cut_under_the_run_is_written_again(tmp_path, change, epoch):
    class Meddling(lb.callbacks.Callback):
        def stepped(self, run):
            if (run.epoch, run.batch) == (3, 1) and epoch == 2:
                self.meddle()

        def ended(self, run):
            if epoch == 4:
                self.meddle()

        def meddle(self):
            path = tmp_path / "run" / "history.jsonl"
            if change == "cut":
                os.truncate(path, 20)
                return
            content = path.read_bytes()
            path.unlink()
            if change == "folder deleted":
                shutil.rmtree(path.parent)
            elif change == "changed":
                path.write_bytes(content.replace(b"1", b"2"))

    with pytest.warns(
        RuntimeWarning, match=rf"was deleted, cut short or changed .* its {epoch} rows are written again"
    ):
        result = train(case_in(torch.float64), SOLVER, 4, tmp_path / "run", Meddling())
    assert result.outcome is solvers.Outcome.FINISHED
    assert_same(lb.training.RunFolder(tmp_path / "run").history(), result.history)


def test_what_a_kill_at_the_end_left_is_swept_by_the_next_start(tmp_path):
    """The run is killed when the trained model is written and has not yet its name."""
    killed = KilledAtTheEnd()
    with child(lambda: train(case_in(torch.float64), SOLVER, 1, tmp_path / "run", killed)) as pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    (left,) = (tmp_path / "run").glob(".tmp-*")
    assert [path.name for path in left.iterdir()] == ["model.safetensors"]
    train(case_in(torch.float64), SOLVER, 1, tmp_path / "run", KilledAtTheEnd(), resume=True)
    assert not list((tmp_path / "run").glob(".*"))


class KilledAtTheEnd(lb.callbacks.Callback):
    """Kills the process when it renames a file after the last step; not in the process of the tests."""

    def __init__(self):
        self.process = os.getpid()

    def ended(self, run):
        if os.getpid() != self.process:
            os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)


def test_only_what_dead_processes_left_is_swept_from_the_folder_of_a_run(tmp_path):
    """The lock tells the living from the dead, also those of another container, whose numbers mean nothing here."""
    run = tmp_path / "run"
    dead, living = run / ".tmp-0123456789abcdef", run / ".tmp-0123456789abcde0"
    earlier = run / ".tmp-1-5-0123456789abcdef"  # as an earlier version named it
    others = {".notes.part", ".tmp-notes", "tmp-0123456789abcdef", ".tmp-0123456789abcde1", ".tmp-0123456789abcde2"}
    for path in (dead, living, earlier, run / ".tmp-notes", run / "tmp-0123456789abcdef"):
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(b"half")
    (run / ".notes.part").write_bytes(b"half")
    (run / ".tmp-0123456789abcde1").write_bytes(b"a file")
    (run / ".tmp-0123456789abcde2").symlink_to(tmp_path)
    descriptor = os.open(living, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    train(case_in(torch.float64), SOLVER, 1, run)
    assert {path.name for path in run.iterdir() if "tmp-" in path.name or ".part" in path.name} == others | {
        living.name
    }
    assert (living / "model.safetensors").exists()
    os.close(descriptor)
    train(case_in(torch.float64), SOLVER, 2, run, resume=True)
    assert not living.exists()
