"""Tuning and racing: which runs are missing in the store, and the runs themselves, in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lifted_bregman._arguments import whole
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.environment import commit, environment, threads
from lifted_bregman.solvers import Outcome
from lifted_bregman.training import default_solver
from lifted_bregman.training.signals import Signals
from lifted_bregman_lab.packages import missing_packages
from lifted_bregman_lab.race.opponents import OPPONENTS, OURS, REFERENCE, Opponent
from lifted_bregman_lab.race.problems import Budget, RaceProblem
from lifted_bregman_lab.race.runs import RaceRun, refusal, start_run
from lifted_bregman_lab.race.samples import RaceSamples
from lifted_bregman_lab.race.store import Part, Row, Store, final, identify
from lifted_bregman_lab.watching import Watch

TUNING_SEED = 1000
"""Draws weights and order in a tuning; none of a race's seeds."""
CRITERIA = ("loss", "error")
"""What a rate is chosen by, and a run is judged by besides its time."""
POINTS = 20
"""Evaluations of a run after the first, at equal numbers of steps."""


@dataclass(frozen=True)
class RaceSettings:
    """The settings of a race.

    Args:
        budget: "short" or "long".
        seeds: number of seeds, 0, 1, ..., >= 1.
        threads: of torch, >= 1.
        data_dir: a folder that holds data sets; None for the cache.
        again: names of opponents whose stored races are run again, because their code has changed.
        tune_on: the budget whose runs choose the rates, for long runs that cost hours; None for `budget`.
    """

    budget: Budget = "short"
    seeds: int = 5
    threads: int = 1
    data_dir: Path | None = None
    again: tuple[str, ...] = ()
    tune_on: Budget | None = None

    @property
    def tuning_budget(self) -> Budget:
        """The budget whose runs choose the rates."""
        return self.tune_on or self.budget

    def __post_init__(self) -> None:
        if whole(self.seeds, "seeds") > TUNING_SEED:
            raise SettingError(f"seeds is {self.seeds}; it must be at most {TUNING_SEED}, the seed of the tuning.")
        whole(self.threads, "threads")


def left_out(problems: Sequence[RaceProblem], opponents: Sequence[Opponent]) -> dict[str, str]:
    """Problems and opponents, by name, whose Python packages are not installed, with the packages."""
    needs = {item.name: item.needs for item in problems} | {item.name: item.needs for item in opponents}
    found = {name: missing_packages(modules) for name, modules in needs.items()}
    return {name: ", ".join(missing) for name, missing in found.items() if missing}


def run_race(
    problems: Sequence[RaceProblem],
    opponents: Sequence[Opponent],
    settings: RaceSettings,
    store: Store,
    watch: Watch = lambda what, part: None,
    signals: Signals | None = None,
    tune_only: bool = False,
) -> bool:
    """Tune what has no rate yet, then race with each seed; rows that are stored are not run again.

    The runs of a problem and a seed take turns of 1/20 of their steps, and whoever goes first in one turn goes last in
    the next.  AdamW takes part always, also where its row is stored, because its time is the unit of all times.

    Args:
        problems: whose packages are installed.
        opponents: in any order; with or without AdamW.
        settings: budget, seeds, threads.
        store: gets a row for each run.
        watch: told what is running.
        signals: entered; ends the race after the present turn.
        tune_only: whether to stop after the tuning.

    Returns:
        Whether everything that was asked for is stored.
    """
    signals = Signals() if signals is None else signals
    raced = [OPPONENTS[REFERENCE], *(one for one in opponents if one.name != REFERENCE)]
    with threads(settings.threads):
        for number, problem in enumerate(problems):
            own = _ProblemRace(problem, problem.load(settings.data_dir), settings, store, signals)
            fitting = []
            for one in raced:
                reason = refusal(problem, own.data, one)
                if reason is None:
                    fitting.append(one)
                else:
                    watch(f"{problem.name}: {one.name} is left out: {reason}", number / len(problems))
            own.tune(fitting, lambda what, number=number: watch(what, number / len(problems)))  # type: ignore[misc]
            for seed in [] if tune_only else range(settings.seeds):
                done = number + seed / settings.seeds
                watch(f"{problem.name}, {settings.budget}, seed {seed}", done / len(problems))
                own.race(fitting, seed)
            if signals.received is not None:
                return False
    return True


