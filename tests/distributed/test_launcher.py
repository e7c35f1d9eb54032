"""Workers are found on loopback only, started again when they are lost, and gone when their launcher is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lifted_bregman as lb
from lifted_bregman.distributed import launcher as launcher_module
from lifted_bregman.distributed.launcher import launch
from lifted_bregman.errors import SettingError, WorkerError
from tests.distributed.processes import (
    PATIENCE,
    alive,
    children_here,
    children_of,
    listening,
    nothing_left,
    until,
    variables_of,
)
from tests.sampling import every

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def scene(name: str, folder: Path) -> list[str]:
    return ["-m", "tests.distributed.scenes", name, str(folder)]


def notes(folder: Path, what: str) -> set[str]:
    return {path.name for path in folder.glob(f"{what}-*") if path.read_text()}


def pids(folder: Path, what: str) -> list[int]:
    return [int(path.read_text().split()[0]) for path in folder.glob(f"{what}-*")]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(autouse=True)
def as_before() -> Any:
    """Neither handlers nor variables nor threads nor children are left behind."""
    handlers, variables = [signal.getsignal(number) for number in HANDLED], environment()
    threads, sockets = threading.active_count(), len(listening(os.getpid()))
    yield
    assert [signal.getsignal(number) for number in HANDLED] == handlers and environment() == variables
    assert threading.active_count() == threads and len(listening(os.getpid())) == sockets
    assert children_here() == []


class InThread:
    """`launch` in a thread of this process, outside the main one, so that the test can look at it."""

    def __init__(self, arguments: list[str], parallel: lb.Parallel) -> None:
        self.ending: Any = None
        self._thread = threading.Thread(target=self._run, args=(arguments, parallel))
        self._thread.start()

    def _run(self, arguments: list[str], parallel: lb.Parallel) -> None:
        try:
            self.ending = launch(arguments, parallel)
        except BaseException as error:
            self.ending = error

    def join(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.ending


def test_nothing_listens_but_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    launched = InThread(scene("meet", tmp_path), lb.Parallel(data=2))
    try:
        assert until(lambda: notes(tmp_path, "met") == {"met-0-0", "met-1-0"})
        workers = children_here()
        assert sorted(pids(tmp_path, "met")) == workers
        places = {pid: listening(pid) for pid in (os.getpid(), *workers)}
        assert all(places.values())  # the store here, gloo in each worker
        assert {address for found in places.values() for address in found} == {"127.0.0.1"}
        threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
        assert all(variables_of(pid)["OMP_NUM_THREADS"] == threads for pid in workers)
        assert all(path.read_text().split()[1] == threads for path in tmp_path.glob("met-*"))
    finally:
        (tmp_path / "go").touch()
        assert launched.join() == 0


def test_a_killed_worker_is_started_again_with_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(scene("killed_once", tmp_path), lb.Parallel(data=2, restarts=1)) == 0
    assert notes(tmp_path, "joined") == {"joined-0-0", "joined-1-0", "joined-0-1", "joined-1-1"}
    assert notes(tmp_path, "ended") == {"ended-0-1", "ended-1-1"}
    assert capfd.readouterr() == ("", "")


def test_restarts_that_do_not_help(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkerError, match=r"^worker 1 of 2 was ended by SIGKILL. No restarts were allowed: .*\.$"):
        launch(scene("killed_once", tmp_path), lb.Parallel(data=2, restarts=0))
    assert notes(tmp_path, "joined") == {"joined-0-0", "joined-1-0"} and not notes(tmp_path, "ended")
    assert capfd.readouterr() == ("", "")


def test_an_error_of_a_worker_would_come_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(scene("fails", tmp_path), lb.Parallel(data=2, restarts=3)) == 3
    assert notes(tmp_path, "joined") == {"joined-0-0", "joined-1-0"}
    assert capfd.readouterr() == ("", "")


def test_a_worker_saves_after_another_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_module, "GRACE", 60.0)
    assert launch(scene("saves_late", tmp_path), lb.Parallel(data=2)) == 3
    assert notes(tmp_path, "saved") == {"saved-0-0"}


def test_a_worker_that_does_not_end_beside_a_failed_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "GRACE", 0.1)
    assert launch(scene("deaf", tmp_path), lb.Parallel(data=2)) == 3
    first, _ = (int((tmp_path / f"met-{rank}-0").read_text().split()[0]) for rank in (0, 1))
    assert not alive(first)


@pytest.mark.parametrize("code", [0, 3])
def test_workers_do_not_abort_in_the_end(code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They would be started again for it."""
    (tmp_path / "code").write_text(str(code))
    assert launch(scene("aborts_late", tmp_path), lb.Parallel(data=1, restarts=1)) == code
    assert {path.name for path in tmp_path.iterdir()} == {"code", "ended-0-0"}
    assert capfd.readouterr() == ("the last words", "")


def when(number: int, *true: Callable[[], bool]) -> threading.Thread:
    """Sends this process a signal whenever the next of these is true."""

    def send() -> None:
        for answer in true:
            until(answer)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("name", "number", "events"),
    [
        ("stubborn", signal.SIGINT, ("met", "pressed")),
        pytest.param("waits", signal.SIGTERM, ("met",), marks=pytest.mark.long),
    ],
    ids=["SIGINT twice", "SIGTERM"],
)
def test_a_signal_is_passed_on(
    name: str, number: int, events: tuple[str, ...], tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second Ctrl-C comes when both workers have had the first, and ends those that do not listen."""
    monkeypatch.setattr(launcher_module, "GRACE", 0.5)
    sender = when(number, *(lambda e=event: notes(tmp_path, e) == {f"{e}-0-0", f"{e}-1-0"} for event in events))
    assert launch(scene(name, tmp_path), lb.Parallel(data=2)) == 128 + number
    sender.join()
    assert not any(map(alive, pids(tmp_path, "met"))) and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("moment", every(["while they start", "before workers start"], 2))
def test_a_signal_before_or_during_the_start_of_workers_ends_them(
    moment: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = signal.getsignal(signal.SIGINT)
    started = {
        "before workers start": lambda: signal.getsignal(signal.SIGINT) is not own,
        "while they start": lambda: len(children_here()) == 2,
    }[moment]
    sender = when(signal.SIGINT, started)
    assert launch(scene("waits", tmp_path), lb.Parallel(data=2)) == 130
    sender.join()
    assert capfd.readouterr() == ("", "") and not notes(tmp_path, "met")


LAUNCHING = """
import sys
import lifted_bregman as lb
from lifted_bregman.distributed.launcher import launch
launch(sys.argv[1:], lb.Parallel(data=2))
"""


@pytest.mark.parametrize("moment", every(["at work", "just started"], 2))
def test_a_killed_launcher_leaves_no_orphan(moment: str, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHING, *scene("waits", tmp_path)]) as launcher:
        workers = until(lambda: found if len(found := children_of(launcher.pid)) == 2 else None)
        with nothing_left(*workers):
            if moment == "at work":
                until(lambda: notes(tmp_path, "met") == {"met-0-0", "met-1-0"})
            launcher.kill()
            launcher.wait()
            until(lambda: not any(map(alive, workers)))


def test_an_interface_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="nowhere9"):
        launch(scene("waits", tmp_path), lb.Parallel(data=2, interface="nowhere9"))
    assert not list(tmp_path.iterdir())
