"""What a race leaves: every row of every run with what it takes to judge and repeat it, as one JSON file."""

from __future__ import annotations

import json
import math
import sys
import types
from collections import abc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments._write import write_whole

KIND = "lifted race, format 1"
NEEDED = ("step", "epoch", "seconds", "objective", "validation_error")
"""What every row has."""

Row = Mapping[str, float]


@dataclass(frozen=True)
class EntryRecord:
    """A competitor with the setting it runs with on one problem.

    Args:
        name: unlike that of any other entry on the problem.
        competitor: whose entry it is.
        title: as people read it.
        kind: "lifted" or "back-propagation".
        chosen_by: "objective", "validation", both, or none where nothing is tuned.
        solver: the solver with all its settings.
        batch_size: samples of a step.
        tuned: the setting that was chosen from a grid; empty where nothing is tuned.
        value: what was chosen; None where nothing is tuned.
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
    """A problem and who ran on it.

    Args:
        name: as it is chosen on the command line.
        title: as people read it.
        classify: whether the validation error is that of classes.
        epochs: passes over the data, for everybody who had the time.
        batch_size: samples of a step, unless an entry says otherwise.
        samples: to train on.
        validation_samples: to be judged by.
        source: where the samples came from.
        settings: data and network, by name.
        reference: the competitor whose results are the targets.
        entries: who ran.
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
    entries: tuple[EntryRecord, ...]
    rows: int = 0


@dataclass(frozen=True)
class Trace:
    """One run.

    Args:
        entry: whose it is.
        rows: what was reached and when; the first row is from before training.
        outcome: how it ended, in a word.
        message: how it ended, in a sentence.
    """

    entry: str
    rows: tuple[Row, ...]
    outcome: str
    message: str


@dataclass(frozen=True)
class Heat:
    """The runs of one repetition on one problem, from the same weights and with the same order of samples.

    Args:
        problem: its name.
        seed: of samples, weights and order.
        whole: whether every run came to its end.
        load: processes that wanted to run in the last minute at its end, on average; None where nobody says.
        traces: one for each entry, in their order.
    """

    problem: str
    seed: int
    whole: bool
    load: float | None
    traces: tuple[Trace, ...]

    def trace(self, entry: str) -> Trace:
        """The run of an entry."""
        return next(trace for trace in self.traces if trace.entry == entry)


@dataclass(frozen=True)
class Race:
    """Everything that was run.

    Args:
        problems: in the order in which they were run.
        heats: repetitions of all problems.
        environment: versions, threads, hardware.
        load_before: processes that wanted to run in the minute before, on average; None where nobody says.
        budget: the most time of a run, as a multiple of the reference's.
        interrupted: whether somebody ended it before all its repetitions were whole.
        provenance: how the rates were found.
    """

    problems: tuple[ProblemRecord, ...]
    heats: tuple[Heat, ...]
    environment: Mapping[str, str]
    load_before: float | None
    budget: float
    interrupted: bool
    provenance: Mapping[str, Any]

    def heats_of(self, problem: str) -> tuple[Heat, ...]:
        """The whole repetitions of a problem; what there is where none is whole."""
        own = tuple(heat for heat in self.heats if heat.problem == problem)
        return tuple(heat for heat in own if heat.whole) or own


def write_race(path: Path, race: Race) -> None:
    """Writes the file, whole or not at all; numbers that JSON does not know become null."""
    entries = {"kind": KIND, **asdict(race)}
    write_whole(path, (json.dumps(finite(entries), indent=1, allow_nan=False) + "\n").encode())


def read_race(path: Path) -> Race:
    """The race in a file; CheckpointError if it holds none."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if entries.pop("kind") != KIND:
            raise ValueError("it is of another kind or version")
        problems = tuple(_problem(entry) for entry in entries.pop("problems"))
        heats = tuple(_heat(entry) for entry in entries.pop("heats"))
        race = Race(problems, heats, **entries)
        _require_consistent(race)
        return race
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} holds no race ({error}): give what `lifted bench race --json FILE` wrote."
        ) from error


def _problem(entry: dict[str, Any]) -> ProblemRecord:
    return ProblemRecord(**(entry | {"entries": tuple(EntryRecord(**_tuples(one)) for one in entry["entries"])}))


def _heat(entry: dict[str, Any]) -> Heat:
    traces = tuple(Trace(**(one | {"rows": tuple(map(_row, one["rows"]))})) for one in entry["traces"])
    return Heat(**(entry | {"traces": traces}))


def _row(row: dict[str, Any]) -> Row:
    for name in (*NEEDED, *row):
        if not _fits(row[name], float):
            raise ValueError(f"a row holds '{name}' that is no number")
    return row


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    listed = [f.name for f in fields(EntryRecord) if str(f.type).startswith("tuple")]
    return entry | {name: tuple(entry[name]) for name in listed}


def _require_consistent(race: Race) -> None:
    """ValueError unless every field is of its type, and problems, entries and repetitions belong together."""
    records = (race, *race.problems, *race.heats)
    entries = (entry for problem in race.problems for entry in problem.entries)
    traces = (trace for heat in race.heats for trace in heat.traces)
    for record in (*records, *entries, *traces):
        for name, hint in get_type_hints(type(record)).items():
            if not _fits(getattr(record, name), hint):
                raise ValueError(f"'{name}' is {str(getattr(record, name))[:50]!r}")
    for name, hint in {"epochs": dict, "environment": dict, "budget": float}.items():
        if not _fits(race.provenance.get(name, hint()), hint):
            raise ValueError(f"'{name}' of 'provenance' is {str(race.provenance[name])[:50]!r}")
    known = {problem.name: [entry.name for entry in problem.entries] for problem in race.problems}
    for problem in race.problems:
        if problem.reference not in [entry.competitor for entry in problem.entries]:
            raise ValueError(f"the reference of '{problem.name}' is '{problem.reference}', which has no entry")
        if problem.name not in [heat.problem for heat in race.heats]:
            raise ValueError(f"'{problem.name}' has no repetition")
    for heat in race.heats:
        if [trace.entry for trace in heat.traces] != known[heat.problem]:
            raise ValueError(f"a repetition of '{heat.problem}' has other entries than the problem")
        if not all(trace.rows for trace in heat.traces):
            raise ValueError(f"a run of '{heat.problem}' has no rows")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type: a number that is finite, text, a bool, a record, a tuple or mapping of those."""
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if hint in (int, str, bool):
        return type(value) is hint
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(entry, get_args(hint)[0]) for entry in value)
    if get_origin(hint) is types.UnionType:
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is abc.Mapping:
        return isinstance(value, dict) and all(_fits(entry, get_args(hint)[1]) for entry in value.values())
    return hint is Any or isinstance(value, hint)


def finite(value: Any) -> Any:
    """The same value as JSON has it: mappings, lists, and null for what is no finite number."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
