"""Tuning: runs, each alone, that walk over a grid until no neighbour is better; the best becomes the race's rate.

Finished runs are kept in a file of JSON lines, so that a tuning that was ended goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lifted_bregman.errors import SettingError
from lifted_bregman.experiments._write import write_whole
from lifted_bregman.experiments.environment import environment, threads
from lifted_bregman.solvers import Outcome
from lifted_bregman.training.signals import Signals
from lifted_bregman_lab.race._checks import check_settings
from lifted_bregman_lab.race.competitors import Competitor
from lifted_bregman_lab.race.entries import reference_of
from lifted_bregman_lab.race.lanes import Lane
from lifted_bregman_lab.race.problems import RaceData, RaceProblem
from lifted_bregman_lab.race.rates import CRITERIA, Choice, Rates
from lifted_bregman_lab.race.running import Watch

_ROWS = 20  # evaluations of a run: its lowest validation error is that of one of them


@dataclass(frozen=True)
class TuneSettings:
    """What may be chosen.

    Args:
        seed: of samples, weights and order, >= 0; another than the race's, so that nobody is tuned to its repetitions.
        threads: of torch, >= 1; None for its own choice.
        budget: the most time of a run, as a multiple of the reference's median, >= 1.
        data_dir: a folder that holds data sets; None for the cache.
    """

    seed: int = 1000
    threads: int | None = None
    budget: float = 1.5
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        check_settings(self, seed=0)


@dataclass(frozen=True)
class GridRun:
    """One point of a grid and what came of it.

    Args:
        problem: its name.
        competitor: its name.
        solver: with all its settings.
        value: of the tuned setting.
        batch_size: samples of a step.
        epochs: asked for.
        seed: of samples, weights and order.
        objective: in the last row.
        validation_error: the lowest of the rows.
        seconds: in steps.
        outcome: how it ended, in a word.
    """

    problem: str
    competitor: str
    solver: str
    value: float
    batch_size: int
    epochs: int
    seed: int
    objective: float
    validation_error: float
    seconds: float
    outcome: str

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it the run it is."""
        return (self.problem, self.solver, self.batch_size, self.epochs, self.seed)


_MEASURES: dict[str, Callable[[GridRun], float]] = {
    "objective": lambda run: run.objective,
    "validation": lambda run: run.validation_error,
}
_Place = tuple[int, int]  # in the lists of values and of batch sizes
# Larger batches want larger rates, so that the diagonal along which both grow belongs to it.
_NEIGHBOURS: tuple[_Place, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1))


def tune(
    problems: Sequence[RaceProblem],
    competitors: Sequence[Competitor],
    settings: TuneSettings,
    log: Path,
    watch: Watch | None = None,
    *,
    signals: Signals | None = None,
) -> Rates | None:
    """Walks over the grids and returns what was chosen; None if it was interrupted.

    A walk begins in the middle of the competitor's values at the problem's own batch size, and goes on to neighbours
    (the next value, the next batch size, or both larger or smaller) of the best point of each criterion until all of
    them have been run.

    What `log` has of the same solver, batch size, epochs and seed is not run again.  A run ends after its epochs, or at
    `budget` times the median time of the reference's runs, which go first.

    Args:
        problems: at least one.
        competitors: those without a grid are passed over.
        settings: what may be chosen.
        log: a file of JSON lines; made if it is missing, continued otherwise.
        watch: called before every run with what it is, and the part of the walks that is over.
        signals: those that end it after the present step, already listened to; Ctrl-C if None.
    """
    tuned = [competitor for competitor in competitors if competitor.tuned is not None]
    if not problems or not tuned:
        raise SettingError("tuning needs at least one problem and one competitor that has a grid: name them.")
    reference = reference_of(tuned)
    tuned.sort(key=lambda competitor: competitor.name != reference)  # stable: the others keep their order
    finished = {run.key: run for run in _read(log)}
    wanted: list[GridRun] = []
    walks = [(problem, competitor) for problem in problems for competitor in tuned]
    samples: dict[str, RaceData] = {}
    listening = Signals() if signals is None else nullcontext(signals)
    with listening as signals, threads(settings.threads):
        for number, (problem, competitor) in enumerate(walks):
            limit = math.inf
            if competitor.name != reference:
                limit = settings.budget * _median_seconds(wanted, problem, reference)
            visited: dict[_Place, GridRun] = {}
            while (place := _next_place(visited, competitor, problem)) is not None:
                value, batch_size = competitor.grid[place[0]], competitor.batch_sizes(problem)[place[1]]
                solver = competitor.make(value, problem)
                run = finished.get((problem.name, repr(solver), batch_size, problem.epochs, settings.seed))
                if run is None:
                    if watch is not None:
                        setting = f"{competitor.tuned} {value:g}, batches of {batch_size}"
                        watch(f"{problem.name}, {competitor.name}, {setting}", number / len(walks))
                    if problem.name not in samples:
                        samples = {problem.name: problem.load(settings.seed, settings.data_dir)}
                    own = samples[problem.name]
                    run = _run(problem, competitor, value, batch_size, settings.seed, own, limit, signals)
                    if run is None:
                        return None
                    with log.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(run)) + "\n")
                visited[place] = run
            wanted.extend(visited.values())
        machine = environment()
    return Rates(choose(wanted), _provenance(problems, tuned, settings, machine))


