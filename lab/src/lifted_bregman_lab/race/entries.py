"""The plan of a race: each competitor with the setting it runs with; and whether a stored race is a part of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.environment import environment, threads
from lifted_bregman.experiments.run_data import RunData
from lifted_bregman_lab.race.competitors import Competitor, reference_of
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.rates import CRITERIA, Choice, Rates
from lifted_bregman_lab.race.results import Entry, ProblemRecord, Race, finite

if TYPE_CHECKING:
    from lifted_bregman_lab.race.running import RaceSettings

_NETWORK = ("hidden", "activation", "loss", "code_threshold", "code_penalty", "weights", "dtype")
_RECORDED = ("data", "task", "prepare", "noise", "validation", *_NETWORK)  # of a problem's settings
_REMEDY = "ask for that race, store this one elsewhere, or begin anew (--fresh)."


def plan_race(
    problems: Sequence[RaceProblem], competitors: Sequence[Competitor], rates: Rates, settings: RaceSettings
) -> Race:
    """The race before its first repetition, without numbers of samples; SettingError where a rate is missing."""
    with threads(settings.threads):
        place = environment()
    records = tuple(_problem_record(problem, competitors, rates) for problem in problems)
    return Race(records, (), place, None, settings.budget, True, dict(rates.provenance))


def make_entries(problem: RaceProblem, competitors: Sequence[Competitor], rates: Rates) -> tuple[Entry, ...]:
    """One entry for each competitor, two where objective and validation error chose different settings for it."""
    entries = []
    for competitor in competitors:
        # The criteria that chose each point of the grid.
        chosen: dict[Choice | None, tuple[str, ...]] = {}
        for criterion in CRITERIA if competitor.tuned else ():
            best = rates.of(problem, competitor)[criterion]
            chosen[best] = (*chosen.get(best, ()), criterion)
        for choice, criteria in (chosen or {None: ()}).items():
            value = None if choice is None else choice.value
            entry = Entry(
                name=f"{competitor.name}-validation" if criteria == CRITERIA[1:] else competitor.name,
                competitor=competitor.name,
                title=competitor.title,
                kind=competitor.kind,
                chosen_by=criteria,
                solver=repr(competitor.make(value or math.nan)),
                batch_size=problem.batch_size if choice is None else choice.batch_size,
                tuned=competitor.tuned or "",
                value=value,
                grid=competitor.grid,
                batch_sizes=competitor.batch_sizes(problem),
            )
            entries.append(entry)
    return tuple(entries)


def _problem_record(problem: RaceProblem, competitors: Sequence[Competitor], rates: Rates) -> ProblemRecord:
    same = {name: getattr(problem, name) for name in ("name", "title", "classify", "epochs", "batch_size", "rows")}
    resolved = asdict(problem.settings.resolved())
    return ProblemRecord(
        **same,
        samples=0,
        validation_samples=0,
        source="",
        settings=finite({name: resolved[name] for name in _RECORDED}),
        reference=reference_of(competitors),
        entries=make_entries(problem, competitors, rates),
    )


def with_samples(planned: ProblemRecord, samples: RunData, stored: ProblemRecord | None) -> ProblemRecord:
    """The planned record with source and numbers of samples; CheckpointError where the stored record has others."""
    assert samples.validation is not None
    trained, held_out = len(samples.train[0]), len(samples.validation[0])
    now = replace(planned, samples=trained, validation_samples=held_out, source=samples.source)
    if stored and (stored.samples, stored.validation_samples) != (now.samples, now.validation_samples):
        raise CheckpointError(
            f"'{now.name}' has {now.samples} and {now.validation_samples} samples to train on and to be judged by, and "
            f"had {stored.samples} and {stored.validation_samples} when the race began: restore them, or begin anew "
            "(--fresh)."
        )
    return now


def require_part(stored: Race, planned: Race, seeds: Sequence[int]) -> None:
    """CheckpointError with the first difference, unless the stored race is a part of the planned one.

    The planned race may have more problems and more repetitions.  All else must be the same: entries with their
    solvers, rates and order, epochs, budget, and versions, hardware and threads (`environment`).
    """
    difference = next(_differences(stored, planned, seeds), None)
    if difference is not None:
        raise CheckpointError(f"the race that is stored is another one ({difference}): {_REMEDY}")


def _differences(stored: Race, planned: Race, seeds: Sequence[int]) -> Iterator[str]:
    yield from _changes(stored.environment, planned.environment)
    yield from _changes(stored.budget, planned.budget, "budget")
    problems = {problem.name: problem for problem in planned.problems}
    for problem in stored.problems:
        if problem.name not in problems:
            yield f"it has the problem '{problem.name}', which is not asked for"
            continue
        before = replace(problem, samples=0, validation_samples=0, source="")
        yield from _changes(_compared(before), _compared(problems[problem.name]), f"of '{problem.name}',")
    for repetition in stored.repetitions:
        if repetition["seed"] not in seeds:
            yield f"it has a repetition with seed {repetition['seed']}, which is not asked for"
    yield from _changes(finite(stored.provenance), finite(planned.provenance), "rates,")


def _compared(problem: ProblemRecord) -> dict[str, Any]:
    """A problem as it is compared: the order of the entries, then each entry, and the solvers, which are long, last."""
    compared: dict[str, Any] = finite(asdict(problem))
    entries = {entry["name"]: entry for entry in compared.pop("entries")}
    solvers = {name: entry.pop("solver") for name, entry in entries.items()}
    return compared | {"entries": ", ".join(entries), "entry": entries, "solver of": solvers}


def _changes(stored: Any, planned: Any, *path: str) -> Iterator[str]:
    """Every difference in words."""
    if isinstance(stored, Mapping) and isinstance(planned, Mapping):
        for key in {**stored, **planned}:
            yield from _changes(stored.get(key), planned.get(key), *path, str(key))
    elif stored != planned:
        yield f"{' '.join(path)} was {stored!r} and is {planned!r}"
