"""How the default solver does outside the race: other data, other seeds, settings that are off.

    python benchmarks/robustness.py [--rounds 10] [--epochs 60] [--json FILE]

Two parts, neither of which is about time.

- Three sets of scikit-learn: the default of `fit` beside Adam's defaults, same initial weights, batches of 32 and
  epochs.  Training objective; test error (squared, or in per cent), the lowest after any epoch and the last; medians
  over the seeds.
- A sparse autoencoder of the digits, with 128 units in each layer: step size, trust limit, both dampings and nudge each
  a factor 3 and 10 off, as a ratio to the objective with the defaults after the same epochs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.solvers import Outcome, Solver
from lifted_bregman.training import default_solver

BATCH = 32
FACTORS = (0.1, 1 / 3, 3.0, 10.0)
SETTINGS = ("step_size", "trust", "damping", "narrow_damping", "nudge")
COLUMNS = ("objective", "lowest error", "last error")
_TEST_SHARE = 0.25


class Table(NamedTuple):
    """A data set of rows, with standardised inputs."""

    name: str
    widths: tuple[int, ...]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def tables() -> Iterator[Table]:
    """Digits, diabetes (a regression) and breast cancer."""
    from sklearn import datasets

    for name, load, hidden, classes in (
        ("digits", datasets.load_digits, (64, 32), 10),
        ("diabetes", datasets.load_diabetes, (32, 16), None),
        ("breast cancer", datasets.load_breast_cancer, (32, 16), 2),
    ):
        X, y = (torch.as_tensor(part) for part in load(return_X_y=True))
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
        cut = round(_TEST_SHARE * len(X))
        test, train = order[:cut], order[cut:]
        mean, spread = X[train].mean(0), X[train].std(0)
        spread[spread == 0.0] = 1.0
        X = ((X - mean) / spread).float()
        if classes is None:
            y = ((y - y[train].mean()) / y[train].std()).float()[:, None]
        widths = (X.shape[1], *hidden, classes or 1)
        yield Table(name, widths, (X[train], y[train]), (X[test], y[test]))


def network(widths: tuple[int, ...], seed: int, code: int | None = None, alpha: float = 0.09) -> nn.Sequential:
    """Glorot's uniform weights, biases 0, ReLU between the layers and a soft threshold for a code."""
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = []
    for layer, (below, width) in enumerate(pairwise(widths), start=1):
        linear = nn.Linear(below, width)
        nn.init.xavier_uniform_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
        modules += [linear, nn.Softshrink(alpha) if layer == code else nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def on_table(table: Table, solver: Solver[Any], seed: int, epochs: int) -> tuple[float, float, float]:
    """(training objective after the epochs, lowest test error, last test error)."""
    problem = lb.lift(network(table.widths, seed), loss=lb.SquaredError())
    result = lb.fit(
        problem, table.train, solver, epochs=epochs, batch_size=BATCH, seed=seed, validation=table.test, record_every=1
    )
    classify = table.test[1].ndim == 1
    errors = [
        100.0 * (1.0 - row["validation_accuracy"]) if classify else 2.0 * row["validation"] for row in result.history
    ]
    return result.history[-1]["objective"], min(errors), errors[-1]


def unseen(seeds: int, epochs: int) -> list[dict[str, Any]]:
    """One row for each set."""
    rows = []
    for table in tables():
        row: dict[str, Any] = {"set": table.name, "widths": table.widths, "seeds": seeds}
        for name, solver in {"lifted": default_solver(), "adam": lb.baselines.Adam()}.items():
            found = [on_table(table, solver, seed, epochs) for seed in range(seeds)]
            for what, values in zip(COLUMNS, zip(*found, strict=True), strict=True):
                row[f"{name} {what}"], row[f"{name} {what}, all"] = median(values), values
        rows.append(row)
    return rows


def autoencoder(solver: Solver[Any], X: Tensor, epochs: int, seed: int) -> float:
    """Training objective of a sparse autoencoder; inf if it diverged."""
    model = network((X.shape[1], 128, 128, 128, X.shape[1]), seed, code=2)
    problem = lb.lift(model, loss=lb.SquaredError(), penalties={2: lb.penalties.L1(0.09)})
    result = lb.fit(problem, (X, X), solver, epochs=epochs, batch_size=BATCH, seed=seed, record_every=epochs)
    objective: float = result.history[-1]["objective"] if result.history else math.inf
    return objective if result.outcome is not Outcome.DIVERGED else math.inf


def off(X: Tensor, epochs: int, seeds: int) -> list[dict[str, Any]]:
    """One row for each setting and factor; the ratio is the median over the seeds."""
    default = lb.GramSweep()
    start = [autoencoder(default, X, epochs, seed) for seed in range(seeds)]
    rows: list[dict[str, Any]] = [{"setting": "defaults", "factor": 1.0, "objective": start}]
    for name in SETTINGS:
        for factor in FACTORS:
            other = dataclasses.replace(default, **{name: factor * getattr(default, name)})
            values = [autoencoder(other, X, epochs, seed) for seed in range(seeds)]
            ratio = median(value / base for value, base in zip(values, start, strict=True))
            rows.append({"setting": name, "factor": factor, "ratio": ratio, "objective": values})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="seeds (10); a third of them for the autoencoder")
    parser.add_argument("--epochs", type=int, default=60, help="of every run (60)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    from sklearn.datasets import load_digits

    rows = unseen(given.rounds, given.epochs)
    print(f"{'set':<15}" + "".join(f"{f'{name} {what}':>22}" for what in COLUMNS for name in ("lifted", "adam")))
    for row in rows:
        numbers = (row[f"{name} {what}"] for what in COLUMNS for name in ("lifted", "adam"))
        print(f"{row['set']:<15}" + "".join(f"{number:>22.4g}" for number in numbers))
    X = torch.as_tensor(load_digits().data / 16.0).float()
    shifted = off(X - X.mean(0), given.epochs, max(1, given.rounds // 3))
    for row in shifted[1:]:
        print(f"{row['setting']:<12} x {row['factor']:<6.3g} objective {row['ratio']:.3f} of the default's")
    if given.json:
        given.json.write_text(json.dumps({"unseen": rows, "off": shifted}, indent=1) + "\n")


if __name__ == "__main__":
    main()