def choose(runs: Iterable[GridRun]) -> dict[str, dict[str, dict[str, Choice]]]:
    """By problem, competitor and criterion the best run that did not diverge; the first of equals."""
    groups: dict[tuple[str, str], list[GridRun]] = {}
    for run in runs:
        group = groups.setdefault((run.problem, run.competitor), [])
        if run.outcome != Outcome.DIVERGED.name:
            group.append(run)
    chosen: dict[str, dict[str, dict[str, Choice]]] = {}
    for (problem, competitor), group in groups.items():
        if not group:
            raise SettingError(
                f"'{competitor}' diverged on '{problem}' at every point of its grid: give it smaller values."
            )
        best = {criterion: min(group, key=measure) for criterion, measure in _MEASURES.items()}
        choices = {criterion: Choice(best[criterion].value, best[criterion].batch_size) for criterion in CRITERIA}
        chosen.setdefault(problem, {})[competitor] = choices
    return chosen


def _next_place(visited: dict[_Place, GridRun], competitor: Competitor, problem: RaceProblem) -> _Place | None:
    """Where a walk goes on; None where it ends.  From points that all diverged it goes to smaller values."""
    sizes = competitor.batch_sizes(problem)
    if not visited:
        own = min(range(len(sizes)), key=lambda place: abs(math.log(sizes[place] / problem.batch_size)))
        return (len(competitor.grid) - 1) // 2, own
    finite = {place: run for place, run in visited.items() if run.outcome != Outcome.DIVERGED.name}
    if not finite:
        value, size = min(visited)
        return (value - 1, size) if value else None
    for measure in _MEASURES.values():
        value, size = min(finite, key=lambda place: measure(finite[place]))
        for up, along in _NEIGHBOURS:
            v, s = value + up, size + along
            if 0 <= v < len(competitor.grid) and 0 <= s < len(sizes) and (v, s) not in visited:
                return v, s
    return None


def _run(
    problem: RaceProblem,
    competitor: Competitor,
    value: float,
    batch_size: int,
    seed: int,
    samples: RaceData,
    limit: float,
    signals: Signals,
) -> GridRun | None:
    """The run, or None if it was interrupted."""
    solver = competitor.make(value, problem)
    lane = Lane(
        problem.build(seed, samples),
        solver,
        samples,
        epochs=problem.epochs,
        batch_size=batch_size,
        seed=seed,
        classify=problem.classify,
        callbacks=[signals],
    )
    for row in range(1, _ROWS + 1):
        lane.advance(seconds=limit, steps=math.ceil(lane.steps * row / _ROWS))
        if signals.received is not None:
            return None
        lane.record()
        if lane.seconds >= limit:
            lane.end(Outcome.STOPPED.name, "The time was over.")
        if lane.outcome:
            break
    rows = lane.rows or [{"objective": math.inf, "validation_error": math.inf}]
    return GridRun(
        problem.name,
        competitor.name,
        repr(solver),
        value,
        batch_size,
        problem.epochs,
        seed,
        rows[-1]["objective"],
        min(row["validation_error"] for row in rows),
        lane.seconds,
        lane.outcome,
    )


def _median_seconds(runs: Iterable[GridRun], problem: RaceProblem, reference: str) -> float:
    """Of the reference's runs with the problem's own batch size; infinite where there are none."""
    own = (problem.name, reference, problem.batch_size, Outcome.FINISHED.name)
    found = [run.seconds for run in runs if (run.problem, run.competitor, run.batch_size, run.outcome) == own]
    return statistics.median(found) if found else math.inf


def _provenance(
    problems: Sequence[RaceProblem], tuned: Sequence[Competitor], settings: TuneSettings, place: dict[str, str]
) -> dict[str, Any]:
    """How the rates were found, without a date."""
    return {
        "grids": {c.name: {"setting": c.tuned, "values": list(c.grid)} for c in tuned},
        "batch_factors": {c.name: list(c.batch_factors) for c in tuned},
        "epochs": {problem.name: problem.epochs for problem in problems},
        "seed": settings.seed,
        "budget": settings.budget,
        "environment": place,
    }


def _read(log: Path) -> list[GridRun]:
    if not log.exists():
        return []
    try:
        *lines, cut = log.read_text(encoding="utf-8").split("\n")
        if cut:  # the last line of a process that was killed
            write_whole(log, "".join(f"{line}\n" for line in lines).encode())
        return [GridRun(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{log} holds no runs of a tuning ({error}): name another file, or remove it.") from error
