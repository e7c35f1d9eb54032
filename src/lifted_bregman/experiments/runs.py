"""Runs of the command line: `train` starts one in a folder, `resume` continues it, `StoredRun` reads it.

Besides what `fit` writes, the folder holds

    settings.toml    the resolved settings, which `lifted train --config` reads too
    data.json        hashes and preparation of the data

Both are listed in the manifest of the run.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lifted_bregman._device import resolve_device
from lifted_bregman.data import DownloadProgress
from lifted_bregman.distributed import Parallel
from lifted_bregman.distributed.environment import process_info, restarted
from lifted_bregman.errors import CheckpointError, DataError, LiftedBregmanError, SettingError
from lifted_bregman.experiments.build import build_callbacks, build_problem
from lifted_bregman.experiments.run_data import RunData, load_data
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.experiments.settings_file import as_toml, read_settings
from lifted_bregman.solvers import Callback, Outcome, Result, Run
from lifted_bregman.training import RunFolder, fit
from lifted_bregman.training.files import is_workspace, reading
from lifted_bregman.training.manifest import MANIFEST, parse_table, read_files, update_files
from lifted_bregman.training.ranks import require_parallel

if TYPE_CHECKING:
    from rich.console import Console

SETTINGS, DATA = "settings.toml", "data.json"
_BEGUN = {SETTINGS, DATA, MANIFEST, "lock", "checkpoints", "history.jsonl"}  # of a run without a checkpoint yet


def prepared(settings: Settings, out: Path, progress: DownloadProgress | None = None) -> tuple[Settings, RunData]:
    """Resolved settings and their data, for a new run in `out`; an error before any download if `out` cannot be used.

    If the launcher has restarted the processes after a loss, `out` already holds the run, and that is no error.
    """
    require_device(settings)
    if not started_again(settings):
        require_free(out)
    settings = settings.resolved()
    return settings, load_data(settings, progress)


def train(settings: Settings, out: Path, console: Console, data: RunData | None = None) -> Result:
    """Trains in the folder `out`, which must be empty or missing.

    Sets torch's number of threads to that of the settings.

    Args:
        settings: resolved or not; the resolved settings are stored.
        out: created after all checks have passed.
        console: where the progress of the run is shown.
        data: the data that `prepared` returned for these settings; None to load them here.

    Example:
        >>> from pathlib import Path
        >>> from rich.console import Console
        >>> from lifted_bregman.experiments import Settings, train
        >>> settings = Settings(data="digits-100", hidden=(8,), epochs=2)
        >>> train(settings, Path("run"), Console(quiet=True)).outcome.name
        'FINISHED'
    """
    if data is None:
        settings, data = prepared(settings, out)
    return _fit(settings, out, data, console, resume=False)


def resume(stored: StoredRun, console: Console, data: RunData | None = None) -> Result:
    """Continues a run; its result is that of an uninterrupted run.

    Example:
        >>> from pathlib import Path
        >>> from rich.console import Console
        >>> from lifted_bregman.experiments import Settings, StoredRun, resume, train
        >>> result = train(Settings(data="digits-100", hidden=(8,), epochs=2), Path("run"), Console(quiet=True))
        >>> len(resume(StoredRun.open(Path("run")).extended(epochs=5), Console(quiet=True)).history)
        5
    """
    settings = stored.settings
    require_device(settings)
    data = load_data(settings) if data is None else data
    if stored.record is not None and _digests(stored.record) != _digests(data.record):
        raise DataError(
            f"{settings.data} is no longer what {stored.path} was trained on: restore it, or start a new run."
        )
    return _fit(settings, stored.path, data, console, resume=True)


def started_again(settings: Settings) -> bool:
    """Whether the launcher started the processes of the run again after some were lost."""
    return settings.parallel is not None and restarted()


def require_device(settings: Settings) -> torch.device:
    """The device of a run; SettingError unless it can be used here, by one process or by all on the CPU."""
    shared = settings.processes is not None and settings.processes.size > 1
    if shared and settings.device is not None and settings.device.partition(":")[0] != "cpu":
        raise SettingError(
            f"device is '{settings.device}' and parallel is '{settings.parallel}', but several processes of the "
            "command line train on the CPU: leave one of the two out, or call lb.fit in a program for torchrun."
        )
    return resolve_device(settings.device)


def require_processes(settings: Settings, data: RunData) -> Parallel:
    """The parallel degrees of resolved settings; an error if a process would have no layers or samples."""
    parallel, samples = settings.processes, len(data.train[0])
    assert parallel is not None and settings.hidden is not None
    solver = settings.make_solver()
    solver.require(build_problem(settings, data.inputs, data.outputs))
    require_parallel(parallel, len(settings.hidden) + 1, solver, min(settings.batch_size or samples, samples))
    return parallel


def require_free(out: Path) -> None:
    """An error unless a new run can be stored in `out`."""
    try:
        if out.exists() and not out.is_dir():
            raise SettingError(f"out is {out}, which is a file: name a folder that does not exist yet.")
        held = {entry.name for entry in out.iterdir()} if out.exists() else set()
    except OSError as error:
        raise SettingError(f"out is {out}, which cannot be read ({error.strerror}): choose another folder.") from error
    folder = RunFolder(out)
    if process_info() is None:  # of several ranks the first one holds the lock
        folder.require_unused()
    if folder.started_before or folder.has_ended:
        command = f"lifted resume {shlex.quote(str(out))}"
        raise SettingError(f"{out} holds a run already: continue it with '{command}', or choose another --out.")
    others = {name for name in held - _BEGUN if not is_workspace(name)}
    if others:
        raise SettingError(f"{out} holds other files, such as {min(others)}: choose a new folder for --out.")


def _fit(settings: Settings, out: Path, data: RunData, console: Console, resume: bool) -> Result:
    assert settings.threads is not None
    torch.set_num_threads(settings.threads)
    device = require_device(settings)
    train, validation = (
        None if pair is None else (pair[0].to(device), pair[1].to(device)) for pair in (data.train, data.validation)
    )
    return fit(
        build_problem(settings, data.inputs, data.outputs, device),
        train,
        settings.make_solver(),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        seed=settings.seed,
        validation=validation,
        tolerance=settings.tolerance,
        record_every=settings.record_every,
        callbacks=[_Description(out, settings, data.record), *build_callbacks(settings, console)],
        out=out,
        resume=resume,
        parallel=settings.processes,
    )


class _Description(Callback):
    """Writes settings.toml and data.json before the first checkpoint."""

    def __init__(self, out: Path, settings: Settings, record: Mapping[str, Any]) -> None:
        self._files = {SETTINGS: as_toml(settings), DATA: json.dumps(record, indent=1) + "\n"}
        self._out = out

    def started(self, run: Run) -> None:
        update_files(self._out, {name: text.encode() for name, text in self._files.items()})


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run in its folder.

    Args:
        path: the folder.
        settings: its resolved settings.
        record: the record of its data; None if the run ended before the record was written.
        ending: the content of `result.json`; None for a run that has not ended.
        notice: a warning that settings and record could not be verified; None if they were.

    Example:
        >>> from pathlib import Path
        >>> from rich.console import Console
        >>> from lifted_bregman.experiments import Settings, StoredRun, train
        >>> result = train(Settings(data="digits-100", hidden=(8,), epochs=2), Path("run"), Console(quiet=True))
        >>> StoredRun.open(Path("run")).outcome.name
        'FINISHED'
    """

    path: Path
    settings: Settings
    record: Mapping[str, Any] | None
    ending: Mapping[str, Any] | None
    notice: str | None = None

    @classmethod
    def open(cls, path: Path) -> StoredRun:
        """The run in a folder; CheckpointError if there is none, or its files are damaged."""
        if not (path / SETTINGS).is_file():
            if not path.is_dir():
                raise CheckpointError(
                    f"there is no folder {path}: name the folder that 'lifted train' was given as --out."
                )
            raise CheckpointError(
                f"{path} holds no run of 'lifted train', for it has no {SETTINGS}: name the folder given as --out."
            )
        # First what the settings say: a word that was misspelt by hand is explained better than by a hash.
        try:
            settings = read_settings(path / SETTINGS)
        except LiftedBregmanError as error:
            raise CheckpointError(f"the settings of the run are damaged: {error}") from error
        files, notice = read_files(path, (SETTINGS, DATA))
        with reading(path / DATA, "; restore it, or train again"):
            record = parse_table(files[DATA]) if DATA in files else None
        folder = RunFolder(path)
        ending = folder.result() if folder.has_ended else None
        return cls(path, settings.resolved(), record, ending, notice)

    def extended(
        self,
        epochs: int | None = None,
        time_limit: float | None = None,
        parallel: str | None = None,
        device: str | None = None,
    ) -> StoredRun:
        """The run with more epochs, a longer time limit, other processes or another device, to be continued with."""
        settings = self.settings if parallel is None else replace(self.settings, parallel=parallel)
        settings = settings if device is None else replace(settings, device=device)
        if epochs is not None:
            settings, done = replace(settings, epochs=epochs), self.epochs_done
            if epochs <= done and not started_again(settings):
                raise SettingError(f"epochs is {epochs} and {self.path} has {done} already: ask for more.")
        if time_limit is not None:
            if settings.time_limit is None:
                raise SettingError(f"time_limit is {time_limit}, but {self.path} was started without: leave it out.")
            settings = replace(settings, time_limit=time_limit)
        return replace(self, settings=settings)

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended; None for one that has not, or was interrupted."""
        name = None if self.ending is None else str(self.ending.get("outcome"))
        found = Outcome.__members__.get(name or "")
        return None if found is Outcome.INTERRUPTED else found

    @property
    def epochs_done(self) -> int:
        """Whole epochs by the history, or by result.json if that has more: the history may have lost rows."""
        rows = RunFolder(self.path).history()
        ended = None if self.ending is None else self.ending.get("epochs")
        return max(int(rows[-1]["epoch"]) if rows else 0, ended if isinstance(ended, int) else 0)


def _digests(record: Mapping[str, Any]) -> Any:
    return record.get("sha256") or dict(record.get("set", {})).get("sha256")
