"""How long lifted solvers and back-propagation take to reach the same objective, on scikit-learn's digits.

Two networks: a classifier with ReLU and tanh, and an autoencoder with a soft-threshold code and an l1 penalty on it.
Each method may choose its step size from a grid by the time it needs itself, but for the library's default, which is
taken as it is.  The time is that of the processor in steps, on one thread.  A third table shows what a step size that
is too large does to the autoencoder.  Run it for the tables in docs/when-not.md; it takes about two minutes.
"""

import sys
import time
from typing import NamedTuple

import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data
from lifted_bregman.solvers import Callback, Outcome, Solver

LIMIT = 5.0  # seconds after which a run is given up
RATES = (1e-3, 3e-3, 1e-2)
SOLVERS = {
    "`baselines.Adam`": [lb.baselines.Adam(rate) for rate in RATES],
    "`baselines.SGD`": [lb.baselines.SGD(learning_rate=rate) for rate in (0.03, 0.1, 0.3)],
    "`GramSweep`, the default": [lb.GramSweep()],
    "`AdaBreg`": [lb.AdaBreg(step_size=rate) for rate in RATES],
    "`ImplicitSGD`, N = 3": [lb.ImplicitSGD(prox_weight=weight, inner_steps=3) for weight in (0.3, 1.0)],
    "`ImplicitSGD`, N = 15": [lb.ImplicitSGD(prox_weight=weight, inner_steps=15) for weight in (0.3, 1.0)],
    "`ProximalGradient`": [lb.ProximalGradient()],
}


class Row(NamedTuple):
    name: str
    solver: Solver
    seconds: float | None
    """To the target; None if it was not reached."""
    epochs: int
    objective: float
    sparsity: float


class Race(Callback):
    """Counts processor time in steps, and ends the run at the target."""

    def __init__(self, target: float) -> None:
        self.target, self.seconds, self.reached, self.mark = target, 0.0, False, 0.0

    def started(self, run) -> None:
        self.mark = time.process_time()

    def stepped(self, run) -> None:
        self.seconds += time.process_time() - self.mark
        self.mark = time.process_time()

    def recorded(self, run, row) -> None:
        self.mark = time.process_time()  # evaluation is not counted
        self.reached = row["objective"] <= self.target
        if self.reached or self.seconds > LIMIT:
            run.stop(Outcome.STOPPED, "The race is over.")


def classifier():
    torch.manual_seed(0)
    digits = data.load("digits").train
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    return lb.lift(model, loss=lb.CrossEntropy()), (digits.X, digits.y)


def autoencoder(seed: int = 0):
    torch.manual_seed(seed)
    X = data.load("digits").train.X
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.Softshrink(0.09),
        nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64),
    )  # fmt: skip
    return lb.lift(model, loss=lb.SquaredError(), penalties={2: lb.penalties.L1(0.09)}), (X, X)


def race(make, target: float, name: str, solver: Solver) -> Row:
    problem, samples = make()
    clock = Race(target)
    batch = 50 if solver.minibatch else None
    every = 1 if solver.minibatch else 5
    result = lb.fit(problem, samples, solver, epochs=3000, batch_size=batch, record_every=every, callbacks=[clock])
    last = result.history[-1]
    seconds = clock.seconds if clock.reached else None
    return Row(name, solver, seconds, int(last["epoch"]), last["objective"], last["sparsity"])


def best(make, target: float, name: str) -> Row:
    """The fastest of the grid; if none arrives, the one that came nearest."""
    rows = [race(make, target, name, solver) for solver in SOLVERS[name]]
    arrived = [row for row in rows if row.seconds is not None]
    return min(arrived, key=lambda row: row.seconds) if arrived else min(rows, key=lambda row: row.objective)


def table(make, target: float) -> str:
    lines = [f"| solver | seconds to {target:g} | epochs | objective reached | zeros |", "|---|---|---|---|---|"]
    for name in SOLVERS:
        row = best(make, target, name)
        seconds = f"not within {LIMIT:g}" if row.seconds is None else f"{row.seconds:.2f}"
        lines.append(f"| {row.name} | {seconds} | {row.epochs} | {row.objective:.3f} | {100 * row.sparsity:.0f} % |")
        sys.stderr.write(f"{row.solver}\n")
    return "\n".join(lines)


def after_20_epochs(solver: Solver, seed: int) -> tuple[float, float]:
    """Objective and sparsity of the autoencoder."""
    problem, samples = autoencoder(seed)
    last = lb.fit(problem, samples, solver, epochs=20, batch_size=50, record_every=20).history[-1]
    return last["objective"], last["sparsity"]


def rates_table() -> str:
    lines = ["| step size | Adam | code zero | lifted, `AdaBreg` | code zero |", "|---|---|---|---|---|"]
    for rate in (1e-3, 3e-3, 1e-2, 3e-2):
        cells = []
        for solver in (lb.baselines.Adam(rate), lb.AdaBreg(step_size=rate)):
            objectives, zeros = zip(*(after_20_epochs(solver, seed) for seed in range(3)), strict=True)
            cells += [f"{sum(objectives) / 3:.2f}", f"{100 * sum(zeros) / 3:.0f} %"]
        lines.append(f"| {rate:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for make, target in ((classifier, 0.1), (autoencoder, 0.6)):
        sys.stdout.write(f"{make.__name__}\n{table(make, target)}\n\n")
    sys.stdout.write(f"{rates_table()}\n")
