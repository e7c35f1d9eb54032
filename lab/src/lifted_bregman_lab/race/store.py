"""The rows of races and tunings: one JSON line for each run, appended when it ends."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.files import write_whole

KIND = "lifted race row, format 2"
Row = dict[str, Any]
"""A run.

kind                          `KIND`
hash                          of `IDENTITY`: rows with the same hash are the same run
part                          "race" or "tune"
problem, title, group         of the problem; "task" is the name of its error
opponent, settings            of the opponent: its title, and for ours the solver
budget, epochs, batch_size    of the run, with "samples" and "new_samples"
rate, seed                    rate is null where nothing is tuned
steps, seconds, loss, error   at the end; null where it diverged
unit                          error times this is in the units of the data set
reference_seconds             of AdamW, for as many steps in turns with this run; null in a tuning
trace                         lists of steps, seconds, training loss and error on new samples
outcome                       name of an `Outcome`
source, versions, commit      of the samples; of Python, torch and others; of this library
"""
Part = Literal["race", "tune"]
IDENTITY = ("part", "problem", "opponent", "settings", "budget", "epochs", "batch_size", "samples", "rate", "seed")
_NEEDED = {"kind", "hash", *IDENTITY, "loss", "error", "seconds", "unit", "reference_seconds", "trace", "outcome"}


def identify(row: Row) -> str:
    """The hash of what a run is: everything that decides its numbers, and nothing else."""
    return hashlib.sha256(json.dumps([row[name] for name in IDENTITY]).encode()).hexdigest()[:16]


@dataclass
class Store:
    """The rows in a file; of runs that are the same the last one counts.

    Args:
        path: created with the first row.
        rows: by hash.
    """

    path: Path
    rows: dict[str, Row]

    @staticmethod
    def open(path: Path) -> Store:
        """The rows of a file, none if it is missing.  A last line that a killed process left unfinished is removed."""
        if not path.exists():
            return Store(path, {})
        try:
            *lines, cut = path.read_text(encoding="utf-8").split("\n")
            rows = [json.loads(line) for line in lines]
            for row in rows:
                if row["kind"] != KIND or not _NEEDED <= row.keys() or identify(row) != row["hash"]:
                    raise ValueError("a line is of another kind, or was changed")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} holds no rows of a race ({error}): give what `lifted bench race --rows FILE` wrote."
            ) from error
        if cut:
            write_whole(path, "".join(f"{line}\n" for line in lines).encode())
        store = Store(path, {})
        for row in rows:
            store._keep(row)
        return store

    def append(self, row: Row) -> None:
        """Add a row, with its kind and hash, to the file."""
        row = {"kind": KIND, "hash": identify(row)} | row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        self._keep(row)

    def _keep(self, row: Row) -> None:
        self.rows.pop(row["hash"], None)  # so that rows are in the order in which they were run last
        self.rows[row["hash"]] = row

    def select(self, **values: Any) -> list[Row]:
        """The rows that have these values."""
        return [row for row in self.rows.values() if all(row[name] == value for name, value in values.items())]


def final(row: Row, criterion: str) -> float:
    """The last loss or error of a run; ∞ where it diverged."""
    return math.inf if row[criterion] is None else float(row[criterion])
