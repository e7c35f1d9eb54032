"""Checkpoints on disk: all that a resumed run needs, in a form that survives kills, full disks and damaged files.

    checkpoints/
        step-00001234/
            model.safetensors, solver.safetensors, ...    the tensors, one file for each part
            state.json                                    everything else
            manifest.json                                 versions, settings hash, size and sha256 of each file
        LATEST                                            the name of the last one

A checkpoint is written in a workspace beside the others, fsynced, and renamed into place: it is there whole or not at
all.  A directory is never replaced: a step that is saved again is `step-00001234-2` until the first is removed.
Loading verifies every byte, and no pickle is ever read.
"""

from __future__ import annotations

import errno
import functools
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.training import files
from lifted_bregman.training.manifest import JSON_LIMIT, MANIFEST, FileHash, seal, unseal
from lifted_bregman.training.snapshot import STATE, Snapshot, is_part_file

__all__ = ["CheckpointInfo", "Checkpoints", "Loaded", "Snapshot", "verify_checkpoint"]

LATEST = "LATEST"
_NAME = re.compile(r"step-(\d{8,18})(?:-(\d{1,9}))?")
_ENTRIES = {"step": int, "best": bool, "library": str, "torch": str, "python": str, "settings_sha256": str}
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # errors of a rename to a name that exists
_ATTEMPTS = 20  # to load while another process saves


@dataclass(frozen=True)
class CheckpointInfo:
    """The manifest of a checkpoint.

    Args:
        step: steps taken.
        best: whether it was the best so far when it was saved.
        library: the version of lifted-bregman that wrote it.
        torch: the version of torch.
        python: the version of Python.
        settings_sha256: the hash of the settings, see `manifest.json_hash`.
        files: size and hash of each file except the manifest.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.checkpoints import Checkpoints, Snapshot, verify_checkpoint
        >>> path = Checkpoints(Path("checkpoints")).save(Snapshot(3, {"model": {"w": torch.ones(2)}}, {}, {}))
        >>> verify_checkpoint(path).step
        3
    """

    step: int
    best: bool
    library: str
    torch: str
    python: str
    settings_sha256: str
    files: Mapping[str, FileHash]


@dataclass(frozen=True)
class Loaded:
    """A checkpoint read back.

    Args:
        snapshot: its content.
        path: its directory.
        info: its manifest.
        warning: which damaged checkpoints were passed over; None for none.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.checkpoints import Checkpoints, Snapshot
        >>> checkpoints = Checkpoints(Path("checkpoints"))
        >>> path = checkpoints.save(Snapshot(3, {"model": {"w": torch.ones(2)}}, {}, {}))
        >>> checkpoints.load().snapshot.parts["model"]["w"]
        tensor([1., 1.])
    """

    snapshot: Snapshot
    path: Path
    info: CheckpointInfo
    warning: str | None = None


class _Directory(NamedTuple):
    """A directory of the folder that has a checkpoint's name."""

    step: int
    number: int
    """1 for the first save of the step, 2 for the next, and so on."""
    path: Path
    inode: int
    changed: int
    """Time of the last change of its entries, in nanoseconds.  With the inode it identifies the directory, because a
    later one may have the same name.
    """


