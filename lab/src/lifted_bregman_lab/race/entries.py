"""Entries: each competitor with the setting it runs with on a problem, and whose results are the targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lifted_bregman.solvers import Solver
from lifted_bregman_lab.race.competitors import REFERENCE, Competitor
from lifted_bregman_lab.race.problems import RaceData, RaceProblem
from lifted_bregman_lab.race.rates import CRITERIA, Rates
from lifted_bregman_lab.race.results import EntryRecord, ProblemRecord

_RECORDED = (  # of a problem's settings
    "data",
    "task",
    "prepare",
    "noise",
    "validation",
    "hidden",
    "activation",
    "loss",
    "code_threshold",
    "code_penalty",
    "weights",
    "dtype",
)


@dataclass(frozen=True, eq=False)
class Entry:
    """A competitor with the setting it runs with on one problem."""

    record: EntryRecord
    solver: Solver[Any]


def enter(problem: RaceProblem, competitors: Sequence[Competitor], rates: Rates) -> tuple[Entry, ...]:
    """One entry for each competitor, two where objective and validation error chose different settings for it."""
    entries = []
    for competitor in competitors:
        if competitor.tuned is None:
            entries.append(_entry(problem, competitor, competitor.name, (), None, problem.batch_size))
            continue
        chosen = rates.of(problem, competitor)
        by_objective, by_validation = (chosen[criterion] for criterion in CRITERIA)
        same = by_objective == by_validation
        by: tuple[str, ...] = CRITERIA if same else CRITERIA[:1]
        entries.append(_entry(problem, competitor, competitor.name, by, by_objective.value, by_objective.batch_size))
        if not same:
            name = f"{competitor.name}-validation"
            value, size = by_validation.value, by_validation.batch_size
            entries.append(_entry(problem, competitor, name, CRITERIA[1:], value, size))
    return tuple(entries)


def reference_of(competitors: Sequence[Competitor]) -> str:
    """Adam where it takes part, else the first that uses back-propagation, else the first."""
    names = [competitor.name for competitor in competitors]
    other = [competitor.name for competitor in competitors if competitor.kind == "back-propagation"]
    return REFERENCE if REFERENCE in names else (other or names)[0]


def problem_record(
    problem: RaceProblem, entries: Sequence[Entry], reference: str, samples: RaceData | None = None
) -> ProblemRecord:
    """What a race keeps of a problem; without `samples` nothing about them."""
    resolved = asdict(problem.settings.resolved())
    return ProblemRecord(
        problem.name,
        problem.title,
        problem.classify,
        problem.epochs,
        problem.batch_size,
        0 if samples is None else len(samples.train[0]),
        0 if samples is None else len(samples.validation[0]),
        "" if samples is None else samples.source,
        {name: list(value) if isinstance(value := resolved[name], tuple) else value for name in _RECORDED},
        reference,
        tuple(entry.record for entry in entries),
        problem.rows,
    )


def _entry(
    problem: RaceProblem,
    competitor: Competitor,
    name: str,
    chosen_by: tuple[str, ...],
    value: float | None,
    batch_size: int,
) -> Entry:
    solver = competitor.make(math.nan if value is None else value, problem)
    record = EntryRecord(
        name,
        competitor.name,
        competitor.title,
        competitor.kind,
        chosen_by,
        repr(solver),
        batch_size,
        competitor.tuned or "",
        value,
        competitor.grid,
        competitor.batch_sizes(problem),
    )
    return Entry(record, solver)
