"""Several processes and one folder: savers, a reader, and what the dead leave behind."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lifted_bregman.errors import CheckpointError
from lifted_bregman.training.checkpoints import Checkpoints, verify_checkpoint
from tests.training.checkpoint_helpers import bits, fork, snapshot


@contextmanager
def child(work: Callable[[], object]) -> Iterator[int]:
    """A forked process that does `work`; it is killed and collected in the end, if it has not been."""
    pid = fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def temporary(folder: Path) -> list[Path]:
    return sorted(folder.glob(".tmp-*"))


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("steps", [(range(1, 30, 2), range(2, 31, 2)), (range(1, 16), range(1, 16))])
def test_two_savers_and_a_reader(tmp_path: Path, keep: int, steps: tuple[range, range]) -> None:
    checkpoints = Checkpoints(tmp_path, keep)
    checkpoints.save(snapshot(0))
    expected = {step: bits(snapshot(step)) for step in range(31)}

    def saver(own: range) -> Callable[[], None]:
        def work() -> None:
            for step in own:
                checkpoints.save(snapshot(step))

        return work

    with child(saver(steps[0])) as one, child(saver(steps[1])) as other:
        running, reads = {one, other}, 0
        while running:
            loaded = checkpoints.load()  # there is always one
            assert bits(loaded.snapshot) == expected[loaded.snapshot.step]
            reads += 1
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    assert os.waitstatus_to_exitcode(status) == 0
                    running.discard(pid)
    assert reads > 10
    assert temporary(tmp_path) == []
    for step in checkpoints.steps():
        assert verify_checkpoint(checkpoints.path(step)).step == step
    assert checkpoints.load().snapshot.step == checkpoints.steps()[-1]


def test_two_threads_of_one_process(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    errors: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for step in range(first, first + 20, 2):
                checkpoints.save(snapshot(step))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert temporary(tmp_path) == []
    loaded = checkpoints.load()
    assert bits(loaded.snapshot) == bits(snapshot(loaded.snapshot.step))


def test_a_living_saver_is_left_alone_and_a_dead_one_is_swept_after(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1))

    def work() -> None:
        for step in range(2, 100_000):
            checkpoints.save(snapshot(step))

    with child(work) as pid:
        deadline = time.monotonic() + 60
        while not (found := temporary(tmp_path)) and time.monotonic() < deadline:
            pass
        os.kill(pid, signal.SIGSTOP)  # in the middle of a save
        os.waitpid(pid, os.WUNTRACED)
        for _ in range(100):  # it may have ended that save, and begun another, before the signal came
            if found := temporary(tmp_path):
                break
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.003)
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
        assert len(found) == 1
        before = sorted(found[0].rglob("*"))
        assert checkpoints.sweep() == []
        assert sorted(found[0].rglob("*")) == before
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, but not yet collected by its parent
        assert checkpoints.sweep() == found
        assert temporary(tmp_path) == []
    assert bits(checkpoints.load().snapshot) == bits(snapshot(checkpoints.steps()[-1]))
    assert checkpoints.sweep() == []


def dead_pid() -> int:
    with child(lambda: None) as pid:
        os.waitpid(pid, 0)
        return pid


def leftover(folder: Path, pid: int, start: int) -> Path:
    path = folder / f".tmp-{pid}-{start}-0123456789abcdef"
    (path / "step-00000005").mkdir(parents=True)
    (path / "step-00000005" / "model.safetensors").write_bytes(b"half")
    return path


def test_a_number_used_again_by_another_process_does_not_protect(tmp_path: Path) -> None:
    # In a container every run may have the same number, so that it always seems to be alive.
    path = leftover(tmp_path, os.getpid(), 1)
    assert Checkpoints(tmp_path).sweep() == [path]
    assert not path.exists()


def test_a_lock_protects_where_numbers_mean_nothing(tmp_path: Path) -> None:
    # The process lives in another container, where it has a number that is nobody's here.
    path = leftover(tmp_path, dead_pid(), 123456)
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert Checkpoints(tmp_path).sweep() == []
    assert (path / "step-00000005" / "model.safetensors").exists()
    os.close(descriptor)
    assert Checkpoints(tmp_path).sweep() == [path]


def test_only_what_a_save_leaves_is_swept(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "precious").mkdir(parents=True)
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder)
    checkpoints.save(snapshot(1))
    pid = dead_pid()
    for name in (".tmp-notes", f".tmp-{pid}", f".tmp-{pid}-1-xyz", f"tmp-{pid}-1-0123456789abcdef"):
        (folder / name).mkdir()
    (folder / f".tmp-{pid}-1-00000000000000aa").write_text("a file")
    (folder / f".tmp-{pid}-1-00000000000000bb").symlink_to(outside)
    names = {entry.name for entry in folder.iterdir()}
    assert checkpoints.sweep() == []
    assert {entry.name for entry in folder.iterdir()} == names
    assert (outside / "precious").is_dir()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"was not written to .*file/checkpoints"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(snapshot(1))
    assert Checkpoints(tmp_path / "file").steps() == []
    assert (tmp_path / "file").read_text() == "x"
