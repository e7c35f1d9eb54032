"""What `lifted bench optimiser-or-architecture` leaves: every run, and the runs by which rates were chosen, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments._write import write_whole

KIND = "lifted optimiser or architecture, format 1"
_COMMAND = "lifted bench optimiser-or-architecture"


@dataclass(frozen=True)
class Crossing:
    """Where the training loss of a run falls to a level for the first time.

    level  of the training loss, cross-entropy in nats
    steps  taken until then, interpolated
    error  fraction of the new samples that get a wrong class there, interpolated
    """

    level: float
    steps: float
    error: float


@dataclass(frozen=True)
class Trial:
    """A run by which a rate was chosen: data set, network, optimiser, rate; and the steps to the lowest level.

    Steps are None where it was not reached; `loss` is the training loss at the end.
    """

    data: str
    architecture: str
    optimiser: str
    rate: float
    steps: float | None
    loss: float


@dataclass(frozen=True)
class StudyRun:
    """A run of the study: data set, network, optimiser and seed; its rate; and the levels that it reached."""

    data: str
    architecture: str
    optimiser: str
    seed: int
    rate: float | None
    crossings: tuple[Crossing, ...]

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Which run it is."""
        return self.data, self.architecture, self.optimiser, self.seed

    def error(self, level: float) -> float | None:
        """At a level; None where it was not reached."""
        return next((crossing.error for crossing in self.crossings if crossing.level == level), None)


@dataclass(frozen=True)
class Study:
    """All runs, where they were made, and the optimisers with their settings, by name."""

    environment: Mapping[str, str]
    optimisers: Mapping[str, str]
    trials: Sequence[Trial] = ()
    runs: Sequence[StudyRun] = ()


def write_study(path: Path, study: Study) -> None:
    """Write the file, whole or not at all; a line for each run."""
    entries = asdict(study)
    parts = []
    for name in ("trials", "runs"):
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries.pop(name))
        parts.append(f' "{name}": [\n{lines}\n ]')
    head = json.dumps({"kind": KIND, **entries}, indent=1).removesuffix("\n}")
    write_whole(path, ",\n".join([head, *parts, ""]).removesuffix(",\n").encode() + b"\n}\n")


def read_study(path: Path) -> Study:
    """What `write_study` wrote."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if entries.pop("kind") != KIND:
            raise ValueError("another kind of file")
        trials = tuple(Trial(**entry) for entry in entries.pop("trials"))
        runs = tuple(
            StudyRun(**{**entry, "crossings": tuple(Crossing(**one) for one in entry["crossings"])})
            for entry in entries.pop("runs")
        )
        return Study(**entries, trials=trials, runs=runs)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): name a file of '{_COMMAND}'.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not what '{_COMMAND}' writes ({error}): name such a file.") from error
