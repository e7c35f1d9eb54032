"""Atomic writes of files, and reading files that may be damaged or hostile.

New files are written in a workspace: a locked directory beside their final place.  They are fsynced there and renamed.
If the process is killed, its workspace stays without a lock; `sweep` removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from lifted_bregman.errors import CheckpointError

_WORKSPACE = re.compile(r"\.tmp-(\d+-\d+-)?[0-9a-f]{16}")  # earlier versions put numbers of the process before
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def locked_workspace(folder: Path) -> Iterator[Path]:
    """A new directory in `folder`, locked while in use.  It is removed at the end with all that is still in it.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.files import locked_workspace
        >>> with locked_workspace(Path(".")) as folder:
        ...     folder.is_dir()
        True
        >>> folder.is_dir()
        False
    """
    path, lock = folder / f".tmp-{secrets.token_hex(8)}", None
    try:
        with _open_directory(folder) as parent:
            take_lock(parent, fcntl.LOCK_SH)  # no sweep comes between the next two lines
            os.mkdir(path)
            lock = os.open(path, _DIRECTORY)
            take_lock(lock)
        yield path
    finally:
        try:
            shutil.rmtree(path)
        except BaseException as error:  # a second try: the failure may pass, and Ctrl-C must leave nothing behind
            shutil.rmtree(path, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
        finally:
            if lock is not None:
                os.close(lock)


def sweep(folder: Path) -> list[Path]:
    """Removes the workspaces of dead processes, which are those without a lock; returns them."""
    swept: list[Path] = []
    if not folder.is_dir():
        return swept
    with _open_directory(folder) as parent:
        if not take_lock(parent):
            return swept  # another process is making a workspace, or sweeps
        for name in sorted(filter(is_workspace, os.listdir(folder))):
            # Links and files stay, and so does everything on a file system without locks.
            with suppress(OSError), _open_directory(folder / name, os.O_NOFOLLOW) as found:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder / name)
                swept.append(folder / name)
    return swept


@contextmanager
def _open_directory(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, _DIRECTORY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_workspace(name: str) -> bool:
    """Whether a directory of this name is a workspace.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.files import is_workspace, locked_workspace
        >>> with locked_workspace(Path(".")) as folder:
        ...     is_workspace(folder.name), is_workspace("results")
        (True, False)
    """
    return _WORKSPACE.fullmatch(name) is not None


def take_lock(file: int | IO[Any], kind: int = fcntl.LOCK_EX) -> bool:
    """Locks an open file or directory until it is closed; False if another process has locked it.

    On a file system without locks, such as some network mounts, every process gets the lock.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Writes a new file, fsynced.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.files import write_file
        >>> write_file(Path("b.txt"), b"abc")
        >>> Path("b.txt").read_bytes()
        b'abc'
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(content).cast("B")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Replaces `path` atomically: writes a file in a workspace and renames it, so that no reader sees a part of it.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.files import replace_file
        >>> replace_file(Path("a.txt"), b"old")
        >>> replace_file(Path("a.txt"), b"new")
        >>> Path("a.txt").read_bytes()
        b'new'
    """
    with locked_workspace(path.parent) as work:
        write_file(work / path.name, content)
        os.replace(work / path.name, path)
        sync_directory(path.parent)


def make_folder(path: Path) -> None:
    """Makes a directory and its parents; the entry of each is fsynced.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.files import make_folder
        >>> make_folder(Path("runs/first"))
        >>> Path("runs/first").is_dir()
        True
    """
    if not path.is_dir():
        make_folder(path.parent)
        with suppress(FileExistsError):
            os.mkdir(path)
            sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Waits until the entries of a directory are on the disk."""
    with _open_directory(path) as descriptor:
        os.fsync(descriptor)


@contextmanager
def open_file(path: Path, limit: int | None = None) -> Iterator[BinaryIO]:
    """A regular file, open for reading; never through a link, nor waiting for a pipe.

    Args:
        path: of the file.
        limit: the most bytes that it may have; None for the memory of this machine.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.files import open_file, write_file
        >>> write_file(Path("c.txt"), b"abc")
        >>> with open_file(Path("c.txt")) as file:
        ...     file.read()
        b'abc'
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError("it is no regular file")
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if status.st_size > (memory if limit is None else limit):
            allowed = f"this machine's memory is {memory}" if limit is None else f"{limit} are allowed"
            raise CheckpointError(f"it has {status.st_size} bytes and {allowed}")
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


@contextmanager
def reading(path: Path, remedy: str = "") -> Iterator[None]:
    """Errors of the block become a CheckpointError that names the file and ends with the remedy.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.files import reading
        >>> with reading(Path("lost.txt"), ": train again"):
        ...     Path("lost.txt").read_bytes()
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CheckpointError: lost.txt cannot be read (No such file or directory): ...
    """
    try:
        yield
    except (CheckpointError, RecursionError) as error:
        reason = str(error) if isinstance(error, CheckpointError) else "it is nested too deeply"
        raise CheckpointError(f"{path} is damaged or was not written by a run: {reason}{remedy}.") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}){remedy}.") from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """An OSError of the block becomes a CheckpointError.

    Args:
        what: the beginning of its sentence: what was not written.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.files import writing
        >>> with writing("lost.txt was not written"):
        ...     Path("no/such/folder/lost.txt").write_bytes(b"abc")
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CheckpointError: lost.txt was not written (No such file or directory). ...
    """
    try:
        yield
    except OSError as error:
        remedy = "Check the disk, then resume."
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "Free some disk space, then resume."
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            remedy = "Choose a folder that you may write to, or change its permissions."
        raise CheckpointError(f"{what} ({error.strerror}). {remedy}") from error
