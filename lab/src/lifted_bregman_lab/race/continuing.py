"""Resuming a race: is what was stored a part of the race that is asked for now?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.environment import environment, threads
from lifted_bregman_lab.race.competitors import Competitor
from lifted_bregman_lab.race.entries import problem_record
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.rates import Rates
from lifted_bregman_lab.race.results import ProblemRecord, Race, finite

if TYPE_CHECKING:
    from lifted_bregman_lab.race.running import RaceSettings

_REMEDY = "ask for that race, store this one elsewhere, or begin anew (--fresh)."


def require_part(
    stored: Race,
    problems: Sequence[RaceProblem],
    competitors: Sequence[Competitor],
    rates: Rates,
    settings: RaceSettings,
) -> None:
    """CheckpointError with the first difference, unless all that is stored belongs to the race that is asked for.

    That race may have more problems and more repetitions.  All else must be the same: entries with their solvers,
    rates and order, epochs, budget, and versions, hardware and threads (`environment`).
    """
    asked = {problem.name: _plain(problem_record(problem, competitors, rates)) for problem in problems}
    with threads(settings.threads):
        place = environment()
    found = [_difference(dict(stored.environment), place), _difference(stored.budget, settings.budget, "budget")]
    for record in stored.problems:
        if record.name not in asked:
            found.append(f"it has the problem '{record.name}', which is not asked for")
        else:
            there = _plain(replace(record, samples=0, validation_samples=0, source=""))
            found.append(_difference(there, asked[record.name], f"of '{record.name}',"))
    seeds = [repetition["seed"] for repetition in stored.repetitions if repetition["seed"] not in settings.seeds]
    found += [f"it has a repetition with seed {seed}, which is not asked for" for seed in seeds]
    found.append(_difference(finite(stored.provenance), finite(rates.provenance), "rates,"))
    first = next(filter(None, found), None)
    if first is not None:
        raise CheckpointError(f"the race that is stored is another one ({first}): {_REMEDY}")


def require_same_samples(stored: ProblemRecord, now: ProblemRecord) -> None:
    """CheckpointError unless there are as many samples as when the race began."""
    if (stored.samples, stored.validation_samples) != (now.samples, now.validation_samples):
        raise CheckpointError(
            f"'{now.name}' has {now.samples} and {now.validation_samples} samples to train on and to be judged by, and "
            f"had {stored.samples} and {stored.validation_samples} when the race began: restore them, or begin anew "
            "(--fresh)."
        )


def _plain(record: ProblemRecord) -> dict[str, Any]:
    """What is compared, by name; the order of the entries too, and what is long last."""
    told: dict[str, Any] = finite(asdict(record))
    entries = told.pop("entries")
    solvers = {entry["name"]: entry.pop("solver") for entry in entries}
    names = ", ".join(solvers)
    return told | {"entries": names, "entry": {entry["name"]: entry for entry in entries}, "solver of": solvers}


def _difference(stored: Any, asked: Any, *path: str) -> str:
    """The first difference in words, empty if there is none."""
    if isinstance(stored, Mapping) and isinstance(asked, Mapping):
        parts = (_difference(stored.get(key), asked.get(key), *path, str(key)) for key in {**stored, **asked})
        return next(filter(None, parts), "")
    return "" if stored == asked else f"{' '.join(path)} was {stored!r} and is {asked!r}"
