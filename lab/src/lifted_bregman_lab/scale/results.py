"""The results of `lifted bench scale`: the times of all turns, stored as one JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lifted_bregman_lab.scale.cases import Case
from lifted_bregman_lab.stored import StoredFile


@dataclass(frozen=True)
class Measured:
    """A case, with the seconds of a step for each turn and round, and what each process sent in a step."""

    case: Case
    times: Mapping[str, Sequence[float]]
    sent: Sequence[float]
    messages: Sequence[float]


@dataclass(frozen=True)
class Arrival:
    """A run of a competitor to the target objective: rows of (epoch, seconds in steps, objective)."""

    name: str
    rows: Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class ScaleStudy:
    """All measurements.

    links     (bytes, seconds) of messages of each kind
    arrivals  one for each competitor and repetition
    """

    environment: Mapping[str, str]
    load_before: float
    rounds: int
    measured: Sequence[Measured] = ()
    links: Mapping[str, Sequence[tuple[float, float]]] | None = None
    arrivals: Sequence[Arrival] = ()

    def of(self, case: Case) -> Measured | None:
        """Return the measurement of a case, None if there is none."""
        return next((measured for measured in self.measured if measured.case == case), None)


FILE = StoredFile(ScaleStudy, "lifted scale, format 1", "lifted bench scale")
"""How the results are stored."""
write_scale, read_scale = FILE.write, FILE.read
