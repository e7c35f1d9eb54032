"""One short demonstration for all tests that look at its files, run as a user runs it: in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 1.0
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def lifted(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lifted_bregman.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=ENVIRONMENT)


class ShortDemo:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = lifted("demo", "--seconds", SECONDS, "--seed", 3, "--threads", 1, "--out", folder)
        assert self.run.returncode == 0, self.run.stderr
        self.page = folder / "index.html"


_MADE: list[ShortDemo] = []


def one_short_demo(tmp_path_factory: pytest.TempPathFactory) -> ShortDemo:
    """The same one for every module of tests; to be left as it is."""
    if not _MADE:
        _MADE.append(ShortDemo(tmp_path_factory.mktemp("demo") / "new" / "folder"))
    return _MADE[0]
