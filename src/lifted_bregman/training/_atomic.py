"""Changing a folder so that every change is there whole or not at all.

What is new is built in a workspace, a directory inside the folder whose name tells which process it belongs to.  From
there it is renamed into place.  Until `finish`, everything can be undone by renaming back, which needs no disk space.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_WORKSPACE = re.compile(r"\.tmp-(\d{1,9})-(\d{1,18})-[0-9a-f]{16}")
_PART = re.compile(r"\..+\.(\d{1,9})(?:-(\d{1,18}))?-[0-9a-f]{8}\.part")  # older versions gave no start time
_PIECE = 1 << 22  # bytes hashed and written at a time
_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_HERE = -100  # AT_FDCWD of fcntl.h


class Workspace:
    """A private directory inside `folder`.  Nothing happens before `create`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f".tmp-{_process()}-{secrets.token_hex(8)}"
        self._folder = folder
        self._moves: list[_Move] = []
        self._lock: int | None = None
        self._finished = False

    def create(self) -> None:
        """Makes the directory, and locks it for as long as this process lives."""
        os.mkdir(self.path)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        take_lock(self._lock)  # where there are no locks, the process's number must do

    def publish(self, name: str) -> None:
        """Moves the finished entry `name` of the workspace into the folder, in place of the one there."""
        move = _Move(self.path / name, self._folder / name, os.lstat(self.path / name).st_ino)
        self._moves.append(move)  # before the move, so that an interrupt right after it finds it
        move.do()
        sync_directory(self._folder)

    def finish(self, retired: Iterable[str] = ()) -> None:
        """Makes what was published final and removes entries of the folder that are no longer wanted.

        An entry that cannot be removed stays where it is, whole.
        """
        self._finished = True
        for name in retired:
            with suppress(OSError):
                os.rename(self._folder / name, self.path / f"retired-{name}")
        self._remove()

    def abandon(self) -> None:
        """Puts everything back as it was, unless `finish` was reached, and removes the workspace."""
        while self._moves and not self._finished:
            _twice(self._moves[-1].undo)
            self._moves.pop()
        self._remove()

    def _remove(self) -> None:
        _twice(lambda: _remove_tree(self.path))
        if self._lock is not None:
            lock, self._lock = self._lock, None
            os.close(lock)


@dataclass(frozen=True)
class _Move:
    """A rename that can be undone at any moment, whether or not it has happened."""

    source: Path
    target: Path
    inode: int

    def do(self) -> None:
        for _ in range(8):  # another process may put or take the target in between
            try:
                if os.path.lexists(self.target):
                    exchange(self.source, self.target)
                else:
                    os.rename(self.source, self.target)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
        raise OSError(errno.EBUSY, "another process keeps changing it", str(self.target))

    def undo(self) -> None:
        aside = _aside(self.source)
        if os.path.lexists(aside):
            os.rename(aside, self.source if os.path.lexists(self.target) else self.target)
        if os.path.lexists(self.target) and os.lstat(self.target).st_ino == self.inode:
            if os.path.lexists(self.source):
                exchange(self.source, self.target)
            else:
                os.rename(self.target, self.source)


def exchange(one: Path, other: Path) -> None:
    """Swaps two entries of a file system in one atomic step.

    Where the file system cannot (NFS, some FUSE), in three: a kill in between then leaves `other` missing.
    """
    renameat2 = _renameat2()
    if renameat2 is not None and renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return
    aside = _aside(one)
    os.rename(other, aside)
    try:
        os.rename(one, other)
    except OSError:
        os.rename(aside, other)
        raise
    os.rename(aside, one)


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Writes a new file, fsynced; returns its size and sha256, taken of the bytes on their way to the disk."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        take_lock(descriptor)  # so that no other process sweeps a part that is being written
        with ThreadPoolExecutor(1) as hasher:  # a second core hashes while this one waits for the disk
            for whole in pieces:
                for start in range(0, len(whole), _PIECE):
                    piece = memoryview(whole)[start : start + _PIECE]
                    hasher.submit(digest.update, piece)
                    size += len(piece)
                    while piece:
                        piece = piece[os.write(descriptor, piece) :]
            os.fsync(descriptor)
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # it struck inside a lock of the pool
            raise error.__context__ from None
        raise
    finally:
        os.close(descriptor)
    return size, digest.hexdigest()


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Writes a file beside its final name, then renames it: it is there whole or not at all."""
    part = path.with_name(f".{path.name}.{_process()}-{secrets.token_hex(4)}.part")
    try:
        write_file(part, [memoryview(content).cast("B")])
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    sync_directory(path.parent)


def make_folder(path: Path) -> None:
    """Makes a directory and its parents, each entry fsynced."""
    if not path.is_dir():
        make_folder(path.parent)
        with suppress(FileExistsError):
            os.mkdir(path)
            sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Waits until the entries of a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(file: int | IO[Any]) -> bool:
    """Locks an open file, or directory, for this process; False if another one has it.

    On a file system that has no locks, such as some network mounts, every process gets it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def sweep(folder: Path) -> list[Path]:
    """Removes the workspaces of dead processes; returns them."""
    return _sweep(folder, _WORKSPACE, _remove_tree, os.O_DIRECTORY)


def sweep_parts(folder: Path) -> list[Path]:
    """Removes the unfinished files of `replace_file` that dead processes left; returns them."""
    return _sweep(folder, _PART, os.unlink)


def is_leftover(name: str) -> bool:
    """Whether a file of this name is an unfinished one of `replace_file` whose process is dead."""
    found = _PART.fullmatch(name)
    return found is not None and not _is_alive(found)


def _sweep(folder: Path, pattern: re.Pattern[str], remove: Callable[[Path], None], flags: int = 0) -> list[Path]:
    swept = []
    for name in sorted(os.listdir(folder)) if folder.is_dir() else []:
        found = pattern.fullmatch(name)
        if found and not _is_alive(found) and _remove_unless_locked(folder / name, remove, flags):
            swept.append(folder / name)
    return swept


def _remove_unless_locked(path: Path, remove: Callable[[Path], None], flags: int) -> bool:
    # The lock tells what numbers cannot: that the process lives in another container.
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def _process() -> str:
    """What the names of unfinished things say of the process that they belong to: its number and its start time."""
    return f"{os.getpid()}-{_start_time(os.getpid()) or 0}"


def _is_alive(name: re.Match[str]) -> bool:
    """Whether the process that a name tells of still runs; its number alone may by now be another's."""
    pid, start = int(name[1]), name[2]
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    now = _start_time(pid)
    return now is None or start is None or now == int(start)


def _start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; -1 if it has ended and waits to be collected."""
    try:
        # The second field is the program's name in parentheses, which may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return -1 if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _aside(path: Path) -> Path:
    return path.with_name(f"aside-{path.name}")


def _remove_tree(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def _twice(action: Callable[[], None]) -> None:
    # Cleaning up: an error may be passing, and one that stays must not hide the error that brought us here.
    try:
        action()
    except OSError:
        with suppress(OSError):
            action()


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), "renameat2", None)
    return function
