"""The results of `lifted bench scale`: the times of all turns, stored as one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.files import write_whole
from lifted_bregman_lab.scale.cases import Case, Use

KIND = "lifted scale, format 1"


@dataclass(frozen=True)
class Measured:
    """A case, with the seconds of a step for each turn and round, and what each process sent in a step."""

    case: Case
    times: Mapping[str, Sequence[float]]
    sent: Sequence[int]
    messages: Sequence[int]


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
    links: Mapping[str, Sequence[tuple[int, float]]] | None = None
    arrivals: Sequence[Arrival] = ()

    def of(self, case: Case) -> Measured | None:
        """Return the measurement of a case, None if there is none."""
        return next((measured for measured in self.measured if measured.case == case), None)


def write_scale(path: Path, scale: ScaleStudy) -> None:
    """Write the file atomically."""
    entries = {"kind": KIND, **asdict(scale)}
    for entry in entries["measured"]:
        entry["case"]["use"] = entry["case"]["use"].name
    write_whole(path, (json.dumps(entries, indent=1) + "\n").encode())


def read_scale(path: Path) -> ScaleStudy:
    """Read the file that `write_scale` wrote."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if entries.pop("kind") != KIND:
            raise ValueError("another kind of file")
        measured = [_measured(entry) for entry in entries.pop("measured")]
        arrivals = [Arrival(a["name"], [tuple(row) for row in a["rows"]]) for a in entries.pop("arrivals")]
        links = entries.pop("links")
        links = links and {name: [(int(size), float(time)) for size, time in found] for name, found in links.items()}
        return ScaleStudy(**entries, measured=measured, links=links, arrivals=arrivals)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): name a file of 'lifted bench scale'."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not what 'lifted bench scale' writes ({error}): name such a file.") from error


def _measured(entry: dict[str, Any]) -> Measured:
    case = entry.pop("case")
    return Measured(Case(**{**case, "use": Use[case["use"]]}), **entry)
