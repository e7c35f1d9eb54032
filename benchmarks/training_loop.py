"""What `fit` adds to the steps of a 784-784-64-64-10 network at batch 100: sampler, callbacks, history.

    python benchmarks/training_loop.py [--rounds 20] [--threads 2] [--json FILE]

Each round is one epoch of 100 steps by `fit`, with validation, early stopping, a timer and progress lines.  Time is
taken around every step of the solver, around every evaluation, and around the run from its first step to its last row:
what is in none of the first two is the loop's.  Evaluations are forward passes over the training and the validation
set; the user asks for them, and how often.  Aim: at most 0.05 of the steps.
"""

from __future__ import annotations

import io
import statistics
import time
from itertools import pairwise
from typing import Any

import torch
from _interleaved import arguments, report
from rich.console import Console
from torch import nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch, Run, Solver, SolverState, loop

WIDTHS = (784, 784, 64, 64, 10)
SAMPLES, BATCH = 10000, 100


class Clock:
    """Seconds spent inside a function, over all its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *values: Any) -> Any:
        start = time.perf_counter()
        result = self.function(*values)
        self.seconds += time.perf_counter() - start
        return result


class Timed(Solver[Any]):
    """A solver with a clock around its steps."""

    minibatch = True

    def __init__(self, solver: Solver[Any]) -> None:
        self.solver, self.clock = solver, Clock(solver.step)

    def init(self, problem: lb.LiftedProblem, batch: Batch) -> SolverState:
        return self.solver.init(problem, batch)

    def step(self, problem: lb.LiftedProblem, state: SolverState, batch: Batch) -> SolverState:
        return self.clock(problem, state, batch)


class Whole(lb.callbacks.Callback):
    """The seconds from the start of a run to its end, and those of its evaluations."""

    def started(self, run: Run) -> None:
        self._evaluate_row = loop.evaluate_row
        self.evaluation = loop.evaluate_row = Clock(loop.evaluate_row)
        self.seconds = -time.perf_counter()

    def ended(self, run: Run) -> None:
        self.seconds += time.perf_counter()
        loop.evaluate_row = self._evaluate_row


def problem() -> lb.LiftedProblem:
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for below, width in pairwise(WIDTHS):
        modules += [nn.Linear(below, width), nn.ReLU()]
    return lb.lift(nn.Sequential(*modules[:-1]), loss=lb.SquaredError())


def measure(rounds: int) -> dict[str, float]:
    trained = problem()
    X, y = torch.rand(SAMPLES, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (SAMPLES,))
    rows = []
    for number in range(rounds + 1):
        solver, whole = Timed(lb.training.default_solver()), Whole()
        callbacks = [
            whole,
            lb.callbacks.EarlyStopping(patience=100),
            lb.callbacks.Timer(1e9),
            lb.callbacks.Progress(Console(file=io.StringIO())),
        ]
        lb.fit(trained, (X, y), solver, epochs=1, batch_size=BATCH, seed=number, validation=(X, y), callbacks=callbacks)
        steps, evaluation = solver.clock.seconds, whole.evaluation.seconds
        rows.append((steps, evaluation, whole.seconds - steps - evaluation))
    fractions = sorted(loop / steps for steps, _, loop in rows[1:])  # the first round warms up
    count = SAMPLES // BATCH
    return {
        "step_ms": 1e3 * statistics.median(row[0] for row in rows[1:]) / count,
        "loop_ms": 1e3 * statistics.median(row[2] for row in rows[1:]) / count,
        "row_ms": 1e3 * statistics.median(row[1] for row in rows[1:]),
        "fraction": statistics.median(fractions),
        "fraction_10_percent": fractions[len(fractions) // 10],
        "fraction_90_percent": fractions[len(fractions) * 9 // 10],
        "limit": 0.05,
    }


def main() -> None:
    given = arguments(__doc__, rounds=20)
    result = measure(given.rounds)
    low, high = result["fraction_10_percent"], result["fraction_90_percent"]
    print(f"a step of the solver    {result['step_ms']:.3f} ms")
    print(f"the loop around it      {result['loop_ms']:.3f} ms")
    print(
        f"fraction                {result['fraction']:.3f}  (10 % to 90 %: {low:.3f} to {high:.3f}; aim: at most 0.05)"
    )
    print(f"a row of the history    {result['row_ms']:.1f} ms for 2 x {SAMPLES} samples")
    report(given, result)


if __name__ == "__main__":
    main()
