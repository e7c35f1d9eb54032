"""The results of `lifted bench estimators`: score and time of every fold, stored as one JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lifted_bregman_lab.stored import StoredFile


@dataclass(frozen=True)
class Fold:
    """One fit.

    table       name of the table
    competitor  name of the competitor
    repetition  of the cross-validation, each with its own folds
    fold        0 to 4; also the seed of the competitor
    score       on the held-out fifth: accuracy, or R² averaged over outputs
    seconds     of processor time in `fit`
    """

    table: str
    competitor: str
    repetition: int
    fold: int
    score: float
    seconds: float

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What identifies the fit."""
        return self.table, self.competitor, self.repetition, self.fold


@dataclass(frozen=True)
class Comparison:
    """All fitted folds, with versions and processor of the run, and the default solver."""

    environment: Mapping[str, str]
    solver: str
    folds: Sequence[Fold] = ()


FILE = StoredFile(Comparison, "lifted estimators, format 1", "lifted bench estimators", lines=("folds",))
"""How the results are stored."""
write_comparison, read_comparison = FILE.write, FILE.read
