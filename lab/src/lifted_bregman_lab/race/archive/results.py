"""A race of the first format: its repetitions, and the table of all evaluations, from the JSON file that keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd

from lifted_bregman.errors import CheckpointError
from lifted_bregman_lab.decoding import decode

KIND = "lifted race, format 1"
NUMBERS = ("step", "epoch", "seconds", "objective", "validation_error")
"""The numbers that every row has."""


class RunRecord(TypedDict):
    """The run of one entry in a repetition, as the file stores it."""

    entry: str
    rows: list[dict[str, float]]
    outcome: str
    message: str


class Repetition(TypedDict):
    """One repetition on one problem, as the file stores it.

    whole   whether all its runs ended
    load    load average of the machine at its end; None where it is unknown
    traces  one run for each entry, in their order
    """

    problem: str
    seed: int
    whole: bool
    load: float | None
    traces: list[RunRecord]


@dataclass(frozen=True)
class Entry:
    """A competitor with the setting it runs with on one problem.

    Args:
        name: different for every entry of a problem.
        competitor: name of the competitor.
        title: for readers.
        kind: "lifted" or "back-propagation".
        chosen_by: "objective", "validation", both, or none where nothing is tuned.
        solver: repr of the solver with all its settings.
        batch_size: samples of a step.
        tuned: name of the setting that was chosen from a grid; empty where nothing is tuned.
        value: of that setting; None where nothing is tuned.
        grid: values of that setting to choose from.
        batch_sizes: batch sizes to choose from.
    """

    name: str
    competitor: str
    title: str
    kind: str
    chosen_by: tuple[str, ...]
    solver: str
    batch_size: int
    tuned: str
    value: float | None
    grid: tuple[float, ...]
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True)
class ProblemRecord:
    """A problem as a race keeps it, with the entries that ran on it.

    Args:
        name: for the command line.
        title: for readers.
        classify: whether the validation error is the fraction of wrong classes; else it is a mean squared error.
        epochs: passes over the data, unless the budget ends a run before.
        batch_size: samples of a step, unless an entry has its own.
        samples: number of training samples.
        validation_samples: number of validation samples.
        source: where the samples came from.
        settings: of data and network, by name.
        reference: name of the competitor that sets the targets.
        entries: in the order of their runs.
        rows: evaluations in the time that the reference takes; 0 in files without it.
    """

    name: str
    title: str
    classify: bool
    epochs: int
    batch_size: int
    samples: int
    validation_samples: int
    source: str
    settings: Mapping[str, Any]
    reference: str
    entries: tuple[Entry, ...]
    rows: int = 0


@dataclass(frozen=True)
class Race:
    """Everything that was measured.

    Args:
        problems: in the order in which they were run.
        repetitions: in the order of problems and seeds.
        environment: versions, threads, hardware.
        load_before: load average of the machine before the race; None where it is unknown.
        budget: the longest time of a run, as a multiple of the reference's.
        interrupted: whether repetitions are missing or cut.
        provenance: how the rates were found.
    """

    problems: tuple[ProblemRecord, ...]
    repetitions: tuple[Repetition, ...]
    environment: Mapping[str, str]
    load_before: float | None
    budget: float
    interrupted: bool
    provenance: Mapping[str, Any]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row for each evaluation, in the order of repetitions, entries and steps.

        "problem", "seed", "whole", "load", "entry", "outcome" and "message" are those of repetition and run.  Numbers
        are "step", "epoch", "seconds" (in steps), "objective" (training), "validation_error", "sparsity" (of the middle
        layer) and, for classes, "accuracy", "validation" and "validation_accuracy".  The first row of a run is from
        before training.
        """
        names = ["problem", "seed", "whole", "load", "entry", "outcome", "message"]
        lines = [
            {name: {**repetition, **run}[name] for name in names} | row
            for repetition in self.repetitions
            for run in repetition["traces"]
            for row in run["rows"]
        ]
        rows = pd.DataFrame(lines, columns=None if lines else [*names, *NUMBERS])
        return rows if "sparsity" in rows else rows.assign(sparsity=math.nan)

    def rows_of(self, problem: str) -> pd.DataFrame:
        """The rows of a problem in whole repetitions; in those that were cut where none is whole."""
        own = self.rows[self.rows["problem"] == problem]
        return own[own["whole"]] if own["whole"].any() else own

    def count(self, problem: str) -> int:
        """The number of repetitions in `rows_of`."""
        return int(self.rows_of(problem)["seed"].nunique())


def read_race(path: Path) -> Race:
    """The race in a file; CheckpointError if it holds none."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if entries.pop("kind") != KIND:
            raise ValueError("it is of another kind or version")
        race: Race = decode(entries | {"repetitions": entries.pop("heats")}, Race)
        _require_consistent(race)
        return race
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} holds no race ({error}): give rows of `lifted bench race`, or a race of the first format."
        ) from error


def _require_consistent(race: Race) -> None:
    """ValueError unless problems, entries and repetitions belong together."""
    for problem in race.problems:
        if problem.reference not in [entry.competitor for entry in problem.entries]:
            raise ValueError(f"the reference of '{problem.name}' is '{problem.reference}', which has no entry")
        if problem.name not in [repetition["problem"] for repetition in race.repetitions]:
            raise ValueError(f"'{problem.name}' has no repetition")
    known = {problem.name: [entry.name for entry in problem.entries] for problem in race.problems}
    for repetition in race.repetitions:
        name, runs = repetition["problem"], repetition["traces"]
        if [run["entry"] for run in runs] != known[name]:
            raise ValueError(f"a repetition of '{name}' has other entries than the problem")
        if not all(run["rows"] for run in runs):
            raise ValueError(f"a run of '{name}' has no rows")
        missing = [number for run in runs for row in run["rows"] for number in NUMBERS if number not in row]
        if missing:
            raise ValueError(f"a row of '{name}' has no '{missing[0]}'")
