"""The results of `lifted bench detection`: AUROC and time of every detector, stored as one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.files import write_whole

KIND = "lifted detection, format 1"


@dataclass(frozen=True)
class Detection:
    """One detector on one problem.

    study     "pictures", "tables" or "classifier"
    data      the class that is usual, the table, or the pair of sets
    detector  name of the detector, or of the score
    seed      of the detector and of the division into training and test samples
    auroc     area under the ROC curve on the test samples, 0 to 1
    seconds   of processor time to fit and to score
    """

    study: str
    data: str
    detector: str
    seed: int
    auroc: float
    seconds: float


@dataclass(frozen=True)
class Detections:
    """All rows, with versions and processor of the run, and the solver."""

    environment: Mapping[str, str]
    solver: str
    rows: Sequence[Detection] = ()

    def of(self, study: str, detector: str, data: str | None = None) -> list[float]:
        """The AUROC of a detector in a study, on one problem or on all."""
        return [
            row.auroc
            for row in self.rows
            if (row.study, row.detector) == (study, detector) and data in (None, row.data)
        ]


def write_detections(path: Path, found: Detections) -> None:
    """Write the file atomically, a line for each row."""
    entries = asdict(found)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in entries.pop("rows"))
    head = json.dumps({"kind": KIND, **entries}, indent=1).removesuffix("\n}")
    write_whole(path, f'{head},\n "rows": [\n{lines}\n ]\n}}\n'.encode())


def read_detections(path: Path) -> Detections:
    """Read the file that `write_detections` wrote."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if entries.pop("kind") != KIND:
            raise ValueError("another kind of file")
        rows = [Detection(**entry) for entry in entries.pop("rows")]
        return Detections(**entries, rows=rows)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): name a file of 'lifted bench detection'."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is not what 'lifted bench detection' writes ({error}): name such a file."
        ) from error
