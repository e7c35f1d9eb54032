"""Checkpoints on disk: where a run stands, in a form that survives kills, full disks and damaged files.

    checkpoints/
        step-00001234/
            model.safetensors, solver.safetensors, ...    the tensors, one file for each part
            state.json                                    everything else
            manifest.json                                 versions, settings hash, size and sha256 of each file
        LATEST                                            the name of the last one

A checkpoint is written beside the others, fsynced, and renamed into place: it is there whole or not at all.  Loading
verifies every byte, and no pickle is ever read.
"""

from __future__ import annotations

import errno
import functools
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.training import _atomic
from lifted_bregman.training._checkpoint_directory import (
    FORMAT,
    MANIFEST,
    STATE,
    SUFFIX,
    Directory,
    Manifest,
    read_pointer,
    step_name,
    step_of,
)
from lifted_bregman.training._checkpoint_json import as_text, plain, sha256_of
from lifted_bregman.training._checkpoint_snapshot import Snapshot, check_snapshot, read_snapshot, taken_apart
from lifted_bregman.training._checkpoint_tensors import pieces

__all__ = ["Checkpoints", "Loaded", "Snapshot", "Verified", "settings_hash", "verify"]

LATEST = "LATEST"
_ATTEMPTS = 20  # to load while another process saves


@dataclass(frozen=True)
class Loaded:
    """A checkpoint read back; `warning` is the sentence that says which damaged ones were passed over, if any."""

    snapshot: Snapshot
    path: Path
    warning: str | None = None


@dataclass(frozen=True)
class Verified:
    """What a sound checkpoint says of itself; `files` gives the size of each file, the manifest aside."""

    path: Path
    step: int
    best: bool
    format: int
    library: str
    torch: str
    python: str
    settings_sha256: str
    files: Mapping[str, int]


