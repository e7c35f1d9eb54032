"""Running the race: in each repetition all entries train from the same weights, in turns, by the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from lifted_bregman._arguments import whole
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.environment import load_average, threads
from lifted_bregman.experiments.run_data import RunData
from lifted_bregman.solvers import Callback, Outcome
from lifted_bregman.training.signals import Signals
from lifted_bregman_lab.race.competitors import Competitor
from lifted_bregman_lab.race.entries import plan_race, require_part, with_samples
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.rates import Rates
from lifted_bregman_lab.race.results import Entry, ProblemRecord, Race, Repetition, RunRecord
from lifted_bregman_lab.race.timed_run import TimedRun

Watch = Callable[[str, float], None]
"""Called with the name of what is running, and the fraction of all work that is done."""
IDLE = 0.5  # a higher load average: other processes use the machine
_WARM_UP, _TRIAL = 2, 3  # steps that are not timed, and steps that measure the time of a step


@dataclass(frozen=True)
class RaceSettings:
    """The settings of a race.

    Args:
        repetitions: with the seeds first_seed, first_seed + 1, ..., >= 1.
        first_seed: >= 0.
        threads: of torch, >= 1; None for torch's own choice.
        budget: the longest time of a run, as a multiple of the reference's, >= 1.
        data_dir: a folder that holds data sets; None for the cache.
    """

    repetitions: int = 5
    first_seed: int = 0
    threads: int | None = None
    budget: float = 1.5
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        whole(self.repetitions, "repetitions")
        whole(self.first_seed, "first_seed", least=0)
        check_limits(self.threads, self.budget)

    @property
    def seeds(self) -> range:
        """One for each repetition."""
        return range(self.first_seed, self.first_seed + self.repetitions)


def check_limits(threads: int | None, budget: float) -> None:
    """SettingError unless `threads` is None or a whole number >= 1, and `budget` a finite number >= 1."""
    if threads is not None:
        whole(threads, "threads")
    if not 1.0 <= budget < math.inf:
        raise SettingError(f"budget is {budget!r}; it must be a number of at least 1.")


def run_race(
    problems: Sequence[RaceProblem],
    competitors: Sequence[Competitor],
    rates: Rates,
    settings: RaceSettings,
    watch: Watch = lambda what, part: None,
    *,
    stored: Race | None = None,
    keep: Callable[[Race], None] = lambda race: None,
    signals: Signals | None = None,
) -> Race:
    """Run every competitor on every problem, and return all that was measured.

    Ctrl-C ends the race after the present step, and the rows so far are returned.  A second Ctrl-C raises
    KeyboardInterrupt at once.

    Args:
        problems: at least one.
        competitors: at least one.
        rates: the values of the tuned settings.
        settings: repetitions, seeds, threads, budget.
        watch: called after every turn.
        stored: a part of the same race; its whole repetitions are not run again.
        keep: called after every repetition with the race so far.
        signals: an entered `Signals` that ends the race; Ctrl-C if None.
    """
    if not problems or not competitors:
        raise SettingError("a race needs at least one problem and one competitor: name them, or leave the names out.")
    planned = plan_race(problems, competitors, rates, settings)
    if stored is not None:
        require_part(stored, planned, settings.seeds)
    records = {record.name: record for record in stored.problems} if stored else {}
    repetitions = {(one["problem"], one["seed"]): one for one in stored.repetitions} if stored else {}
    wanted = [
        (problem, record, seed)
        for problem, record in zip(problems, planned.problems, strict=True)
        for seed in settings.seeds
    ]
    beginning = _load()
    loads = [beginning if stored is None else stored.load_before]  # before each start that was followed by a run

    def so_far() -> Race:
        done = [found for problem, _, seed in wanted if (found := repetitions.get((problem.name, seed))) is not None]
        return replace(
            planned,
            problems=tuple(records[record.name] for record in planned.problems if record.name in records),
            repetitions=tuple(done),
            load_before=max((load for load in loads if load is not None), default=None),
            interrupted=sum(found["whole"] for found in done) < len(wanted),
        )

    with Signals() if signals is None else nullcontext(signals) as signals, threads(settings.threads):
        for number, (problem, record, seed) in enumerate(wanted):
            if signals.received is not None:
                break
            if (before := repetitions.get((problem.name, seed))) is not None and before["whole"]:
                continue
            samples = problem.load(seed, settings.data_dir)
            record = with_samples(record, samples, records.get(problem.name))

            def show(part: float, number: int = number, name: str = f"{problem.name}, seed {seed}") -> None:
                watch(name, (number + part) / len(wanted))

            found = _run_repetition(problem, record, competitors, samples, seed, settings.budget, signals, show)
            if not found["whole"] and all(len(run["rows"]) <= 1 for run in found["traces"]):
                break  # interrupted before the first turn
            repetitions[problem.name, seed] = found
            records.setdefault(problem.name, record)
            loads.append(beginning)
            keep(so_far())
    return so_far()


def _run_repetition(
    problem: RaceProblem,
    record: ProblemRecord,
    competitors: Sequence[Competitor],
    samples: RunData,
    seed: int,
    budget: float,
    signals: Signals,
    show: Callable[[float], None],
) -> Repetition:
    """Run all entries on a problem, in turns, and return their rows."""
    make = {competitor.name: competitor.make for competitor in competitors}

    def new_run(entry: Entry, *callbacks: Callback) -> TimedRun:
        solver = make[entry.competitor](entry.value or math.nan)
        return TimedRun(problem, solver, samples, batch_size=entry.batch_size, seed=seed, callbacks=callbacks)

    # Warm up: every entry takes two steps on a copy.  The reference's next three steps give the seconds of a turn.
    leader = next(place for place, entry in enumerate(record.entries) if entry.competitor == record.reference)
    turn_seconds = 0.0
    for place, entry in enumerate(record.entries):
        if signals.received is not None:
            break
        trial = new_run(entry)
        trial.advance(steps=_WARM_UP)
        if place == leader:
            before = trial.seconds
            trial.advance(steps=_WARM_UP + _TRIAL)
            taken = max(1, trial.run.state.steps - _WARM_UP)
            turn_seconds = (trial.seconds - before) / taken * trial.steps / problem.rows
    # All start from the same weights, so that one evaluation serves all.
    runs = [new_run(entry, signals) for entry in record.entries]
    runs[0].record()
    for run in runs[1:]:
        run.rows, run.outcome, run.message = list(runs[0].rows), runs[0].outcome, runs[0].message
    # In each turn every run advances until its clock shows turn * turn_seconds.
    turn = 0
    while signals.received is None and any(not run.outcome for run in runs):
        turn += 1
        for place in range(len(runs)):
            run = runs[(place + turn + seed) % len(runs)]  # the first of one turn is the last of the next
            late = turn_seconds > 0.0 and run.seconds >= turn * turn_seconds  # a long step took this turn's time too
            if not (run.outcome or late or signals.received is not None):
                run.advance(seconds=turn * turn_seconds)
                run.record()
        # A run ends at `budget` times the time that the reference takes for all its steps.
        reference = runs[leader]
        expected = reference.seconds / reference.fraction if reference.fraction else problem.rows * turn_seconds
        for run in runs:
            if run.seconds >= budget * expected:
                run.end(Outcome.STOPPED, f"The time was over, {budget:g} times that of {record.reference}.")
        show(min(_part(run, budget * expected) for run in runs))
    traces: list[RunRecord] = [
        {"entry": entry.name, "rows": run.rows, "outcome": run.outcome, "message": run.message}
        for entry, run in zip(record.entries, runs, strict=True)
    ]
    whole = signals.received is None
    return {"problem": problem.name, "seed": seed, "whole": whole, "load": _load(), "traces": traces}


def _part(run: TimedRun, limit: float) -> float:
    """The fraction of a run that is done."""
    return 1.0 if run.outcome else max(run.fraction, min(1.0, run.seconds / limit) if limit > 0.0 else 0.0)


def _load() -> float | None:
    load = load_average()
    return load if math.isfinite(load) else None
