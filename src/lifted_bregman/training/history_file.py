"""history.jsonl of a run's folder: one row a line, fsynced when it is added."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from lifted_bregman.errors import CheckpointError
from lifted_bregman.training.files import make_folder, reading, replace_file, writing

_IN_EVERY_ROW = ("epoch", "step", "seconds")


class HistoryFile:
    """The rows of a run, in memory and in a file.

    Rows are appended and fsynced.  A resumed run cuts off those after its checkpoint.  Rows that are deleted from the
    file during the run are written again.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[bytes] = []

    def append(self, row: Mapping[str, float]) -> None:
        """Appends a row; rows that were deleted from the file are written again before it."""
        self.repair()
        line = json.dumps(row).encode() + b"\n"
        with writing(f"{self.path} was not written"):
            with self.path.open("r+b" if self._lines else "wb") as file:
                file.seek(sum(map(len, self._lines)))
                file.truncate()
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        self._lines.append(line)

    def repair(self) -> None:
        """Writes the rows again if the file no longer begins with them."""
        content = b"".join(self._lines)
        with writing(f"{self.path} was not written"):
            if self._content().startswith(content):
                return
            warnings.warn(
                f"{self.path} was deleted, cut short or changed during the run: its {len(self._lines)} rows are "
                "written again.",
                RuntimeWarning,
                stacklevel=4,
            )
            make_folder(self.path.parent)
            replace_file(self.path, content)

    def position(self) -> dict[str, Any]:
        """The entries by which a checkpoint identifies the history: number of rows, bytes and sha256."""
        content = b"".join(self._lines)
        return {"rows": len(self._lines), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def rewind(self, position: Mapping[str, Any], step: int) -> tuple[list[dict[str, float]], int]:
        """Goes back to the rows that a checkpoint was saved with; the next `append` cuts off the rest of the file.

        Returns the rows, and how many are lost because the file is missing or ends early.

        Args:
            position: what `position` returned when the checkpoint was saved.
            step: the step of that checkpoint.
        """
        lines = self._lines[: position["rows"]]
        if _sha256(lines) != position["sha256"]:  # this process did not write them
            lines = self._read(position, step)
        self._lines = lines
        return self._parse(lines), position["rows"] - len(lines)

    def _read(self, position: Mapping[str, Any], step: int) -> list[bytes]:
        """The lines of the file up to `position`; fewer if it ends before."""
        content = self._content()[: position["bytes"]]
        lines = [line + b"\n" for line in content.split(b"\n")[:-1]]  # what follows the last line end is unfinished
        if _sha256([content]) == position["sha256"]:
            return lines
        # Rows were lost from the end if those that are left have increasing steps, up to the checkpoint's.
        ends_early = len(content) < position["bytes"] and len(lines) < position["rows"]
        steps = [row["step"] for row in self._parse(lines)] if ends_early else []
        if not ends_early or not all(one < other for one, other in pairwise([*steps, step + 1])):
            raise CheckpointError(
                f"{self.path} is not the history that the checkpoint was saved with: restore the file, or start a new "
                "run in another folder."
            )
        return lines

    def rows(self) -> list[dict[str, float]]:
        """The rows on disk; a line that a dying process left unfinished is passed over."""
        return self._parse(self._content().split(b"\n")[:-1])

    def _content(self) -> bytes:
        with reading(self.path):
            return self.path.read_bytes() if self.path.exists() else b""

    def _parse(self, lines: list[bytes]) -> list[dict[str, float]]:
        return [_parse_row(line, f"line {number} of {self.path}") for number, line in enumerate(lines, start=1)]


def _sha256(lines: list[bytes]) -> str:
    return hashlib.sha256(b"".join(lines)).hexdigest()


def _parse_row(line: bytes, where: str) -> dict[str, float]:
    """The row of a line: numbers by name, each in the range of a float; those of every row are finite."""
    try:
        row: dict[str, float] = json.loads(line)
        sound = isinstance(row, dict) and all(isinstance(value, int | float) for value in row.values())
        for value in row.values() if sound else ():
            float(value)  # OverflowError for a whole number that is too large
    except (ValueError, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{where} is damaged ({error}): restore the file.") from error
    if not sound or not all(math.isfinite(row.get(name, math.nan)) for name in _IN_EVERY_ROW):
        raise CheckpointError(
            f"{where} is no row of a history, which holds numbers by name, among them {', '.join(_IN_EVERY_ROW)}: "
            "restore the file."
        )
    return row
