"""The results of `lifted bench optimiser-or-architecture`: its runs and the trials of rates, stored as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lifted_bregman_lab.stored import StoredFile


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
    trials: tuple[Trial, ...] = ()
    runs: tuple[StudyRun, ...] = ()


FILE = StoredFile(
    Study,
    "lifted optimiser or architecture, format 1",
    "lifted bench optimiser-or-architecture",
    lines=("trials", "runs"),
)
"""How the results are stored."""
write_study, read_study = FILE.write, FILE.read