class Checkpoints:
    """A folder of checkpoints: the last `keep` of them, and the best.

    Args:
        folder: made with the first save.
        keep: how many of the last to keep, at least 1.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.checkpoints import Checkpoints, Snapshot
        >>> checkpoints = Checkpoints(Path("checkpoints"), keep=2)
        >>> for step in (1, 2, 3):
        ...     path = checkpoints.save(Snapshot(step, {"model": {"w": torch.ones(2)}}, {}, {}))
        >>> checkpoints.steps()
        [2, 3]
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if type(keep) is not int or keep < 1:
            raise SettingError(f"keep is {keep!r}; it must be a whole number of at least 1.")
        self.folder = Path(folder)
        self.keep = keep
        self._unsound: set[Path] = set()  # passed over by the last load, so that they do not count as kept

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, sound or not, in increasing order."""
        return list(self._paths())

    def path(self, step: int) -> Path:
        """The directory of a step's checkpoint."""
        paths = self._paths()
        if step not in paths:
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step}; there are {list(paths)}.")
        return paths[step]

    def sweep(self) -> list[Path]:
        """Removes the workspaces that dead processes left, and none of a living one; returns them."""
        with files.reading(self.folder):
            return files.sweep(self.folder)

    def save(self, snapshot: Snapshot, *, best: bool = False) -> Path:
        """Writes a checkpoint, then removes those that are no longer wanted.

        If it fails, or is interrupted by Ctrl-C, the folder is as it was.  A checkpoint of the same step is replaced;
        those of later steps are left alone, see `rewind`.

        Args:
            snapshot: what to write.
            best: whether this is the best so far, to be kept until a better one comes.
        """
        contents, hashes, step = snapshot.files(), {}, snapshot.step
        best = best or self._is_best(step)
        with files.writing(f"the checkpoint of step {step} was not written to {self.folder}, which is untouched"):
            files.make_folder(self.folder)
            with files.locked_workspace(self.folder) as work:
                # Write and fsync every file, the manifest last.
                new = work / _name(step)
                os.mkdir(new)
                with ThreadPoolExecutor(1) as other_core:  # hashes while the disk writes
                    for name, content in contents:
                        found = other_core.submit(FileHash.of, content)
                        files.write_file(new / name, content)
                        hashes[name] = found.result()
                about = {"step": step, "best": best, **_versions(), "settings_sha256": snapshot.settings_hash()}
                files.write_file(new / MANIFEST, seal(hashes, **about))
                files.sync_directory(new)
                files.write_file(work / LATEST, f"{_name(step)}\n".encode())
                unwanted = self._unwanted(step, best)
                # Rename the directory to a free name: from now on it counts, and what follows is tidying up.
                path = self._publish(new, step)
                self._retire(unwanted, work)
                with suppress(OSError):  # a step that was saved before gets its plain name back
                    os.rename(path, self.folder / _name(step))
                    path = self.folder / _name(step)
                self._unsound.discard(path)
        return path

    def load(self, step: int | None = None) -> Loaded:
        """The newest checkpoint that verifies, or the one of `step`."""
        if step is not None:
            return _load(self.path(step), [])
        for _ in range(_ATTEMPTS):
            before = self._directories()
            loaded, reasons = self._newest_sound(before)
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
        for path in reversed(self._paths().values()):
            try:
                if _read_info(path).best:
                    return _load(path, reasons)
            except CheckpointError as error:
                reasons.append(str(error))
        if reasons:
            raise CheckpointError(f"{self.folder} may have lost its best checkpoint. {' '.join(reasons)}")
        return None

    def rewind(self, step: int) -> list[int]:
        """Removes the checkpoints of later steps, for a run that goes back to `step`; returns their steps."""
        self.path(step)
        later = [found for found in self._directories() if found.step > step]
        with files.writing(f"{self.folder} was not taken back to step {step} and is untouched"):
            with files.locked_workspace(self.folder) as work:
                files.write_file(work / LATEST, f"{_name(step)}\n".encode())
                self._retire([found.path for found in later], work)
        return sorted({found.step for found in later})

    def _publish(self, new: Path, step: int) -> Path:
        """Renames `new` to the first free name of the step and fsyncs the folder; undoes the one if the other fails."""
        for number in count(1):
            path = self.folder / _name(step, number)
            try:
                os.rename(new, path)
                break
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
        try:
            files.sync_directory(self.folder)
        except OSError:
            os.rename(path, new)
            raise
        return path

    def _retire(self, unwanted: Iterable[Path], work: Path) -> None:
        """Puts LATEST in place, then moves directories to the workspace, to be removed with it.

        An error leaves the rest as it is: every directory is whole, and loading needs no LATEST.
        """
        latest = self.folder / LATEST
        with suppress(OSError):
            if latest.is_dir() and not latest.is_symlink():
                os.rename(latest, work / "no-file")
            os.replace(work / LATEST, latest)
            files.sync_directory(self.folder)
            for path in unwanted:
                os.rename(path, work / f"retired-{path.name}")

    def _directories(self) -> list[_Directory]:
        """The directories that have a checkpoint's name, in the order of step and number."""
        found = []
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    name = _NAME.fullmatch(entry.name)
                    if name and entry.is_dir(follow_symlinks=False):
                        step, number = int(name[1]), int(name[2] or 1)
                        with suppress(FileNotFoundError):  # removed in this moment
                            changed = entry.stat(follow_symlinks=False).st_mtime_ns
                            found.append(_Directory(step, number, Path(entry.path), entry.inode(), changed))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read ({error.strerror}).") from error
        return sorted(own for own in found if own.path.name == _name(own.step, own.number))

    def _paths(self) -> dict[int, Path]:
        """{step: its directory with the highest number}, in increasing order of the steps."""
        return {found.step: found.path for found in self._directories()}

    def _newest_sound(self, directories: list[_Directory]) -> tuple[Loaded | None, list[str]]:
        """The newest checkpoint that verifies, and why others were passed over."""
        reasons = self._missing({found.step for found in directories})
        self._unsound = set()
        for found in reversed(directories):
            try:
                return _load(found.path, reasons), reasons
            except CheckpointError as error:
                reasons.append(str(error))
                self._unsound.add(found.path)
        return None, reasons

    def _missing(self, steps: set[int]) -> list[str]:
        """The sentence that the last checkpoint is gone, or that LATEST cannot be read; at most one."""
        pointer, name = self.folder / LATEST, None
        try:
            with files.open_file(pointer, 64) as file:
                name = _NAME.fullmatch(file.read().decode("ascii", "replace").removesuffix("\n"))
        except FileNotFoundError:
            return []
        except (CheckpointError, OSError):
            pass
        if name is None:
            return [f"{pointer} is damaged."]
        return [] if int(name[1]) in steps else [f"{self.folder / name[0]}, which {LATEST} names, is missing."]

    def _unwanted(self, step: int, best: bool) -> list[Path]:
        """The directories to remove after a save of `step`: all but the best checkpoint and the last `keep`."""
        directories, plain = self._directories(), self.folder / _name(step)
        saved = [found.path for found in directories if found.step <= step]
        if plain not in saved and os.path.lexists(plain):
            saved.append(plain)  # a link or a file
        sound = [found for found in directories if found.step < step and found.path not in self._unsound]
        wanted: set[Path] = set()
        for kept, path in enumerate(reversed({found.step: found.path for found in sound}.values()), start=1):
            try:
                is_best = not best and _read_info(path).best
                best = best or is_best
            except CheckpointError:
                is_best = True  # it may be
            if kept < self.keep or is_best:
                wanted.add(path)
        return [path for path in saved if path not in wanted]

    def _is_best(self, step: int) -> bool:
        try:
            return _read_info(self.path(step)).best
        except CheckpointError:
            return False