class Checkpoints:
    """A folder of checkpoints: the last `keep` of them, and the best.

    Args:
        folder: made with the first save.
        keep: how many of the last to keep, at least 1.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if type(keep) is not int or keep < 1:
            raise SettingError(f"keep is {keep!r}; it must be a whole number of at least 1.")
        self.folder = Path(folder)
        self.keep = keep
        self._unsound: set[int] = set()  # passed over by the last load, so that they do not count as kept

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, sound or not, in increasing order."""
        return sorted(self._directories())

    def sweep(self) -> list[Path]:
        """Removes the temporary directories that dead processes left, and no living one's; returns them."""
        try:
            return _atomic.sweep(self.folder)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror}.") from error

    def save(self, snapshot: Snapshot, *, best: bool = False) -> Path:
        """Writes a checkpoint, then removes those that are no longer wanted.

        If it fails, or is interrupted by Ctrl-C, the folder is as it was.  A checkpoint of the same step is replaced;
        those of later steps are left alone, see `rewind`.

        Args:
            snapshot: what to write.
            best: whether this is the best so far, to be kept until a better one comes.
        """
        state, tensors = taken_apart(snapshot)
        name = step_name(snapshot.step)
        best = best or self._is_best(snapshot.step)
        with self._changing(f"the checkpoint of step {snapshot.step} was not written to {self.folder}") as work:
            _atomic.make_folder(self.folder)
            work.create()
            new = work.path / name
            os.mkdir(new)
            files = {
                part + SUFFIX: _atomic.write_file(new / (part + SUFFIX), pieces(tensors[part], part))
                for part in tensors
            }
            files[STATE] = _atomic.write_file(new / STATE, [state])
            manifest = Manifest(snapshot.step, best, *_versions(), settings_hash(snapshot.settings), files)
            _atomic.write_file(new / MANIFEST, [as_text(manifest.as_json(), "the manifest", indent=1)])
            _atomic.sync_directory(new)
            work.publish(name)
            self._point_to(name, work)
            self._unsound.discard(snapshot.step)
            work.finish(self._unwanted(snapshot.step, best))
        return self.folder / name

    def load(self, step: int | None = None) -> Loaded:
        """The newest checkpoint that verifies, or the one of `step`."""
        if step is not None:
            self._require(step)
            return _loaded(self.folder / step_name(step), [])
        for _ in range(_ATTEMPTS):
            before = self._directories()
            loaded, reasons = self._newest(sorted(before))
            if not reasons or before == self._directories():
                break  # else another process has saved and removed in the meantime
        if loaded is not None:
            return loaded
        if reasons:
            raise CheckpointError(f"{self.folder} has no sound checkpoint. {' '.join(reasons)}")
        raise CheckpointError(f"{self.folder} has no checkpoint: train first, or name the folder of a run.")

    def best(self) -> Loaded | None:
        """The checkpoint last saved as the best, None if none was."""
        reasons: list[str] = []
        for step in reversed(self.steps()):
            try:
                if _manifest(self.folder / step_name(step)).best:
                    return _loaded(self.folder / step_name(step), reasons)
            except CheckpointError as error:
                reasons.append(str(error))
        if reasons:
            raise CheckpointError(f"{self.folder} may have lost its best checkpoint. {' '.join(reasons)}")
        return None

    def rewind(self, step: int) -> list[int]:
        """Removes the checkpoints of later steps, for a run that goes back to `step`; returns their steps."""
        self._require(step)
        later = [other for other in self.steps() if other > step]
        with self._changing(f"{self.folder} was not taken back to step {step}") as work:
            work.create()
            self._point_to(step_name(step), work)
            work.finish(step_name(other) for other in later)
        return later

    @contextmanager
    def _changing(self, failure: str) -> Iterator[_atomic.Workspace]:
        work = _atomic.Workspace(self.folder)
        try:
            yield work
        except OSError as error:
            work.abandon()
            raise CheckpointError(
                f"{failure} ({error.strerror}); what is there is untouched. {remedy(error)}"
            ) from error
        except BaseException:
            work.abandon()
            raise

    def _point_to(self, name: str, work: _atomic.Workspace) -> None:
        _atomic.write_file(work.path / LATEST, [f"{name}\n".encode()])
        work.publish(LATEST)

    def _directories(self) -> dict[int, tuple[int, int]]:
        """The directory of each step, by numbers that are others when it has been replaced."""
        found = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    step = step_of(entry.name)
                    if step is not None and entry.is_dir(follow_symlinks=False):
                        with suppress(FileNotFoundError):  # removed in this moment
                            found[step] = (entry.inode(), entry.stat(follow_symlinks=False).st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror}.") from error
        return found

    def _newest(self, steps: list[int]) -> tuple[Loaded | None, list[str]]:
        """The newest of the steps that verifies, and why others were passed over."""
        reasons = self._missing(steps)
        self._unsound = set()
        for step in reversed(steps):
            try:
                return _loaded(self.folder / step_name(step), reasons), reasons
            except CheckpointError as error:
                reasons.append(str(error))
                self._unsound.add(step)
        return None, reasons

    def _missing(self, steps: list[int]) -> list[str]:
        """The sentence that the last checkpoint is gone, or that it cannot be told."""
        pointer = self.folder / LATEST
        try:
            step = read_pointer(pointer)
        except FileNotFoundError:
            return []
        except OSError as error:
            return [f"{pointer} cannot be read: {error.strerror}."]
        if step is None:
            return [f"{pointer} is damaged."]
        return [] if step in steps else [f"{self.folder / step_name(step)}, which {LATEST} names, is missing."]

    def _unwanted(self, step: int, best: bool) -> list[str]:
        """The names of the earlier checkpoints that a save of `step` makes superfluous."""
        steps = [earlier for earlier in reversed(self.steps()) if earlier < step]
        unwanted = [step_name(earlier) for earlier in steps if earlier in self._unsound]
        for number, earlier in enumerate((s for s in steps if s not in self._unsound), start=1):
            try:
                is_best = not best and _manifest(self.folder / step_name(earlier)).best
                best = best or is_best
            except CheckpointError:
                is_best = True  # for all that is known
            if number >= self.keep and not is_best:
                unwanted.append(step_name(earlier))
        return unwanted

    def _is_best(self, step: int) -> bool:
        try:
            return _manifest(self.folder / step_name(step)).best
        except CheckpointError:
            return False

    def _require(self, step: int) -> None:
        if step not in self.steps():
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step}; there are {self.steps()}.")


def settings_hash(settings: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of the settings: the order of keys does not matter."""
    return sha256_of(plain(settings, "settings"))


def verify(path: Path) -> Verified:
    """Checks one checkpoint directory, byte by byte; raises CheckpointError with the file and the reason.

    Only a piece of each file is in memory at a time.
    """
    with Directory.open(Path(path)) as directory:
        manifest = check_snapshot(directory)
    entries = {**vars(manifest), "files": {name: size for name, (size, _) in manifest.files.items()}}
    return Verified(path=Path(path), format=FORMAT, **entries)


def _loaded(path: Path, reasons: list[str]) -> Loaded:
    with Directory.open(path) as directory:
        snapshot = read_snapshot(directory)
    warning = f"{path} was taken, because what came after it is not sound. {' '.join(reasons)}" if reasons else None
    return Loaded(snapshot, path, warning)


def _manifest(path: Path) -> Manifest:
    with Directory.open(path) as directory:
        return directory.manifest()


def remedy(error: OSError) -> str:
    """What to do about a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free some disk space, then resume."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Choose a folder that you may write to, or change its permissions."
    return "Check the disk, then resume."


@functools.cache
def _versions() -> tuple[str, str, str]:
    try:
        library = importlib.metadata.version("lifted-bregman")
    except importlib.metadata.PackageNotFoundError:
        library = "unknown"
    return library, str(torch.__version__), platform.python_version()
