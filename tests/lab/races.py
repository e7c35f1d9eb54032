"""A tiny problem, competitors whose steps take a known time, and races written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch

from lifted_bregman.experiments.settings import Settings
from lifted_bregman.solvers import Solver, SolverState
from lifted_bregman_lab.race.competitors import Competitor
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.rates import Choice, Rates
from lifted_bregman_lab.race.results import Entry, ProblemRecord, Race

CLASSIFIER = RaceProblem(
    "tiny",
    "sixty digits, 64-5-10",
    Settings(data="digits-60", hidden=(5,), loss="squared-error", epochs=4, batch_size=20),
    validation_samples=30,
    rows=4,
)
AUTOENCODER = RaceProblem(
    "tiny-code",
    "fifty digits, 64-8-6-8-64",
    Settings(data="digits-50", task="autoencode", hidden=(8, 6, 8), code_penalty=0.05, epochs=3, batch_size=20),
    validation_samples=20,
    rows=3,
)


def steady() -> SimpleNamespace:
    """For `time` in a module: every look at the clock takes a millisecond, however busy the machine is."""
    ticks = count()
    return SimpleNamespace(perf_counter=lambda: next(ticks) * 1e-3)


class Clock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 100.0

    @contextmanager
    def installed(self, monkeypatch: Any) -> Iterator[Clock]:
        from lifted_bregman.solvers import _loop

        with monkeypatch.context() as patch:
            patch.setattr(_loop, "time", SimpleNamespace(perf_counter=lambda: self.now))
            yield self


class Paced(Solver[SolverState]):
    """Steps of a known duration that shrink the weights; everything it sees is written to `log`."""

    minibatch = True
    weighted = True

    def __init__(self, name: str, clock: Clock, seconds: float, log: list[Any], on_step: Any = None) -> None:
        self.name, self.clock, self.seconds, self.log, self.on_step = name, clock, seconds, log, on_step

    def __repr__(self) -> str:
        return f"Paced({self.name}, {self.seconds})"

    def init(self, problem: Any, batch: Any) -> SolverState:
        self.log.append(("start", self.name, [p.detach().clone() for p in problem.model.parameters()]))
        return SolverState()

    def attach(self, problem: Any, state: SolverState) -> None:
        self.log.append(("attach", self.name))

    def step(self, problem: Any, state: SolverState, batch: Any) -> SolverState:
        self.log.append(("step", self.name, state.steps, batch.index.tolist()))
        self.clock.now += self.seconds
        if self.on_step is not None:
            self.on_step(self, problem, state)
        with torch.no_grad():
            for parameter in problem.model.parameters():
                parameter.mul_(0.99)
        state.steps += 1
        return state

    def finish(self, problem: Any, state: SolverState) -> None:
        raise AssertionError("a race is not over when a turn is")


def paced(
    name: str, clock: Clock, seconds: float, log: list[Any], kind: Any = "lifted", on_step: Any = None
) -> Competitor:
    return Competitor(name, name.upper(), kind, lambda _: Paced(name, clock, seconds, log, on_step))


def rates(problem: RaceProblem, **values: float) -> Rates:
    """The same choice by both criteria."""
    chosen = {
        name.replace("_", "-"): dict.fromkeys(("objective", "validation"), Choice(value, problem.batch_size))
        for name, value in values.items()
    }
    return Rates({problem.name: chosen}, {"note": "by hand"})


# A race by hand.  Columns of a row: seconds, epoch, objective, validation error, sparsity.

Numbers = list[tuple[float, float, float, float, float]]


def run_of(race: Race, entry: str, repetition: int = 0) -> Any:
    """The run of an entry in a repetition."""
    return next(run for run in race.repetitions[repetition]["traces"] if run["entry"] == entry)


def run_by_hand(name: str, rows: Numbers, outcome: str = "FINISHED") -> dict[str, Any]:
    names = ("seconds", "epoch", "objective", "validation_error", "sparsity")
    made = [dict(zip(names, row, strict=True)) | {"step": float(number)} for number, row in enumerate(rows)]
    return {"entry": name, "rows": made, "outcome": outcome, "message": f"how {name} ended"}


def entry(name: str, competitor: str, *chosen_by: str) -> Entry:
    tuned = ("learning_rate", 0.01, (0.001, 0.01, 0.1), (5, 10, 20)) if chosen_by else ("", None, (), (10,))
    return Entry(name, competitor, f"title of {name}", "lifted", chosen_by, "S()", 10, *tuned)


def by_hand(classify: bool = False) -> Race:
    """Two repetitions of one problem.

    In the first the objective tuned reference ends at 2.0, which it has at 8 s already.  The validation tuned one has
    its lowest error 0.3, with 0.5 zeros, at 6 s.
    """
    start = (0.0, 0.0, 9.0, 0.9, 0.0)
    first = [
        run_by_hand(
            "lifted", [start, (2.0, 1.0, 4.0, 0.30, 0.4), (4.0, 2.0, 2.0, 0.25, 0.5), (6.0, 3.0, 1.0, 0.4, 0.6)]
        ),
        run_by_hand("slow", [start, (9.0, 0.2, 8.0, 0.80, 0.9), (15.0, 0.4, 7.0, 0.7, 0.9)], "STOPPED"),
        run_by_hand("adam", [start, (4.0, 1.0, 3.0, 0.60, 0.7), (8.0, 2.0, 1.9, 0.5, 0.7), (10.0, 2.5, 2.0, 0.6, 0.7)]),
        run_by_hand("adam-validation", [start, (6.0, 2.0, 4.0, 0.30, 0.5), (9.0, 3.0, 3.5, 0.4, 0.5)]),
    ]
    second = [
        run_by_hand("lifted", [start, (2.0, 1.0, 5.0, 0.50, 0.2), (6.0, 3.0, 3.0, 0.20, 0.1)]),
        run_by_hand("slow", [start], "DIVERGED"),
        run_by_hand("adam", [start, (5.0, 1.0, 4.0, 0.50, 0.7), (12.0, 2.5, 3.0, 0.6, 0.7)]),
        run_by_hand("adam-validation", [start, (8.0, 2.0, 4.0, 0.20, 0.5), (9.0, 3.0, 3.5, 0.3, 0.5)]),
    ]
    entries = (
        entry("lifted", "lifted"),
        entry("slow", "slow", "objective", "validation"),
        entry("adam", "adam", "objective"),
        entry("adam-validation", "adam", "validation"),
    )
    settings = {"data": "d", "hidden": [3], "task": "classify" if classify else "autoencode"}
    problem = ProblemRecord("p", "the problem", classify, 3, 10, 100, 50, "From nowhere.", settings, "adam", entries)
    repetitions = (
        {"problem": "p", "seed": 0, "whole": True, "load": 1.25, "traces": first},
        {"problem": "p", "seed": 1, "whole": True, "load": None, "traces": second},
    )
    return Race((problem,), repetitions, {"torch": "9", "threads": "2"}, 0.1, 1.5, False, {"note": "by hand"})