def verify_checkpoint(path: Path) -> CheckpointInfo:
    """Checks every byte of one checkpoint directory; CheckpointError with the file and the reason if it is damaged.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.checkpoints import Checkpoints, Snapshot, verify_checkpoint
        >>> path = Checkpoints(Path("checkpoints")).save(Snapshot(3, {"model": {"w": torch.ones(2)}}, {}, {}))
        >>> damaged = (path / "model.safetensors").write_bytes(b"")
        >>> verify_checkpoint(path)
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CheckpointError: checkpoints/step-00000003/model.safetensors is damaged ...
    """
    return _load(Path(path), []).info


def _load(path: Path, reasons: list[str]) -> Loaded:
    """The checkpoint in a directory; `reasons` say why newer ones were passed over."""
    info = _read_info(path)
    snapshot = Snapshot.read(path, info.step, info.files, info.settings_sha256)
    warning = f"{path} was taken, because what came after it is not sound. {' '.join(reasons)}" if reasons else None
    return Loaded(snapshot, path, info, warning)


def _read_info(path: Path) -> CheckpointInfo:
    """The manifest of a directory that may be damaged or hostile; the other files are listed and not read."""
    if path.is_symlink() or not path.is_dir():
        reason = "is a link" if path.is_symlink() else "is no directory"
        raise CheckpointError(f"{path} {reason}; a checkpoint is a directory such as {_name(1234)}.")
    with files.reading(path / MANIFEST):
        with files.open_file(path / MANIFEST, JSON_LIMIT) as file:
            hashes, entries = unseal(file.read())
        if {name: type(entry) for name, entry in entries.items()} != _ENTRIES or entries["step"] < 0:
            raise CheckpointError("its entries are not those of a checkpoint")
        if STATE not in hashes:
            raise CheckpointError(f"it lists no {STATE}")
        for name in hashes:
            if name != STATE and not is_part_file(name):
                raise CheckpointError(f"it lists {name[:100]!r}, which is no file of a checkpoint")
        named = _NAME.fullmatch(path.name)
        if named and int(named[1]) != entries["step"]:
            raise CheckpointError(f"it belongs to step {entries['step']}")
        present = {name for name in os.listdir(path) if not name.startswith(".")} - {MANIFEST}
        for name in sorted(present ^ set(hashes)):
            raise CheckpointError(f"{name} is {'not listed in it' if name in present else 'listed in it and missing'}")
    return CheckpointInfo(**entries, files=hashes)


def _name(step: int, number: int = 1) -> str:
    """The name of a checkpoint's directory."""
    return f"step-{step:08d}" + (f"-{number}" if number > 1 else "")


@functools.cache
def _versions() -> dict[str, str]:
    try:
        library = importlib.metadata.version("lifted-bregman")
    except importlib.metadata.PackageNotFoundError:
        library = "unknown"
    return {"library": library, "torch": str(torch.__version__), "python": platform.python_version()}
