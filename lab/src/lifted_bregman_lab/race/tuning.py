"""Tuning: runs that walk over a grid until no neighbour is better; the best of them gives the race's rate.

Finished runs are kept in a file of JSON lines, so that a tuning that was ended resumes there.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lifted_bregman._arguments import whole
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments._write import write_whole
from lifted_bregman.experiments.environment import environment, threads
from lifted_bregman.experiments.run_data import RunData
from lifted_bregman.solvers import Outcome
from lifted_bregman.training.signals import Signals
from lifted_bregman_lab.race.competitors import Competitor, reference_of
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.rates import CRITERIA, Choice, Rates
from lifted_bregman_lab.race.running import Watch, check_limits
from lifted_bregman_lab.race.timed_run import TimedRun

GridRun = dict[str, Any]
"""A run at one point of a grid, a line of the log: `_POINT` and `_RESULT`, by name."""
_POINT = ("problem", "competitor", "solver", "value", "batch_size", "epochs", "seed")  # value: of the tuned setting
_RESULT = ("objective", "validation_error", "seconds", "outcome")  # the last objective, the lowest error
_MEASURES = dict(zip(CRITERIA, ("objective", "validation_error"), strict=True))
_ROWS = 20  # evaluations of a run: its lowest validation error is that of one of them
_Place = tuple[int, int]  # in the lists of values and of batch sizes
# Larger batches want larger rates, so that the diagonal along which both grow belongs to it.
_NEIGHBOURS: tuple[_Place, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1))


@dataclass(frozen=True)
class TuneSettings:
    """The settings of a tuning.

    Args:
        seed: of samples, weights and order, >= 0; not one of the race's, so that nothing is tuned to its repetitions.
        threads: of torch, >= 1; None for torch's own choice.
        budget: the most time of a run, as a multiple of the reference's median, >= 1.
        data_dir: a folder that holds data sets; None for the cache.
    """

    seed: int = 1000
    threads: int | None = None
    budget: float = 1.5
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        whole(self.seed, "seed", least=0)
        check_limits(self.threads, self.budget)


def tune(
    problems: Sequence[RaceProblem],
    competitors: Sequence[Competitor],
    settings: TuneSettings,
    log: Path,
    watch: Watch | None = None,
    *,
    signals: Signals | None = None,
) -> Rates | None:
    """Walk over the grids and return the rates; None if it was interrupted.

    A walk begins in the middle of the competitor's values at the problem's own batch size, and continues with the
    neighbours (the next value, the next batch size, or both larger or smaller) of the best point of each criterion
    until all of them have been run.

    Runs in `log` with the same solver, batch size, epochs and seed are not run again.  A run ends after its epochs, or
    at `budget` times the median time of the reference's runs, which go first.

    Args:
        problems: at least one.
        competitors: those without a grid are left out.
        settings: seed, threads, budget.
        log: a file of JSON lines; created if it is missing, continued otherwise.
        watch: called before every run with its name, and the part of the walks that is done.
        signals: those that end it after the present step, already listened to; Ctrl-C if None.
    """
    tuned = [competitor for competitor in competitors if competitor.tuned is not None]
    if not problems or not tuned:
        raise SettingError("tuning needs at least one problem and one competitor that has a grid: name them.")
    reference = reference_of(tuned)
    tuned.sort(key=lambda competitor: competitor.name != reference)  # stable: the others keep their order
    finished = {_key(run): run for run in _read(log)}
    runs: list[GridRun] = []
    walks = [(problem, competitor) for problem in problems for competitor in tuned]
    samples: dict[str, RunData] = {}
    listening = Signals() if signals is None else nullcontext(signals)
    with listening as signals, threads(settings.threads):
        for number, (problem, competitor) in enumerate(walks):
            limit = settings.budget * _median_seconds(runs, problem, reference)
            visited: dict[_Place, GridRun] = {}
            while (place := _next_place(visited, competitor, problem)) is not None:
                value, size = competitor.grid[place[0]], competitor.batch_sizes(problem)[place[1]]
                solver = competitor.make(value)
                who = (problem.name, competitor.name, repr(solver), value, size, problem.epochs, settings.seed)
                run: GridRun = dict(zip(_POINT, who, strict=True))
                if _key(run) not in finished:
                    if watch is not None:
                        setting = f"{competitor.tuned} {value:g}, batches of {size}"
                        watch(f"{problem.name}, {competitor.name}, {setting}", number / len(walks))
                    if problem.name not in samples:
                        samples = {problem.name: problem.load(settings.seed, settings.data_dir)}
                    own = TimedRun(
                        problem,
                        solver,
                        samples[problem.name],
                        batch_size=size,
                        seed=settings.seed,
                        callbacks=[signals],
                    )
                    run |= _run_to_end(own, limit, signals)
                    if signals.received is not None:
                        return None
                    finished[_key(run)] = run
                    with log.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(run) + "\n")
                visited[place] = finished[_key(run)]
            runs.extend(visited.values())
        provenance = {
            "grids": {c.name: {"setting": c.tuned, "values": list(c.grid)} for c in tuned},
            "batch_factors": {c.name: list(c.batch_factors) for c in tuned},
            "epochs": {problem.name: problem.epochs for problem in problems},
            "seed": settings.seed,
            "budget": settings.budget,
            "environment": environment(),
        }
    return Rates(choose_rates(runs), provenance)


def choose_rates(runs: Iterable[GridRun]) -> dict[str, dict[str, dict[str, Choice]]]:
    """By problem, competitor and criterion the best run that did not diverge; the first of equals."""
    chosen: dict[str, dict[str, dict[str, Choice]]] = {}
    for (problem, competitor), group in pd.DataFrame(runs).groupby(["problem", "competitor"], sort=False):
        finite = group[group["outcome"] != Outcome.DIVERGED.name]
        if finite.empty:
            raise SettingError(
                f"'{competitor}' diverged on '{problem}' at every point of its grid: give it smaller values."
            )
        best = {criterion: finite.loc[finite[name].idxmin()] for criterion, name in _MEASURES.items()}
        choices = {criterion: Choice(float(run["value"]), int(run["batch_size"])) for criterion, run in best.items()}
        chosen.setdefault(problem, {})[competitor] = choices
    return chosen


def _next_place(visited: dict[_Place, GridRun], competitor: Competitor, problem: RaceProblem) -> _Place | None:
    """The next point of a walk; None where it ends.  From points that all diverged it goes to smaller values."""
    sizes = competitor.batch_sizes(problem)
    if not visited:
        own = min(range(len(sizes)), key=lambda place: abs(math.log(sizes[place] / problem.batch_size)))
        return (len(competitor.grid) - 1) // 2, own
    finite = {place: run for place, run in visited.items() if run["outcome"] != Outcome.DIVERGED.name}
    if not finite:
        value, size = min(visited)
        return (value - 1, size) if value else None
    for name in _MEASURES.values():
        value, size = min(finite, key=lambda place: finite[place][name])
        for up, along in _NEIGHBOURS:
            v, s = value + up, size + along
            if 0 <= v < len(competitor.grid) and 0 <= s < len(sizes) and (v, s) not in visited:
                return v, s
    return None


def _run_to_end(run: TimedRun, limit: float, signals: Signals) -> GridRun:
    """The results of a run that ends at `limit` seconds at the latest."""
    for row in range(1, _ROWS + 1):
        run.advance(seconds=limit, steps=math.ceil(run.steps * row / _ROWS))
        if signals.received is not None:
            break
        run.record()
        if run.seconds >= limit:
            run.end(Outcome.STOPPED, "The time was over.")
        if run.outcome:
            break
    objective = run.rows[-1]["objective"] if run.rows else math.inf
    lowest = min((row["validation_error"] for row in run.rows), default=math.inf)
    return dict(zip(_RESULT, (objective, lowest, run.seconds, run.outcome), strict=True))


def _key(run: GridRun) -> tuple[object, ...]:
    """Runs with the same key are the same."""
    return tuple(run[name] for name in ("problem", "solver", "batch_size", "epochs", "seed"))


def _median_seconds(runs: Iterable[GridRun], problem: RaceProblem, reference: str) -> float:
    """Of the reference's runs with the problem's own batch size; infinite before they were run."""
    own = (problem.name, reference, problem.batch_size, Outcome.FINISHED.name)
    names = ("problem", "competitor", "batch_size", "outcome")
    found = [run["seconds"] for run in runs if tuple(run[name] for name in names) == own]
    return statistics.median(found) if found else math.inf


def _read(log: Path) -> list[GridRun]:
    """The runs in a log, from which a line that was cut is removed."""
    if not log.exists():
        return []
    try:
        *lines, cut = log.read_text(encoding="utf-8").split("\n")
        if cut:  # the last line of a process that was killed
            write_whole(log, "".join(f"{line}\n" for line in lines).encode())
        runs: list[GridRun] = [json.loads(line) for line in lines]
        if any(set(run) != {*_POINT, *_RESULT} for run in runs):
            raise ValueError("a line has other entries")
        return runs
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{log} holds no runs of a tuning ({error}): name another file, or remove it.") from error
