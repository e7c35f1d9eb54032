"""What `fit` adds to the steps of a 784-784-64-64-10 network at batch 100: sampler, callbacks, history.

    python benchmarks/training_loop.py [--rounds 30] [--threads 2] [--json FILE]

Each round trains 50 steps by `fit`, with validation, early stopping, a timer and progress lines, and 50 steps of the
same solver on batches that lie ready, in alternating order.  `fit` is timed from its first step to its last row.  The
evaluations, two forward passes over 5,000 samples here, are timed apart: the user asks for them, and how often.  Aim:
at most 1.05.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from _interleaved import arguments, ratios, report, sentence
from rich.console import Console
from torch import nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch, Run
from lifted_bregman.solvers._batches import epoch_batches

WIDTHS = (784, 784, 64, 64, 10)
SAMPLES, BATCH = 5000, 100


def problem() -> lb.LiftedProblem:
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for below, width in pairwise(WIDTHS):
        modules += [nn.Linear(below, width), nn.ReLU()]
    return lb.lift(nn.Sequential(*modules[:-1]), loss=lb.SquaredError())


class Evaluations:
    """Times the rows of a run, which `fit` spends outside its steps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._row = Run._row

    def __enter__(self) -> Evaluations:
        def timed(run: Run, last: Batch) -> dict[str, float]:
            start = time.perf_counter()
            row = self._row(run, last)
            self.seconds += time.perf_counter() - start
            return row

        Run._row = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *exception: object) -> None:
        Run._row = self._row  # type: ignore[method-assign]


class Clock(lb.callbacks.Callback):
    """The seconds from the start of a run to its end."""

    def started(self, run: Run) -> None:
        self.seconds = -time.perf_counter()

    def ended(self, run: Run) -> None:
        self.seconds += time.perf_counter()


def competitors() -> tuple[Callable[[], float], Callable[[], float], Callable[[], float]]:
    torch.manual_seed(0)
    X, y = torch.rand(SAMPLES, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (SAMPLES,))
    solver = lb.training.default_solver()
    fitted, bare = problem(), problem()
    batches = list(epoch_batches(Batch.whole(bare, X, y), BATCH, 0, 1))
    state = solver.init(bare, batches[0])
    evaluations = [0.0]

    def loop() -> float:
        clock = Clock()
        callbacks = [
            clock,
            lb.callbacks.EarlyStopping(patience=100),
            lb.callbacks.Timer(1e9),
            lb.callbacks.Progress(Console(file=io.StringIO())),
        ]
        with Evaluations() as spent:
            lb.fit(fitted, (X, y), solver, epochs=1, batch_size=BATCH, validation=(X, y), callbacks=callbacks)
        evaluations[0] = spent.seconds
        return clock.seconds - spent.seconds

    def steps() -> float:
        nonlocal state
        start = time.perf_counter()
        for batch in batches:
            state = solver.step(bare, state, batch)
        return time.perf_counter() - start

    return loop, steps, lambda: evaluations[0]


def main() -> None:
    given = arguments(__doc__, rounds=30)
    loop, steps, evaluation = competitors()
    result = ratios(loop, steps, given.rounds) | {"evaluation_ms": 1e3 * evaluation(), "limit": 1.05}
    count = SAMPLES // BATCH
    print(f"fit, per step      {result['ours_ms'] / count:.3f} ms")
    print(f"bare steps         {result['other_ms'] / count:.3f} ms")
    print(sentence(result, "at most 1.05"))
    print(f"one row of the history, on 2 x {SAMPLES} samples: {result['evaluation_ms']:.1f} ms")
    report(given, result)


if __name__ == "__main__":
    main()
