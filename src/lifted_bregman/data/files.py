"""Reading files with bounded memory, and writing files that get their final name only when they are complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import os
import secrets
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from lifted_bregman.errors import DataError

_CHUNK = 1 << 20
_UNFINISHED = ".lifted-", ".part"  # first and last letters of the names of unfinished files and folders
_SURELY_HONEST = 64 << 20
_MOST_EXPANSION = 50
_NO_FILE = "{} is no regular file: give a file of data."


def inflated_limit(size: int, times: int = _MOST_EXPANSION) -> int:
    """Return the most bytes that a compressed file of `size` bytes may inflate to: 64 MiB or `times` its size.

    gzip makes images about 5 times smaller, and a decompression bomb about 1,000 times.
    """
    return max(_SURELY_HONEST, times * size)


def expansion_limit(path: Path) -> int:
    """Return the most bytes of content accepted from a file: its size, or `inflated_limit` of it if it is gzipped."""
    with opened_as_it_is(path) as file:
        size = os.fstat(file.fileno()).st_size
        return inflated_limit(size) if file.read(2) == b"\x1f\x8b" else size


@contextlib.contextmanager
def opened_as_it_is(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file; every failure to read it becomes a DataError.

    A pipe or device is refused before a byte is read, because a read from it may block or never end.
    """
    with guarded(path), open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DataError(_NO_FILE.format(path))
        yield file


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file, decompressed if it is gzipped; every failure to read it becomes a DataError."""
    with opened_as_it_is(path) as file:
        magic = file.read(2)
        file.seek(0)
        if magic == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file, mode="rb") as unzipped:
                yield cast(BinaryIO, unzipped)
        else:
            yield file


@contextlib.contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Raise a DataError that names `path` where the block fails to read it."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path} is damaged ({error}): replace it by a good copy.") from error
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: check the name and the folder.") from error
    except IsADirectoryError as error:
        raise DataError(_NO_FILE.format(path)) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}): check the file and its rights.") from error


def _open_without_waiting(name: str, flags: int) -> int:
    """Open without blocking, also a pipe that no process writes to."""
    return os.open(name, flags | os.O_NONBLOCK)


def read_exactly(stream: BinaryIO, size: int, path: Path | str) -> memoryview:
    """Return the next `size` bytes, which must be the last ones; memory grows only with the bytes that arrive."""
    content, filled = np.empty(size, np.uint8).data, 0
    while filled < size:
        count = stream.readinto(content[filled : filled + _CHUNK])  # type: ignore[attr-defined]
        if not count:
            raise DataError(
                f"{path} is too short: {filled:,} bytes of the {size:,} expected; replace it by a good copy."
            )
        filled += count
    if stream.read(1):
        raise DataError(f"{path} is too long: more than the {size:,} bytes expected; replace it by a good copy.")
    return content


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; at the end of the block fsync it and rename it to `path`.

    If anything fails, the temporary file is removed and `path` is as it was.
    """
    with explained(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        begin, end = _UNFINISHED
        name = path.parent / f"{begin}{secrets.token_hex(8)}-{path.name}{end}"
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        _sync_folder(path.parent)


@contextlib.contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Make a temporary folder inside `folder`, and remove it at the end of the block."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix=_UNFINISHED[0], suffix=_UNFINISHED[1], dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`; a process that comes later waits for it.

    The lock is on the folder itself, and the system releases it when the process ends.  Unfinished files of killed
    processes are removed.  On a file system without locks processes work at the same time: each downloads the files,
    and renames complete ones.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
            for part in folder.glob("*".join(_UNFINISHED)):
                if part.is_dir():
                    shutil.rmtree(part, ignore_errors=True)
                else:
                    part.unlink()
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Raise a DataError with the remedy where the block fails to write to `folder`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "free some space, or name another folder with data_dir (--data-dir)"
        else:
            remedy = "make it writable, or name another folder with data_dir (--data-dir)"
        raise DataError(f"{folder} cannot be written to ({error.strerror or error}): {remedy}.") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
