"""Tuning: walks over a grid until no neighbour is better; the best run gives the race's rate.

Finished runs are appended to a file of JSON lines, from which an interrupted tuning resumes.
"""

from __future__ import annotations

import json
import math
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
"""A run at one point of a grid, a row of the log: the entries `_POINT` and `_RESULT`."""
_POINT = ("problem", "competitor", "solver", "value", "batch_size", "epochs", "seed")  # value: of the tuned setting
_RESULT = ("objective", "validation_error", "seconds", "outcome")  # the last objective, the lowest error
_MEASURES = dict(zip(CRITERIA, ("objective", "validation_error"), strict=True))
_ROWS = 20  # evaluations of a run, among which the lowest validation error is looked up
_Place = tuple[int, int]  # indices of the value and of the batch size
# The diagonal belongs to it because larger batches want larger rates.
_NEIGHBOURS: tuple[_Place, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1))


@dataclass(frozen=True)
class TuneSettings:
    """The settings of a tuning.

    Args:
        seed: of samples, weights and order, >= 0; not one of the race's seeds.
        threads: of torch, >= 1; None for torch's own choice.
        budget: the longest time of a run, as a multiple of the reference's median, >= 1.
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
    watch: Watch = lambda what, part: None,
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
        watch: called before every run with its name and the fraction of the walks that is done.
        signals: an entered `Signals` that ends the tuning after the present step; Ctrl-C if None.
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
    with Signals() if signals is None else nullcontext(signals) as signals, threads(settings.threads):
        for number, (problem, competitor) in enumerate(walks):
            limit = settings.budget * _median_seconds(runs, problem, reference)
            visited: dict[_Place, GridRun] = {}
            while (place := _next_place(visited, competitor, problem)) is not None:
                value, size = competitor.grid[place[0]], competitor.batch_sizes(problem)[place[1]]
                solver = competitor.make(value)
                point = (problem.name, competitor.name, repr(solver), value, size, problem.epochs, settings.seed)
                run: GridRun = dict(zip(_POINT, point, strict=True))
                if _key(run) not in finished:
                    setting = f"{competitor.tuned} {value:g}, batches of {size}"
                    watch(f"{problem.name}, {competitor.name}, {setting}", number / len(walks))
                    if problem.name not in samples:  # samples of one problem at a time are in memory
                        samples = {problem.name: problem.load(settings.seed, settings.data_dir)}
                    options: Any = {"batch_size": size, "seed": settings.seed, "callbacks": [signals]}
                    timed = TimedRun(problem, solver, samples[problem.name], **options)
                    run |= _run_to_end(timed, limit, signals)
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
        best = finite.loc[[finite[name].idxmin() for name in _MEASURES.values()]]
        choices = map(Choice, best["value"].astype(float).tolist(), best["batch_size"].tolist())
        chosen.setdefault(problem, {})[competitor] = dict(zip(_MEASURES, choices, strict=True))
    return chosen


def _next_place(visited: dict[_Place, GridRun], competitor: Competitor, problem: RaceProblem) -> _Place | None:
    """The next point of a walk; None at its end.  Where all points diverged, the next one has a smaller value."""
    sizes = competitor.batch_sizes(problem)
    if not visited:
        nearest = min(range(len(sizes)), key=lambda place: abs(math.log(sizes[place] / problem.batch_size)))
        return (len(competitor.grid) - 1) // 2, nearest
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
    """The median of the reference's finished runs at the problem's own batch size; infinite before they were run."""
    rows = pd.DataFrame(runs, columns=[*_POINT, *_RESULT])
    point = {"problem": problem.name, "competitor": reference, "batch_size": problem.batch_size, "outcome": "FINISHED"}
    seconds = rows["seconds"][(rows[list(point)] == pd.Series(point)).all(axis="columns")]
    return float(seconds.median()) if len(seconds) else math.inf


def _read(log: Path) -> list[GridRun]:
    """The runs in a log.  A last line that a killed process left unfinished is removed from the file."""
    if not log.exists():
        return []
    try:
        *lines, cut = log.read_text(encoding="utf-8").split("\n")
        if cut:
            write_whole(log, "".join(f"{line}\n" for line in lines).encode())
        runs: list[GridRun] = [json.loads(line) for line in lines]
        if any(set(run) != {*_POINT, *_RESULT} for run in runs):
            raise ValueError("a line has other entries")
        return runs
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{log} holds no runs of a tuning ({error}): name another file, or remove it.") from error
