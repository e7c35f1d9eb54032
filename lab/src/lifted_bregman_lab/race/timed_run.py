"""One run of a race or of its tuning, which pauses and resumes.  Only steps are timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from lifted_bregman.experiments.run_data import RunData
from lifted_bregman.solvers import Batch, Callback, Outcome, Run, Solver
from lifted_bregman.solvers._history import measured
from lifted_bregman.solvers._loop import Diverged, Stalled, require_finite
from lifted_bregman_lab.race.problems import RaceProblem

_AT_ONCE = 4096  # samples evaluated together


class TimedRun:
    """A run on a problem, from the initial weights of its seed.

    Args:
        problem: gives network and epochs.
        solver: one that takes batches.
        samples: training and validation samples.
        batch_size: samples of a step, >= 1.
        seed: of the weights and of the order of the samples.
        callbacks: called after every step.
    """

    def __init__(
        self,
        problem: RaceProblem,
        solver: Solver[Any],
        samples: RunData,
        *,
        batch_size: int,
        seed: int,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        assert samples.validation is not None
        lifted = problem.build(seed, samples)
        train = Batch.whole(lifted, *samples.train)
        self._validation = Batch.whole(lifted, *samples.validation)
        self._classify = problem.classify
        self.run = Run(
            lifted, solver, train, epochs=problem.epochs, batch_size=batch_size, seed=seed, callbacks=callbacks
        )
        assert self.run.source.batches is not None
        self.steps = problem.epochs * self.run.source.batches
        """Number of steps of the whole run."""
        self.rows: list[dict[str, float]] = []
        """One for each evaluation."""
        self.outcome = ""
        """The name of the `Outcome`; empty before the run has ended."""
        self.message = ""

    @property
    def seconds(self) -> float:
        """Seconds in steps so far, without evaluation."""
        return self.run.seconds

    @property
    def fraction(self) -> float:
        """The fraction of the steps that is done."""
        return self.run.state.steps / self.steps

    def advance(self, *, seconds: float = math.inf, steps: float = math.inf) -> None:
        """Take at least one step, until the clock shows `seconds`, `steps` are taken or the run has ended."""
        run, last = self.run, min(steps, self.steps)
        try:
            require_finite(run)
            while run.outcome is None:
                if run._epoch_over:
                    run._next_epoch()
                run._step()
                if run.state.steps >= last or run.seconds >= seconds:
                    break
        except Stalled as stalled:
            self.end(Outcome.STALLED, f"{Outcome.STALLED.value} {stalled}")
        except Diverged as diverged:
            self.end(Outcome.DIVERGED, f"{Outcome.DIVERGED.value} {diverged}.")
        if run.state.steps >= self.steps:
            self.end(Outcome.FINISHED, Outcome.FINISHED.value)
        elif run.outcome is not None:
            self.end(run.outcome, run.message)

    def end(self, outcome: Outcome, message: str) -> None:
        """Set outcome and message, unless the run has ended already."""
        if not self.outcome:
            self.outcome, self.message = outcome.name, message

    def record(self) -> None:
        """Add a row, unless this step has one; a row that is not finite ends the run as diverged."""
        if self.outcome == Outcome.DIVERGED.name or (self.rows and self.rows[-1]["step"] == self.run.state.steps):
            return
        row = {
            "step": float(self.run.state.steps),
            "epoch": self.fraction * self.run.epochs,
            "seconds": self.seconds,
            **measured(self.run.problem, self.run.data, self._classify),
            **self._validate(),
        }
        if all(map(math.isfinite, row.values())):
            self.rows.append(row)
        else:
            self.outcome = Outcome.DIVERGED.name
            self.message = f"{Outcome.DIVERGED.value} The objective is {row['objective']} after epoch {row['epoch']:g}."

    def _validate(self) -> dict[str, float]:
        """The fraction of wrong classes, or the mean squared error of the outputs, on the validation samples."""
        problem, held_out = self.run.problem, self._validation
        if self._classify:
            found = measured(problem, held_out, True)
            right = found["accuracy"]
            return {"validation": found["objective"], "validation_accuracy": right, "validation_error": 1.0 - right}
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(held_out), _AT_ONCE):
                piece = held_out.slice(start, start + _AT_ONCE)
                total += float((problem.model(piece.X) - piece.Y).square().mean()) * len(piece) / len(held_out)
        return {"validation_error": total}