@dataclass(frozen=True)
class _ProblemRace:
    """Tuning and races on one problem."""

    problem: RaceProblem
    data: RaceSamples
    settings: RaceSettings
    store: Store
    signals: Signals

    def tune(self, opponents: Sequence[Opponent], watch: Callable[[str], None]) -> None:
        """Walk over each grid until the best rate of each criterion has both its neighbours."""
        data = self.data.for_tuning()
        for opponent in filter(lambda one: one.grid, opponents):
            rows = tuning_rows(self.store, self.problem, opponent, self.settings.tuning_budget)
            visited = {opponent.grid.index(row["rate"]): row for row in rows if row["rate"] in opponent.grid}
            while self.signals.received is None and (place := next_place(visited, len(opponent.grid))) is not None:
                rate = opponent.grid[place]
                watch(f"tuning {self.problem.name}, {opponent.name}, rate {rate:g}")
                row = self._describe("tune", self.settings.tuning_budget, data, opponent, rate, TUNING_SEED)
                run = start_run(self.problem, data, row["epochs"], TUNING_SEED, opponent, rate)
                _take_turns([run], self.signals, points=1)
                if self.signals.received is None:
                    self.store.append(_finish(row, run, None))
                    visited[place] = self.store.rows[identify(row)]

    def race(self, opponents: Sequence[Opponent], seed: int) -> None:
        """The runs with a seed that are not stored, in turns with AdamW, the first of the opponents."""
        if self.signals.received is not None:
            return
        wanted: list[tuple[Row, Opponent]] = []
        for one in opponents:
            tuned = OPPONENTS[one.rates_of] if one.rates_of else one
            rows = tuning_rows(self.store, self.problem, tuned, self.settings.tuning_budget)
            rates: set[float | None] = {*best_rates(rows).values()} if rows else {None}
            for rate in sorted(rates, key=lambda value: value or 0.0):
                wanted.append((self._describe("race", self.settings.budget, self.data, one, rate, seed), one))
        again = self.settings.again
        missing = [(row, one) for row, one in wanted if one.name in again or identify(row) not in self.store.rows]
        if not missing:
            return
        pacer = wanted[0]  # AdamW at its lower rate
        entries = missing if pacer in missing else [pacer, *missing]
        runs: list[RaceRun] = []
        try:
            for row, one in entries:
                # The first steps of a process pay for what is done once: they are taken on a copy.
                trial = start_run(self.problem, self.data, row["epochs"], seed, one, row["rate"])
                trial.advance(2)
                trial.abandon()
                runs.append(start_run(self.problem, self.data, row["epochs"], seed, one, row["rate"]))
            _take_turns(runs, self.signals)
        finally:
            for run in runs:
                run.abandon()
        if self.signals.received is None:
            unit = runs[entries.index(pacer)].seconds
            for entry, run in zip(entries, runs, strict=True):
                if entry in missing:
                    self.store.append(_finish(entry[0], run, unit))

    def _describe(
        self, part: Part, budget: Budget, data: RaceSamples, opponent: Opponent, rate: float | None, seed: int
    ) -> Row:
        """The entries of a row that are known before the run."""
        solver = f" {default_solver()!r}" if opponent.name == OURS else ""
        return {
            "part": part,
            "problem": self.problem.name,
            "title": self.problem.title,
            "group": self.problem.group,
            "task": self.problem.task.error_name,
            "opponent": opponent.name,
            "settings": opponent.title + solver,
            "budget": budget,
            "epochs": self.problem.epochs(budget),
            "batch_size": self.problem.batch_size,
            "samples": len(data.X),
            "new_samples": len(data.X_new),
            "rate": rate,
            "seed": seed,
        }


def _finish(row: Row, run: RaceRun, reference_seconds: float | None) -> Row:
    """The row with what was measured."""
    diverged = run.outcome == Outcome.DIVERGED.name
    last = (None, None) if diverged else run.trace[-1][2:]
    return row | {
        "steps": run.done,
        "seconds": run.seconds,
        "loss": last[0],
        "error": last[1],
        "unit": run.data.unit,
        "reference_seconds": reference_seconds,
        "trace": [[float(f"{number:.6g}") for number in point] for point in run.trace],
        "outcome": run.outcome,
        "source": run.data.source,
        "versions": environment(),
        "commit": commit(),
    }


def next_place(visited: dict[int, Row], length: int) -> int | None:
    """The next point of a walk over a grid; None at its end.

    It begins in the middle.  While every point diverged it goes down; then it asks for the neighbours of the best point
    of each criterion.
    """
    if not visited:
        return (length - 1) // 2
    if all(row["loss"] is None for row in visited.values()):
        return min(visited) - 1 if min(visited) else None
    for criterion in CRITERIA:
        best = min(visited, key=lambda place: _merit(visited[place], criterion))
        for place in (best - 1, best + 1):
            if 0 <= place < length and place not in visited:
                return place
    return None


def tuning_rows(store: Store, problem: RaceProblem, opponent: Opponent, budget: Budget) -> list[Row]:
    """The tuning rows of an opponent on a problem."""
    run = {
        "problem": problem.name,
        "budget": budget,
        "epochs": problem.epochs(budget),
        "batch_size": problem.batch_size,
    }
    return store.select(part="tune", opponent=opponent.name, settings=opponent.title, **run)


def _merit(row: Row, criterion: str) -> tuple[float, float]:
    """Smaller is better; of equal errors, which few samples often have, the lower loss decides."""
    return final(row, criterion), final(row, "loss")


def best_rates(rows: Sequence[Row]) -> dict[str, float]:
    """The rate with the lowest loss, and the one with the lowest error; the smallest where all diverged."""
    rising = sorted(rows, key=lambda row: float(row["rate"]))
    return {by: min(rising, key=lambda row: _merit(row, by))["rate"] for by in CRITERIA}


def _take_turns(runs: Sequence[RaceRun], signals: Signals, points: int = POINTS) -> None:
    """Advance all runs to their ends in so many turns, with an evaluation at the start and after each turn."""
    for run in runs:
        run.record()
    for turn in range(1, points + 1):
        for place in range(len(runs)):
            run = runs[(place + turn) % len(runs)]
            if signals.received is not None:
                return
            if not run.outcome:
                run.advance(math.ceil(run.steps * turn / points))
                run.record()
