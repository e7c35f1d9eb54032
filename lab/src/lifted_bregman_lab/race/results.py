"""The results of a race: its repetitions, the table of all evaluations, and the JSON file that keeps them."""

from __future__ import annotations

import json
import math
import sys
from collections import abc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pandas as pd

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments._write import write_whole

KIND = "lifted race, format 1"
NUMBERS = ("step", "epoch", "seconds", "objective", "validation_error")
"""What every evaluation has."""
_REPETITION: dict[str, Any] = {"problem": str, "seed": int, "whole": bool, "load": float | None}
_RUN: dict[str, Any] = {"entry": str, "outcome": str, "message": str}
"""The types of what a repetition and a run have beside their runs and rows."""


@dataclass(frozen=True)
class Entry:
    """A competitor with the setting it runs with on one problem.

    Args:
        name: unlike that of any other entry on the problem.
        competitor: its name.
        title: as people read it.
        kind: "lifted" or "back-propagation".
        chosen_by: "objective", "validation", both, or none where nothing is tuned.
        solver: the solver with all its settings, as text.
        batch_size: samples of a step.
        tuned: the setting that was chosen from a grid; empty where nothing is tuned.
        value: of that setting; None where nothing is tuned.
        grid: the values that were tried.
        batch_sizes: the batch sizes that were tried.
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
        name: as it is chosen on the command line.
        title: as people read it.
        classify: whether the validation error is that of classes.
        epochs: passes over the data, unless the time is over before.
        batch_size: samples of a step, unless an entry says otherwise.
        samples: to train on.
        validation_samples: to be judged by.
        source: where the samples came from.
        settings: data and network, by name.
        reference: the competitor whose results are the targets.
        entries: in the order of their runs.
        rows: evaluations in the time that the reference takes; 0 where a file does not say.
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
        repetitions: as the file has them.  Each is a mapping with "problem", "seed", "whole" (whether all its runs came
            to their end), "load" (of the machine at its end, None where it is not known) and "traces": the runs of the
            entries in their order, mappings with "entry", "outcome", "message" and "rows", the evaluations.
        environment: versions, threads, hardware.
        load_before: processes that wanted to run in the minute before, on average; None where it is not known.
        budget: the most time of a run, as a multiple of the reference's.
        interrupted: whether repetitions are missing or cut.
        provenance: how the rates were found.
    """

    problems: tuple[ProblemRecord, ...]
    repetitions: tuple[Mapping[str, Any], ...]
    environment: Mapping[str, str]
    load_before: float | None
    budget: float
    interrupted: bool
    provenance: Mapping[str, Any]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One line for each evaluation, in the order of repetitions, entries and steps.

        "problem", "seed", "whole", "load", "entry", "outcome" and "message" are those of `repetitions`.  Numbers are
        "step", "epoch", "seconds" (in steps), "objective" (training), "validation_error", "sparsity" (of the middle
        layer) and, for classes, "accuracy", "validation" and "validation_accuracy".  The first line of a run is from
        before training.
        """
        lines = [
            {name: repetition[name] for name in _REPETITION} | {name: run[name] for name in _RUN} | dict(row)
            for repetition in self.repetitions
            for run in repetition["traces"]
            for row in run["rows"]
        ]
        rows = pd.DataFrame(lines, columns=None if lines else [*_REPETITION, *_RUN, *NUMBERS])
        return rows if "sparsity" in rows else rows.assign(sparsity=math.nan)

    def rows_of(self, problem: str) -> pd.DataFrame:
        """The rows of a problem in whole repetitions; in those that were cut where none is whole."""
        own = self.rows[self.rows["problem"] == problem]
        return own[own["whole"]] if own["whole"].any() else own

    def count(self, problem: str) -> int:
        """The number of repetitions in `rows_of`."""
        return int(self.rows_of(problem)["seed"].nunique())

    @property
    def whole(self) -> tuple[Mapping[str, Any], ...]:
        """The repetitions whose runs all came to their end."""
        return tuple(repetition for repetition in self.repetitions if repetition["whole"])


def write_race(path: Path, race: Race) -> None:
    """Write the file, whole or not at all; numbers that JSON does not know become null."""
    kept = {field.name: getattr(race, field.name) for field in fields(race)}
    problems, repetitions = [asdict(problem) for problem in kept.pop("problems")], kept.pop("repetitions")
    entries = finite({"kind": KIND, "problems": problems, "heats": repetitions, **kept})
    write_whole(path, (json.dumps(entries, indent=1, allow_nan=False) + "\n").encode())


def read_race(path: Path) -> Race:
    """The race in a file; CheckpointError if it holds none."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if entries.pop("kind") != KIND:
            raise ValueError("it is of another kind or version")
        problems = tuple(map(_problem, entries.pop("problems")))
        race = Race(problems, tuple(entries.pop("heats")), **entries)
        _require_consistent(race)
        return race
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} holds no race ({error}): give what `lifted bench race --json FILE` wrote."
        ) from error


def finite(value: Any) -> Any:
    """The same value as JSON has it: mappings, lists, and null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _problem(record: dict[str, Any]) -> ProblemRecord:
    tuples: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
        for entry in record["entries"]
    ]
    return ProblemRecord(**(record | {"entries": tuple(Entry(**entry) for entry in tuples)}))


def _require_consistent(race: Race) -> None:
    """ValueError unless every field is of its type, and problems, entries and repetitions belong together."""
    for record in (race, *race.problems, *(entry for problem in race.problems for entry in problem.entries)):
        _require_types(vars(record), get_type_hints(type(record)))
    kinds = {"epochs": dict, "environment": dict, "budget": float}
    _require_types(race.provenance, {name: kind for name, kind in kinds.items() if name in race.provenance})
    known = {problem.name: [entry.name for entry in problem.entries] for problem in race.problems}
    for problem in race.problems:
        if problem.reference not in [entry.competitor for entry in problem.entries]:
            raise ValueError(f"the reference of '{problem.name}' is '{problem.reference}', which has no entry")
        if problem.name not in [repetition["problem"] for repetition in race.repetitions]:
            raise ValueError(f"'{problem.name}' has no repetition")
    for repetition in race.repetitions:
        _require_types(repetition, _REPETITION)
        if [run["entry"] for run in repetition["traces"]] != known[repetition["problem"]]:
            raise ValueError(f"a repetition of '{repetition['problem']}' has other entries than the problem")
        for run in repetition["traces"]:
            _require_types(run, _RUN)
            if not run["rows"]:
                raise ValueError(f"a run of '{repetition['problem']}' has no rows")
            for row in run["rows"]:
                for name in (*NUMBERS, *row):
                    if not _fits(row[name], float):
                        raise ValueError(f"a row holds '{name}' that is no number")


def _require_types(record: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    for name, hint in types.items():
        if not _fits(record[name], hint):
            raise ValueError(f"'{name}' is {str(record[name])[:50]!r}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type: a number that is finite, text, a bool, a record, a tuple or mapping of those."""
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if hint in (int, str, bool):
        return type(value) is hint
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(entry, get_args(hint)[0]) for entry in value)
    if get_origin(hint) is UnionType:
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is abc.Mapping:
        return isinstance(value, dict) and all(_fits(entry, get_args(hint)[1]) for entry in value.values())
    return hint is Any or isinstance(value, hint)
