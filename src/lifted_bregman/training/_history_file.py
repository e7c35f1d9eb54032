"""history.jsonl of a run's folder: one row a line, on disk as soon as it is there."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from lifted_bregman.errors import CheckpointError
from lifted_bregman.training._atomic import make_folder, replace_file
from lifted_bregman.training.checkpoints import remedy

_IN_EVERY_ROW = ("epoch", "step", "seconds")


class HistoryFile:
    """The file with its rows in memory: rows are appended and fsynced; a continuation cuts off those after its
    checkpoint.  A file that is deleted or cut short while the run goes on is written again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._lines: list[bytes] = []
        self._bytes = 0
        self._hash = hashlib.sha256()

    def append(self, row: Mapping[str, float]) -> None:
        """Writes a row, and before it those that are no longer in the file."""
        self.repair()
        line = json.dumps(row).encode() + b"\n"
        with written(self.path):
            if self._file is None:
                self._file = self.path.open("r+b" if self._lines else "wb", buffering=0)
            self._file.seek(self._bytes)
            self._file.truncate()
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        self._lines.append(line)
        self._bytes += len(line)
        self._hash.update(line)

    def repair(self) -> None:
        """Writes the rows again if the file was deleted, replaced or cut short since they were written."""
        if not self._lines:
            return
        with written(self.path):
            if self._is_whole():
                return
            warnings.warn(
                f"{self.path} was deleted or cut short while the run was going on: its {len(self._lines)} rows are "
                "written again.",
                RuntimeWarning,
                stacklevel=4,
            )
            self.close()
            make_folder(self.path.parent)
            replace_file(self.path, b"".join(self._lines))

    def _is_whole(self) -> bool:
        """Whether the path leads to the file that is written to, with at least as many bytes as were written."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return False
        opened = found if self._file is None else os.fstat(self._file.fileno())
        return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino) and found.st_size >= self._bytes

    def position(self) -> dict[str, Any]:
        """What a checkpoint keeps of the history: rows, bytes and sha256."""
        return {"rows": len(self._lines), "bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def go_back(self, position: Mapping[str, Any], step: int) -> tuple[list[dict[str, float]], int]:
        """The rows up to `position`, which new ones will follow, and how many of them are lost.

        The rest of the file is cut off with the next row.  Rows are lost where the file is missing or ends early.

        position  what `position` gave when a checkpoint was saved
        step      the step of that checkpoint
        """
        self.close()
        lines = self._lines[: position["rows"]]
        if hashlib.sha256(b"".join(lines)).hexdigest() != position["sha256"]:  # not those of this process
            lines = self._read(position, step)
        self._lines, self._hash = lines, hashlib.sha256(b"".join(lines))
        self._bytes = sum(map(len, lines))
        return self._parsed(lines), position["rows"] - len(lines)

    def _read(self, position: Mapping[str, Any], step: int) -> list[bytes]:
        """The lines of the file up to `position`; fewer if it ends before."""
        try:
            content = self.path.read_bytes()[: position["bytes"]]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                f"{self.path}, the history of the run, cannot be read ({error.strerror}): restore the file, or start a "
                "new run in another folder."
            ) from error
        lines = [line + b"\n" for line in content.split(b"\n")[:-1]]  # what follows the last line end is unfinished
        if hashlib.sha256(content).hexdigest() == position["sha256"]:
            return lines
        ends_early = len(content) < position["bytes"] and len(lines) < position["rows"]
        steps = [row["step"] for row in self._parsed(lines)] if ends_early else []
        if not ends_early or not all(one < other for one, other in pairwise([*steps, step + 1])):
            raise CheckpointError(
                f"{self.path} is not the history that the checkpoint was saved with: restore the file, or start a new "
                "run in another folder."
            )
        return lines

    def _parsed(self, lines: list[bytes]) -> list[dict[str, float]]:
        return [_row(line, f"line {number} of {self.path}") for number, line in enumerate(lines, start=1)]

    def rows(self) -> list[dict[str, float]]:
        """The rows on disk; a line that a dying process left unfinished is passed over."""
        if not self.path.exists():
            return []
        return self._parsed(self.path.read_bytes().split(b"\n")[:-1])

    def close(self) -> None:
        """Closes the file; the next row opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # its rows are on the disk
                file.close()


@contextmanager
def written(path: Path) -> Iterator[None]:
    """A file that cannot be changed is a `CheckpointError` with what to do."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} was not written ({error.strerror}). {remedy(error)}") from error


def _row(line: bytes, where: str) -> dict[str, float]:
    """The row that a line of a history holds: numbers by name, each of which a float can hold."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
    if not isinstance(row, dict) or not all(isinstance(value, int | float) and _fits(value) for value in row.values()):
        raise CheckpointError(f"{where} is no row of a history, which holds numbers by name: restore the file.")
    if not all(math.isfinite(row.get(name, math.nan)) for name in _IN_EVERY_ROW):
        raise CheckpointError(
            f"{where} is no row of a history, for one of {', '.join(_IN_EVERY_ROW)} is missing or not finite: restore "
            "the file."
        )
    return row


def _fits(value: float) -> bool:
    """Whether a float can hold the number, be it infinite or NaN; a whole number may have any number of digits."""
    try:
        float(value)
    except OverflowError:
        return False
    return True
