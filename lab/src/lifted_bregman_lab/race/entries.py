"""Entries: each competitor with the setting it runs with on a problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from lifted_bregman.experiments.run_data import RunData
from lifted_bregman_lab.race.competitors import Competitor, reference_of
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.rates import CRITERIA, Rates
from lifted_bregman_lab.race.results import Entry, ProblemRecord

_NETWORK = ("hidden", "activation", "loss", "code_threshold", "code_penalty", "weights", "dtype")
_RECORDED = ("data", "task", "prepare", "noise", "validation", *_NETWORK)  # of a problem's settings


def make_entries(problem: RaceProblem, competitors: Sequence[Competitor], rates: Rates) -> tuple[Entry, ...]:
    """One entry for each competitor, two where objective and validation error chose different settings for it."""
    entries = []
    for competitor in competitors:
        chosen: list[tuple[str, tuple[str, ...], float | None, int]] = []  # name, criteria, value, batch size
        if competitor.tuned is None:
            chosen.append((competitor.name, (), None, problem.batch_size))
        else:
            first, second = (rates.of(problem, competitor)[criterion] for criterion in CRITERIA)
            chosen.append(
                (competitor.name, CRITERIA if first == second else CRITERIA[:1], first.value, first.batch_size)
            )
            if first != second:
                chosen.append((f"{competitor.name}-validation", CRITERIA[1:], second.value, second.batch_size))
        grids = competitor.grid, competitor.batch_sizes(problem)
        for name, by, value, size in chosen:
            solver = repr(competitor.make(math.nan if value is None else value))
            who = name, competitor.name, competitor.title, competitor.kind
            entries.append(Entry(*who, by, solver, size, competitor.tuned or "", value, *grids))
    return tuple(entries)


def problem_record(problem: RaceProblem, competitors: Sequence[Competitor], rates: Rates) -> ProblemRecord:
    """What a race keeps of a problem, without the numbers of samples; SettingError where a rate is missing."""
    resolved = asdict(problem.settings.resolved())
    return ProblemRecord(
        problem.name,
        problem.title,
        problem.classify,
        problem.epochs,
        problem.batch_size,
        samples=0,
        validation_samples=0,
        source="",
        settings={name: list(value) if isinstance(value := resolved[name], tuple) else value for name in _RECORDED},
        reference=reference_of(competitors),
        entries=make_entries(problem, competitors, rates),
        rows=problem.rows,
    )


def with_samples(record: ProblemRecord, samples: RunData) -> ProblemRecord:
    """The record with the numbers of samples, and where they came from."""
    assert samples.validation is not None
    trained, held_out = len(samples.train[0]), len(samples.validation[0])
    return replace(record, samples=trained, validation_samples=held_out, source=samples.source)
