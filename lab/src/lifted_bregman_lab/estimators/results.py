"""The results of `lifted bench estimators`: score and time of every fold, stored as one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.files import write_whole

KIND = "lifted estimators, format 1"


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


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the file atomically, a line for each fold."""
    entries = asdict(comparison)
    lines = ",\n".join(f"  {json.dumps(fold)}" for fold in entries.pop("folds"))
    head = json.dumps({"kind": KIND, **entries}, indent=1).removesuffix("\n}")
    write_whole(path, f'{head},\n "folds": [\n{lines}\n ]\n}}\n'.encode())


def read_comparison(path: Path) -> Comparison:
    """Read the file that `write_comparison` wrote."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if entries.pop("kind") != KIND:
            raise ValueError("another kind of file")
        folds = [Fold(**entry) for entry in entries.pop("folds")]
        return Comparison(**entries, folds=folds)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): name a file of 'lifted bench estimators'."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is not what 'lifted bench estimators' writes ({error}): name such a file."
        ) from error
