"""One run of the race, which stops after each of its turns and goes on with the next: only its steps are timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers import Batch, Callback, Outcome, Run, Solver, SolverState
from lifted_bregman.solvers._history import measured
from lifted_bregman_lab.race.problems import RaceData

_AT_ONCE = 4096  # samples evaluated together


class Lane:
    """A run in turns.

    Args:
        problem: with its initial weights.
        solver: one that takes batches.
        samples: what it trains on and is judged by.
        epochs: passes over the data, >= 1.
        batch_size: samples of a step, >= 1.
        seed: of the order of the samples.
        classify: whether the validation error is that of classes.
        callbacks: told of every step too.
    """

    def __init__(
        self,
        problem: LiftedProblem,
        solver: Solver[Any],
        samples: RaceData,
        *,
        epochs: int,
        batch_size: int,
        seed: int,
        classify: bool,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        train = Batch.whole(problem, *samples.train)
        self._turn = _Turn(epochs * -(-len(train) // batch_size))
        self._classify = classify
        self._validation = Batch.whole(problem, *samples.validation)
        # An epoch more than it takes, for the run itself evaluates after the last one, and does so at length.
        self.run = Run(
            problem,
            _Unfinished(solver),
            train,
            epochs=epochs + 1,
            batch_size=batch_size,
            seed=seed,
            record_every=epochs + 1,
            callbacks=[self._turn, *callbacks],
            measure_start=False,
        )
        self.epochs = epochs
        self.rows: list[dict[str, float]] = []
        self.outcome = ""
        """How it ended, in a word; empty while it goes on."""
        self.message = ""

    @property
    def seconds(self) -> float:
        """In steps."""
        return self.run.seconds

    @property
    def fraction(self) -> float:
        """The part of its steps that is done."""
        return self.run.state.steps / self._turn.total

    @property
    def steps(self) -> int:
        """All that it takes."""
        return self._turn.total

    def advance(self, *, seconds: float = math.inf, steps: float = math.inf) -> None:
        """Takes steps until its clock shows `seconds` or it has taken `steps`, at least one, or all of its own."""
        self._turn.seconds, self._turn.steps = seconds, steps
        self.run.outcome = None
        result = self.run.execute()
        if result.outcome is Outcome.STOPPED:
            if self.run.state.steps >= self._turn.total:
                self.end(Outcome.FINISHED.name, Outcome.FINISHED.value)
        else:
            self.end(result.outcome.name, result.message)

    def end(self, outcome: str, message: str) -> None:
        """Says how it ended; the first word counts."""
        if not self.outcome:
            self.outcome, self.message = outcome, message

    def record(self) -> None:
        """Adds a row, unless there is one for this step already; a run that reached nothing finite has diverged."""
        if self.outcome == Outcome.DIVERGED.name or (self.rows and self.rows[-1]["step"] == self.run.state.steps):
            return
        row = {
            "step": float(self.run.state.steps),
            "epoch": self.fraction * self.epochs,
            "seconds": self.seconds,
            **measured(self.run.problem, self.run.data, self._classify),
            **self._judged(),
        }
        if all(map(math.isfinite, row.values())):
            self.rows.append(row)
        else:
            self.outcome = Outcome.DIVERGED.name
            self.message = f"{Outcome.DIVERGED.value} The objective is {row['objective']} after epoch {row['epoch']:g}."

    def _judged(self) -> dict[str, float]:
        problem, held_out = self.run.problem, self._validation
        if self._classify:
            reached = measured(problem, held_out, True)
            accuracy = reached["accuracy"]
            named = {"validation": reached["objective"], "validation_accuracy": accuracy}
            return named | {"validation_error": 1.0 - accuracy}
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(held_out), _AT_ONCE):
                piece = held_out.slice(start, start + _AT_ONCE)
                total += float((problem.model(piece.X) - piece.Y).square().mean()) * len(piece) / len(held_out)
        return {"validation_error": total}


class _Turn(Callback):
    """Stops the run at the end of its turn, between two steps."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.seconds = self.steps = math.inf

    def stepped(self, run: Run) -> None:
        taken = run.state.steps
        if taken >= min(self.steps, self.total) or run.seconds >= self.seconds:
            run.stop(Outcome.STOPPED, "Its turn is over.")


class _Unfinished(Solver[Any]):
    """A solver that is never told that a run has ended, for it has not: it goes on with the next turn."""

    def __init__(self, solver: Solver[Any]) -> None:
        self._solver = solver
        self.minibatch, self.weighted = solver.minibatch, solver.weighted  # type: ignore[misc]

    def require(self, problem: LiftedProblem) -> None:
        self._solver.require(problem)

    def init(self, problem: LiftedProblem, batch: Batch) -> SolverState:
        state: SolverState = self._solver.init(problem, batch)
        return state

    def step(self, problem: LiftedProblem, state: SolverState, batch: Batch) -> SolverState:
        moved: SolverState = self._solver.step(problem, state, batch)
        return moved

    def attach(self, problem: LiftedProblem, state: SolverState) -> None:
        self._solver.attach(problem, state)
