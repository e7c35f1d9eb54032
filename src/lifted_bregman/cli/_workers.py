"""`lifted train` and `lifted resume` in several processes: each runs the same command line, and the first speaks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lifted_bregman.cli import _console
from lifted_bregman.distributed import Parallel
from lifted_bregman.distributed.environment import follows, process_info
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments import RunData, Settings
from lifted_bregman.experiments.runs import require_processes

# The folder in which workers leave what they would have said of an error, for the launcher to say it once.
ERRORS = "LIFTED_ERRORS"


def takes_part(settings: Settings, named: bool) -> None:
    """What a process of a world does before the others: one that follows is silent.

    named  whether the command line names the folder of the run
    """
    process = process_info()
    if settings.parallel is None or process is None:
        return
    Parallel.parse(settings.parallel).require_world(process.size)
    if not named:
        raise SettingError(
            "the processes of torchrun or SLURM cannot choose a folder for the run: name one with --out."
        )
    _console.silence(follows())


def needs_workers(settings: Settings) -> bool:
    """Whether workers are to be started for these settings: in a world they are there."""
    return settings.parallel is not None and Parallel.parse(settings.parallel).size > 1 and process_info() is None


def in_workers(arguments: Sequence[str], settings: Settings, samples: RunData) -> int:
    """Runs `lifted` with these arguments in each worker, and returns the exit code; an error is said here, once."""
    from lifted_bregman.distributed.launcher import launch

    parallel = require_processes(settings, samples)
    with tempfile.TemporaryDirectory(prefix="lifted-") as folder:
        code = launch(["-m", "lifted_bregman.cli", *arguments], parallel, variables={ERRORS: folder})
        for path in sorted(Path(folder).iterdir(), key=lambda path: int(path.name)):
            _console.say("lifted", path.read_text(encoding="utf-8"))
            break
    return code


def leave(sentence: str) -> bool:
    """Leaves what is to be said of an error to the launcher; False where there is none."""
    folder = os.environ.get(ERRORS)
    process = None if folder is None else process_info()
    if process is None or folder is None:
        return False
    (Path(folder) / str(process.rank)).write_text(sentence, encoding="utf-8")
    return True
