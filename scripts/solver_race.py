"""Solvers with their defaults on two small real networks: the table in docs/solvers.md.

    python scripts/solver_race.py                 print the table of the stored rows
    python scripts/solver_race.py --write         run all, and store rows and table in docs/figures
    python scripts/solver_race.py --only PrimalDual --write     run some anew, and keep the other rows

A classifier 64-32-10 on scikit-learn's digits, and an autoencoder 784-64-16-64-784 on 1,000 images of MNIST.  All start
from the same weights and see the same batches.  The time is processor time of the steps on one thread.  What `fit`
takes by itself has races of its own: `lifted bench race`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.solvers import Callback, Solver

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
EPOCHS, BATCH, SEEDS = 30, 50, 1
BATCHES = {"digits": 29, "mnist-1k": 20}
"""Batches of an epoch, from which PIAG's delay follows."""
Data = tuple[Tensor, Tensor]


def solvers_of(task: str) -> dict[str, Solver[Any]]:
    """Solvers with their defaults; where one has none for a setting, the number is in the name."""
    delay = 2 * BATCHES[task] - 2
    return {
        "StochasticADMM": lb.StochasticADMM(),
        "PrimalDual": lb.PrimalDual(),
        "RandomCoordinateDescent": lb.RandomCoordinateDescent(),
        "ImplicitSGD": lb.ImplicitSGD(),
        "ProximalGradient": lb.ProximalGradient(),
        "StochasticProximalGradient(0.1)": lb.StochasticProximalGradient(0.1),
        "PipelinedSweep(0.1)": lb.PipelinedSweep(0.1),
        "CoordinateDescent": lb.CoordinateDescent(),
        "BregmanCoordinateDescent": lb.BregmanCoordinateDescent(),
        "ADMM": lb.ADMM(),
        "Constrained": lb.Constrained(),
        "LinBreg(0.1)": lb.LinBreg(step_size=0.1),
        "AdaBreg": lb.AdaBreg(),
        "SAGA": lb.SAGA(),
        "SAG": lb.SAG(),
        f"PIAG({delay})": lb.PIAG(delay_bound=delay),
        "baselines.SGD(0.1)": lb.baselines.SGD(learning_rate=0.1),
        "baselines.Adam(0.001)": lb.baselines.Adam(learning_rate=1e-3),
    }


def digits(seed: int) -> tuple[lb.LiftedProblem, Data, Data]:
    """Classifier, training samples, new samples."""
    found = lb.data.load("digits")
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return lb.lift(model, loss=lb.CrossEntropy()), (found.train.X, found.train.y), (found.test.X, found.test.y)


def images(seed: int) -> tuple[lb.LiftedProblem, Data, Data]:
    """Autoencoder, training samples, new samples."""
    found = lb.data.load("mnist-5k").apply(lb.data.Subset(1000))
    X, new = found.train.X, found.test.X[:500]
    torch.manual_seed(seed)
    encoder = nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 16), nn.Tanh()
    decoder = nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 784)
    return lb.lift(nn.Sequential(*encoder, *decoder), loss=lb.SquaredError()), (X, X), (new, new)


TASKS: dict[str, Callable[[int], tuple[lb.LiftedProblem, Data, Data]]] = {"digits": digits, "mnist-1k": images}


class StepClock(Callback):
    """Processor time between the start of a step and its end, without evaluations."""

    def __init__(self) -> None:
        self.seconds, self._mark = 0.0, 0.0

    def started(self, run: Any) -> None:
        self._mark = time.process_time()

    def stepped(self, run: Any) -> None:
        now = time.process_time()
        self.seconds, self._mark = self.seconds + now - self._mark, now

    def recorded(self, run: Any, row: Any) -> None:
        self._mark = time.process_time()


def run(task: str, name: str, seed: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """One row: objective on the training samples and on new ones, and the seconds of the steps."""
    problem, samples, new = TASKS[task](seed)
    solver, clock = solvers_of(task)[name], StepClock()
    size = BATCH if solver.minibatch else None
    row: dict[str, Any] = {"task": task, "solver": name, "seed": seed, "epochs": epochs}
    try:
        result = lb.fit(
            problem, samples, solver, epochs=epochs, batch_size=size, seed=seed, record_every=epochs, callbacks=[clock]
        )
    except CompatibilityError as refused:
        return row | {"refused": str(refused)}
    return row | {
        "outcome": result.outcome.name,
        "objective": float(problem.objective(*samples)),
        "new": float(problem.objective(*new)),
        "seconds": clock.seconds,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means over the seeds, solvers in the order of their loss on the digits."""
    found: dict[str, dict[str, str]] = {}
    order: dict[str, float] = {}
    for name in dict.fromkeys(row["solver"] for row in rows):
        for task in TASKS:
            own = [row for row in rows if (row["solver"], row["task"]) == (name, task) and "objective" in row]
            if not own:
                continue
            key = name.split("(")[0] if name.startswith("PIAG") else name
            figures = [mean(row[what] for row in own) for what in ("objective", "new", "seconds")]
            found.setdefault(key, {})[task] = " | ".join(f"{value:.3g}" for value in figures)
            if task == "digits":
                order[key] = figures[0]
    head = "| solver | digits: loss | new samples | seconds | autoencoder: loss | new samples | seconds |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for key in sorted(found, key=lambda key: order.get(key, float("inf"))):
        cells = [found[key].get(task, "- | - | -") for task in TASKS]
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what is asked for, and prints or stores the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="run, and store rows and table")
    parser.add_argument("--only", nargs="*", help="the beginnings of the names of solvers to run; all by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = FIGURES / "solver_race.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if arguments.write:
        for task in TASKS:
            for name in solvers_of(task):
                if arguments.only and not name.startswith(tuple(arguments.only)):
                    continue
                rows = [row for row in rows if (row["task"], row["solver"]) != (task, name)]
                rows += [run(task, name, seed) for seed in range(SEEDS)]
                sys.stderr.write(f"{rows[-1]}\n")
                path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (FIGURES / "solver_race.inc").write_text(table(rows), encoding="utf-8")
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
