"""Downloads by pooch, bounded in size and time.  The caller checks the sha256 before it uses a file."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lifted_bregman.data._archives import Failed, Unreachable
from lifted_bregman.data.files import explained
from lifted_bregman.errors import SettingError

DownloadProgress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Timeouts:
    """How long to wait for a mirror, in seconds.

    Args:
        connect: for a connection.
        read: for the next bytes.
        total: for a whole file.

    Example:
        >>> lb.data.Timeouts(total=60.0)
        Timeouts(connect=5.0, read=20.0, total=60.0)
    """

    connect: float = 5.0
    read: float = 20.0
    total: float = 3600.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise SettingError(f"the timeout '{name}' is {value!r}; it must be above 0 seconds.")


def download(url: str, limit: int, folder: Path, timeouts: Timeouts, progress: DownloadProgress | None) -> Path:
    """Download at most `limit` bytes from `url` into a file in `folder`, and return its path."""
    try:
        from pooch import HTTPDownloader  # type: ignore[import-untyped]
    except ImportError as error:
        raise Unreachable("downloads need pooch: install lifted-bregman with the extra 'data'") from error
    import requests

    path = folder / "download"
    with explained(folder), path.open("wb") as file:
        sink = _Sink(file, limit, timeouts.total, url, progress)
        get = HTTPDownloader(sink, chunk_size=4096, timeout=(timeouts.connect, timeouts.read))
        try:
            get(url, sink, None)
        except (requests.ConnectionError, requests.Timeout) as error:
            raise Unreachable(_short(error)) from error
        except (requests.RequestException, ValueError) as error:  # ValueError: a header that makes no sense
            raise Failed(_short(error)) from error
    return path


class _Sink:
    """The file that pooch writes to, and its progress bar; refuses more than `limit` bytes or `seconds` seconds."""

    def __init__(self, file: BinaryIO, limit: int, seconds: float, url: str, progress: DownloadProgress | None) -> None:
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


def _short(error: Exception) -> str:
    """Return the part of a chain of exceptions that names the cause."""
    text = str(error)
    for pattern in (r"\] ([A-Z][\w ,'-]+)", r"(\d{3} (?:Client|Server) Error: .*?) for url", r"(Read timed out)"):
        if found := re.search(pattern, text):
            return found[1]
    return f"{type(error).__name__}: {text[:200]}"
