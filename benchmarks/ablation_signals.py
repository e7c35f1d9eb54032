"""What each part of the default solver brings: the lifted signals, the metric of the inputs, the average.

    python benchmarks/ablation_signals.py [--rounds 5] [--quick] [--json FILE]

Every run starts from the same weights and sees the same batches as the others of its seed.  Only one thing differs:

- lifted: `GramSweep` with its default settings;
- back-propagated: the same with σ'(z) g in place of (σ(z) - prox(z - ν g))/ν, g the signal from the layer above;
- no metric: damping=inf, so that a layer moves along its gradient;
- no average: average=0, so that the fast iterate is the network;
- Adam: back-propagation with torch's own rate 1e-3.

Nothing here is about time.  MNIST is downloaded unless it is on this machine (`lifted data get mnist`).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lifted_bregman as lb
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments import Settings, load_data
from lifted_bregman.experiments.build import build_problem
from lifted_bregman.graph.terms import sum_features
from lifted_bregman.problem.nested import differentiable_activation, differentiable_penalty
from lifted_bregman.solvers import Outcome, Solver
from lifted_bregman.solvers.gram.signal import Signal
from lifted_bregman.training import default_solver


class BackPropagated(lb.GramSweep):
    """`GramSweep` with the signals of back-propagation, the limit ν → 0: E_l = J_σᵀ(J_xᵀ E_{l+1} + ∂R_l(x_l)).

    Only for one inner step, since further ones use the target x_l⁺ of a lifted signal.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner_steps != 1:
            raise SettingError(f"inner_steps is {self.inner_steps}; back-propagated signals have no target: use 1.")

    def _signal(
        self,
        problem: lb.LiftedProblem,
        layer: int,
        x: Tensor,
        z: Tensor,
        g: Tensor,
        *unused: Any,
    ) -> Signal:
        own = problem.network[layer]
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            out = differentiable_activation(own, at)
            value = (out * g).sum()
            if layer in problem.penalties:
                value = value + sum_features(differentiable_penalty(problem.penalties[layer], own.arrange(out))).sum()
            (E,) = torch.autograd.grad(value, at)
        return Signal(E, _no_target)


def _no_target(H: Tensor) -> Tensor:
    raise AssertionError("back-propagated signals have no target")


SOLVERS: dict[str, Solver[Any]] = {
    "lifted": default_solver(),
    "back-propagated": BackPropagated(),
    "no metric": lb.GramSweep(damping=math.inf),
    "no average": lb.GramSweep(average=0.0),
    "Adam": lb.baselines.Adam(),
}


class Problem(NamedTuple):
    """Data, network, batches and epochs as `lifted train` takes them, and what is looked at."""

    name: str
    title: str
    settings: Settings
    validation_samples: int | None = None
    """The first so many of the test part; None for all."""

    @property
    def classify(self) -> bool:
        """Whether new samples are judged by the accuracy, in per cent; otherwise by the objective."""
        return self.settings.task == "classify"


def problems(quick: bool) -> list[Problem]:
    """The problems; the quick ones need no download."""
    code = Settings("digits", task="autoencode", prepare="centre", code_threshold=0.09, code_penalty=0.09)
    classes = Settings("digits", prepare="centre", loss="squared-error")
    digits = replace(code, hidden=(128,) * 3, batch_size=32, epochs=60)
    deep = replace(classes, hidden=(32,) * 12, batch_size=32, epochs=40)
    images = replace(code, data="mnist-1k", hidden=(784,) * 3, batch_size=20, epochs=20)
    wide = replace(classes, data="mnist-10k", hidden=(784, 64, 64), batch_size=100, epochs=8)
    found = [
        Problem("digits-autoencoder", "digits, sparse autoencoder 64-128-128-128-64", digits),
        Problem("digits-deep", "digits, classifier with 12 hidden layers of 32", deep),
        Problem("mnist-1k", "MNIST, 1,000 images, sparse autoencoder 784-784-784-784-784", images, 1000),
        Problem("mnist-10k", "MNIST, 10,000 images, classifier 784-784-64-64-10", wide),
    ]
    if not quick:
        return found
    return [p._replace(settings=replace(p.settings, data="digits-100", epochs=2)) for p in found[:2]]


def train(problem: Problem, solver: Solver[Any], seed: int) -> dict[str, float]:
    """What one run has reached: the training objective, and the last and the best value on new samples."""
    settings = replace(problem.settings, seed=seed).resolved()
    data = load_data(settings)
    assert data.validation is not None
    X, Y = (part[: problem.validation_samples] for part in data.validation)
    result = lb.fit(
        build_problem(settings, data.train[0].shape[1], data.outputs),
        data.train,
        solver,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        seed=seed,
        validation=(X, Y),
    )
    if result.outcome is Outcome.DIVERGED:
        raise SystemExit(f"{problem.name}, {solver}, seed {seed}: {result.message}")
    name, factor, best = ("validation_accuracy", 100.0, max) if problem.classify else ("validation", 1.0, min)
    new = [factor * row[name] for row in result.history]
    return {"objective": result.history[-1]["objective"], "best": best(new), "last": new[-1]}


def ablation(chosen: Sequence[Problem], seeds: int) -> list[dict[str, Any]]:
    """One row for each problem and solver, with the numbers of every seed."""
    rows = []
    for problem in chosen:
        for name, solver in SOLVERS.items():
            runs = [train(problem, solver, seed) for seed in range(seeds)]
            row: dict[str, Any] = {"problem": problem.name, "title": problem.title, "epochs": problem.settings.epochs}
            row |= {"classify": problem.classify, "solver": name}
            row |= {what: [run[what] for run in runs] for what in runs[0]}
            rows.append(row)
            print(line(row), flush=True)
    return rows


def line(row: Mapping[str, Any]) -> str:
    """A row of the table in docs/speed.md: medians, with the least and the most."""
    unit = " %" if row["classify"] else ""
    cells = [f"`{row['problem']}`", row["solver"], spread(row["objective"], ".3g")]
    form = ".2f" if row["classify"] else ".3g"
    cells += [spread(row[what], form) + unit for what in ("best", "last")]
    return f"| {' | '.join(cells)} |"


def spread(values: Sequence[float], form: str) -> str:
    """The median, with the least and the most."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="seeds (5)")
    parser.add_argument("--quick", action="store_true", help="100 digits and 2 epochs, to see that it runs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = ablation(problems(given.quick), given.rounds)
    if given.json:
        given.json.write_text(json.dumps({"rows": rows, "torch": torch.__version__}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
