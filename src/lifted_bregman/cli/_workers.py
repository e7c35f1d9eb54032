"""`lifted train` and `lifted resume` in several processes: each runs the same command line, and rank 0 writes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lifted_bregman.cli import terminal
from lifted_bregman.distributed.environment import follows, process_info
from lifted_bregman.errors import SettingError

if TYPE_CHECKING:  # importing them takes torch, which an error in the command line does not need
    from lifted_bregman.experiments import RunData, Settings

ERRORS = "LIFTED_ERRORS"
"""The folder in which workers write the sentences of their errors, for the launcher to print one of them."""


def takes_part(settings: Settings, named: bool) -> None:
    """Silences this process if it is a rank above 0; SettingError unless the world fits the settings.

    named: whether the command line names the folder of the run.
    """
    place, processes = process_info(), settings.processes
    if processes is None or place is None:
        return
    processes.require_world(place.size)
    if not named:
        raise SettingError(
            "the processes of torchrun or SLURM cannot choose a folder for the run: name one with --out."
        )
    terminal.silence(follows())


def needs_workers(settings: Settings) -> bool:
    """Whether this process has to start workers for these settings: torchrun and SLURM have started them already."""
    return settings.processes is not None and settings.processes.size > 1 and process_info() is None


def in_workers(arguments: Sequence[str], settings: Settings, samples: RunData) -> int:
    """Runs `lifted` with these arguments in each worker, and returns the exit code; prints the first error, once."""
    from lifted_bregman.distributed.launcher import launch
    from lifted_bregman.experiments.runs import require_processes

    parallel = require_processes(settings, samples)
    with tempfile.TemporaryDirectory(prefix="lifted-") as folder:
        code = launch(["-m", "lifted_bregman.cli", *arguments], parallel, variables={ERRORS: folder})
        for path in sorted(Path(folder).iterdir(), key=lambda path: int(path.name)):
            terminal.say("lifted", path.read_text(encoding="utf-8"))
            break
    return code


def leave(sentence: str) -> bool:
    """Writes the sentence of an error to a file, for the launcher to print; False without a launcher."""
    folder = os.environ.get(ERRORS)
    process = None if folder is None else process_info()
    if process is None or folder is None:
        return False
    (Path(folder) / str(process.rank)).write_text(sentence, encoding="utf-8")
    return True
