"""`lifted` called in three ways: in this process, in a fork of one warm process, and as a program of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lifted_bregman.cli import main

PROGRAM = [sys.executable, "-m", "lifted_bregman.cli"]
PATIENCE = 120.0  # seconds after which something hangs; never a judgement of speed


@dataclass(frozen=True)
class Called:
    code: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Called:
    """`lifted` with these arguments, in this process."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Called(code, captured.out, captured.err)


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LIFTED_", "NO_COLOR", "FORCE"))}
    return kept | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | changes


def program(*arguments: object, **changes: str) -> Called:
    """`lifted` as a process of its own."""
    command = [*PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(**changes))
    return Called(done.returncode, done.stdout, done.stderr)


def wait_for(path: Path) -> None:
    """Until a file is there and not empty."""
    until = time.monotonic() + PATIENCE
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.005)


class Warm:
    """A process that has imported everything and forks a `lifted` for each request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=Path(__file__).parents[2],
        )

    def start(
        self,
        *arguments: object,
        pause: str | None = None,
        at: int = 1,
        hang: bool = False,
        grace: float | None = None,
        closed: Sequence[int] = (),
        terminal: str | None = None,
        unprivileged: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """A `lifted` that stops the `at`-th time it comes to `pause` until `Child.send` has sent a signal.

        With `hang` it goes on pausing after that, as a step of many minutes would, and notes that it has received the
        signal; a step has `grace` seconds to end after one, 2.5 by default.  The file descriptors that are
        `closed` are pipes that nobody reads; `terminal` takes both kinds of output; an `unprivileged` root obeys the
        permissions of folders.
        """
        self._number += 1
        folder = self._folder / f"child-{self._number}"
        folder.mkdir()
        request = {
            "arguments": [str(argument) for argument in arguments],
            "folder": str(folder),
            "pause": pause,
            "at": at,
            "hang": hang,
            "grace": grace,
            "closed": list(closed),
            "terminal": terminal,
            "unprivileged": unprivileged,
            "environment": dict(environment or {}),
        }
        answer = self._ask(request)
        return Child(self, folder, int(answer["pid"]))

    def wait(self, pid: int) -> int:
        return int(self._ask({"wait": pid})["code"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, request: dict[str, object]) -> dict[str, int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer


@dataclass(frozen=True)
class Child:
    """A `lifted` in a fork of the warm process."""

    server: Warm
    folder: Path
    pid: int

    def send(self, number: signal.Signals) -> None:
        """Waits for the pause and sends the signal in it."""
        wait_for(self.folder / "paused")
        os.kill(self.pid, number)
        (self.folder / "sent").write_text("1")

    def wait(self) -> Called:
        code = self.server.wait(self.pid)
        crash = self.folder / "crash"
        assert not crash.exists(), crash.read_text()
        return Called(code, (self.folder / "stdout").read_text(), (self.folder / "stderr").read_text())
