"""The results of `lifted bench optimiser-or-architecture`: its runs and the trials of rates, stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.files import write_whole

KIND = "lifted optimiser or architecture, format 1"
_COMMAND = "lifted bench optimiser-or-architecture"


@dataclass(frozen=True)
class Crossing:
    """The first step at which a run's training loss falls to a level.

    level  of the training loss, cross-entropy in nats
    steps  taken until then, interpolated
    error  fraction of the new samples that are misclassified there, interpolated
    """

    level: float
    steps: float
    error: float


@dataclass(frozen=True)
class Trial:
    """A run with one rate of a grid: data set, network, optimiser, rate; and the steps to the lowest level.

    Steps are None if it was not reached; `loss` is the training loss at the end.
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
        """What identifies the run."""
        return self.data, self.architecture, self.optimiser, self.seed

    def error(self, level: float) -> float | None:
        """Return the error at a level; None if it was not reached."""
        return next((crossing.error for crossing in self.crossings if crossing.level == level), None)


@dataclass(frozen=True)
class Study:
    """All runs, with versions and processor, and the settings of each optimiser by name."""

    environment: Mapping[str, str]
    optimisers: Mapping[str, str]
    trials: Sequence[Trial] = ()
    runs: Sequence[StudyRun] = ()


def write_study(path: Path, study: Study) -> None:
    """Write the file atomically, a line for each run."""
    entries = asdict(study)
    parts = []
    for name in ("trials", "runs"):
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries.pop(name))
        parts.append(f' "{name}": [\n{lines}\n ]')
    head = json.dumps({"kind": KIND, **entries}, indent=1).removesuffix("\n}")
    write_whole(path, ",\n".join([head, *parts, ""]).removesuffix(",\n").encode() + b"\n}\n")


def read_study(path: Path) -> Study:
    """Read the file that `write_study` wrote."""
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
