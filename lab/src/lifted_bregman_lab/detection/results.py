"""The results of `lifted bench detection`: AUROC and time of every detector, stored as one JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lifted_bregman_lab.stored import StoredFile


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


FILE = StoredFile(Detections, "lifted detection, format 1", "lifted bench detection", lines=("rows",))
"""How the results are stored."""
write_detections, read_detections = FILE.write, FILE.read
