"""Downloads by pooch, bounded in size and time.  Nothing is used before its sha256 has been checked."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lifted_bregman.data._archives import Failed, Unreachable
from lifted_bregman.data._places import Place, read_verified
from lifted_bregman.data.files import explained, workspace
from lifted_bregman.data.registry import FileInfo
from lifted_bregman.errors import DataError, SettingError

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Timeouts:
    """How long to wait for a mirror, in seconds.

    Args:
        connect: for a connection.
        read: for the next bytes.
        total: for a whole file.
    """

    connect: float = 5.0
    read: float = 20.0
    total: float = 3600.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise SettingError(f"the timeout '{name}' is {value!r}; it must be above 0 seconds.")


def fetch_file(place: Place, url: str, file: FileInfo, timeouts: Timeouts, progress: Progress | None) -> None:
    """Download one file, gzipped or not, verify its decompressed bytes, and store it in `place`."""
    with workspace(place.folder) as work:
        part = work / file.name
        download(url, part, file.size + file.size // 100 + 4096, timeouts, progress)
        try:
            content = read_verified(part, file)
        except DataError as error:
            raise Failed(_reason(error, part)) from error
    place.store(file, content)


def download(url: str, target: Path, limit: int, timeouts: Timeouts, progress: Progress | None) -> None:
    """Download `url` to `target`, at most `limit` bytes."""
    try:
        from pooch import HTTPDownloader  # type: ignore[import-untyped]
    except ImportError as error:
        raise Unreachable("downloads need pooch: install lifted-bregman with the extra 'data'") from error
    import requests

    with explained(target.parent), target.open("wb") as file:
        sink = _Sink(file, limit, timeouts.total, url, progress)
        get = HTTPDownloader(sink, chunk_size=4096, timeout=(timeouts.connect, timeouts.read))
        try:
            get(url, sink, None)
        except (requests.ConnectionError, requests.Timeout) as error:
            raise Unreachable(_short(error)) from error
        except (requests.RequestException, ValueError) as error:  # ValueError: a header that makes no sense
            raise Failed(_short(error)) from error


class _Sink:
    """The file that pooch writes to, and its progress bar; refuses more than `limit` bytes or `seconds` seconds."""

    def __init__(self, file: BinaryIO, limit: int, seconds: float, url: str, progress: Progress | None) -> None:
        self._file = file
        self._limit = limit
        self._end = time.monotonic() + seconds
        self._url = url
        self._progress = progress
        self._written = 0
        self.total = 0
        """Announced length in bytes, set by pooch; 0 if none is announced."""

    def write(self, chunk: bytes) -> None:
        self._written += len(chunk)
        if self._written > self._limit:
            raise Failed(f"it sent more than the {self._limit:,} bytes that were expected")
        if time.monotonic() > self._end:
            raise Unreachable("it was too slow")
        self._file.write(chunk)
        if self._progress is not None:
            self._progress(f"downloading {self._url}", self._written, self.total or None)

    def _nothing(self, size: int = 0) -> None:
        """Ignore a call of pooch: `write` has counted the bytes, and `download` closes the file."""

    flush = update = reset = close = _nothing


def _reason(error: DataError, path: Path) -> str:
    return re.sub(r"[:;] (delete|replace) .*", "", str(error).replace(str(path), "what it sent"))


def _short(error: Exception) -> str:
    """Return the part of a chain of exceptions that names the cause."""
    text = str(error)
    for pattern in (r"\] ([A-Z][\w ,'-]+)", r"(\d{3} (?:Client|Server) Error: .*?) for url", r"(Read timed out)"):
        if found := re.search(pattern, text):
            return found[1]
    return f"{type(error).__name__}: {text[:200]}"
