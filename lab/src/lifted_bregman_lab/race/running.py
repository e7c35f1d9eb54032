"""Running the race: repetitions, in each of which all competitors go from the same weights, in turns, by the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.environment import environment, load_average, threads
from lifted_bregman.solvers import Callback, Outcome
from lifted_bregman.training.signals import Signals
from lifted_bregman_lab.race._checks import check_settings
from lifted_bregman_lab.race.competitors import Competitor
from lifted_bregman_lab.race.continuing import require_part, require_same_samples
from lifted_bregman_lab.race.entries import Entry, enter, problem_record, reference_of
from lifted_bregman_lab.race.lanes import Lane
from lifted_bregman_lab.race.problems import RaceData, RaceProblem
from lifted_bregman_lab.race.rates import Rates
from lifted_bregman_lab.race.results import Heat, Race, Trace

Watch = Callable[[str, float], None]
"""Called with what is going on, and which part of everything is over."""
IDLE = 0.5  # a load above it means that somebody else is using the machine
_WARM_UP, _TRIAL = 2, 3  # steps before the clock counts, and those that show how long a step takes


@dataclass(frozen=True)
class RaceSettings:
    """What may be chosen.

    Args:
        repetitions: with the seeds first_seed, first_seed + 1, ..., >= 1.
        first_seed: >= 0.
        threads: of torch, >= 1; None for its own choice.
        budget: the most time of a run, as a multiple of the reference's, >= 1.
        data_dir: a folder that holds data sets; None for the cache.
    """

    repetitions: int = 5
    first_seed: int = 0
    threads: int | None = None
    budget: float = 1.5
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        check_settings(self, repetitions=1, first_seed=0)

    @property
    def seeds(self) -> range:
        """One for each repetition."""
        return range(self.first_seed, self.first_seed + self.repetitions)


def run_race(
    problems: Sequence[RaceProblem],
    competitors: Sequence[Competitor],
    rates: Rates,
    settings: RaceSettings,
    watch: Watch | None = None,
    *,
    stored: Race | None = None,
    keep: Callable[[Race], None] | None = None,
    signals: Signals | None = None,
) -> Race:
    """Runs every competitor on every problem, and returns all that was measured.

    Ctrl-C ends the race after the present step; what was done by then is returned.  A second one raises
    KeyboardInterrupt at once.

    Args:
        problems: at least one.
        competitors: at least one.
        rates: what each tuned competitor runs with.
        settings: what may be chosen.
        watch: called after every turn.
        stored: a part of the same race; its whole repetitions are not run again.
        keep: called after every repetition with the race so far.
        signals: those that end it, already listened to; Ctrl-C if None.
    """
    if not problems or not competitors:
        raise SettingError("a race needs at least one problem and one competitor: name them, or leave the names out.")
    entered = {problem.name: enter(problem, competitors, rates) for problem in problems}  # refuses before any work
    if stored is not None:
        require_part(stored, problems, competitors, rates, settings)
    reference = reference_of(competitors)
    records = {} if stored is None else {record.name: record for record in stored.problems}
    heats = {} if stored is None else {(heat.problem, heat.seed): heat for heat in stored.heats}
    wanted = [(problem, seed) for problem in problems for seed in settings.seeds]
    beginning = _load()
    loads = [beginning if stored is None else stored.load_before]  # of the beginnings that something was run after
    listening = Signals() if signals is None else nullcontext(signals)
    with listening as signals, threads(settings.threads):
        place = environment()

        def so_far() -> Race:
            done = tuple(heats[key] for problem, seed in wanted if (key := (problem.name, seed)) in heats)
            return Race(
                tuple(records[problem.name] for problem in problems if problem.name in records),
                done,
                place,
                max((load for load in loads if load is not None), default=None),
                settings.budget,
                sum(heat.whole for heat in done) < len(wanted),
                dict(rates.provenance),
            )

        for number, (problem, seed) in enumerate(wanted):
            key = (problem.name, seed)
            if signals.received is not None:
                break
            if key in heats and heats[key].whole:
                continue
            samples, entries = problem.load(seed, settings.data_dir), entered[problem.name]
            if problem.name in records:
                require_same_samples(records[problem.name], samples)

            def show(part: float, number: int = number, name: str = f"{problem.name}, seed {seed}") -> None:
                if watch is not None:
                    watch(name, (number + part) / len(wanted))

            heat = _heat(problem, entries, samples, seed, reference, settings.budget, signals, show)
            if not (heat.whole or any(len(trace.rows) > 1 for trace in heat.traces)):
                break  # interrupted before anything was reached
            heats[key] = heat
            loads.append(beginning)
            records.setdefault(problem.name, problem_record(problem, entries, reference, samples))
            if keep is not None:
                keep(so_far())
        return so_far()


def _heat(
    problem: RaceProblem,
    entries: Sequence[Entry],
    samples: RaceData,
    seed: int,
    reference: str,
    budget: float,
    signals: Signals,
    show: Callable[[float], None],
) -> Heat:
    def lane(entry: Entry, *callbacks: Callback) -> Lane:
        return Lane(
            problem.build(seed, samples),
            entry.solver,
            samples,
            epochs=problem.epochs,
            batch_size=entry.record.batch_size,
            seed=seed,
            classify=problem.classify,
            callbacks=callbacks,
        )

    leader_place = next(place for place, entry in enumerate(entries) if entry.record.competitor == reference)
    quantum = 0.0
    for place, entry in enumerate(entries):  # what is done for the first time takes longer, and nobody pays for it
        if signals.received is not None:
            break
        trial = lane(entry)
        trial.advance(steps=_WARM_UP)
        if place == leader_place:
            before = trial.seconds
            trial.advance(steps=_WARM_UP + _TRIAL)
            taken = max(1, trial.run.state.steps - _WARM_UP)
            quantum = (trial.seconds - before) / taken * trial.steps / problem.rows
    lanes = [lane(entry, signals) for entry in entries]
    leader = lanes[leader_place]
    lanes[0].record()
    for other in lanes[1:]:
        other.rows, other.outcome, other.message = list(lanes[0].rows), lanes[0].outcome, lanes[0].message
    turn = 0
    while signals.received is None and any(not lane.outcome for lane in lanes):
        turn += 1
        for place in range(len(lanes)):
            own = lanes[(place + turn + seed) % len(lanes)]  # whoever goes first in one turn goes last in the next
            late = quantum > 0.0 and own.seconds >= turn * quantum  # a long step took the time of this turn too
            if not (own.outcome or late or signals.received is not None):
                own.advance(seconds=turn * quantum)
                own.record()
        expected = leader.seconds / leader.fraction if leader.fraction else problem.rows * quantum
        for own in lanes:
            if own.seconds >= budget * expected:
                own.end(Outcome.STOPPED.name, f"The time was over, {budget:g} times that of {reference}.")
        show(min(_part(own, budget * expected) for own in lanes))
    whole = signals.received is None
    traces = tuple(
        Trace(entry.record.name, tuple(own.rows), own.outcome, own.message)
        for entry, own in zip(entries, lanes, strict=True)
    )
    return Heat(problem.name, seed, whole, _load(), traces)


def _part(lane: Lane, limit: float) -> float:
    """How much of its way a run has behind it."""
    return 1.0 if lane.outcome else max(lane.fraction, min(1.0, lane.seconds / limit) if limit > 0.0 else 0.0)


def _load() -> float | None:
    load = load_average()
    return load if math.isfinite(load) else None
