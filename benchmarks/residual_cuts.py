"""Three ways to lift a residual network h_k = h_{k-1} + ReLU(W_k h_{k-1} + b_k), and which of them trains best.

    python benchmarks/residual_cuts.py [--rounds 3] [--blocks 4 8] [--threads 1] [--json FILE]

- variables: u_k = ReLU(..) and the stream h_k are variables: B(u_k, z_k) + ½‖h_k - h_{k-1} - u_k‖².
- derived: only the u_k are variables, and h_k = X + u_1 + .. + u_k is added up in each term that reads it: B(u_k, z_k).
- paper: only the h_k are variables: B(h_k - h_{k-1}, z_k).  It is no term of the library, since two variables meet in
  the first argument of B, and is written out below.  Its h_k lies between h_{k-1} and h_{k+1} in every entry: where
  both ReLUs are off all three are equal, and h_k cannot move.

Digits of scikit-learn with a squared error, `ProximalGradient` on 400 samples and `ImplicitSGD` on batches of 100, with
the same weights, samples and sweeps.  All energies are equal at the start.  Each row has the energy and objective after
the same number of sweeps, the processor time of a sweep, and the objective after the same processor time: that of all
sweeps with streams as variables, or all sweeps where these take less.  Medians over the seeds.  The paper's cut is
written for this network alone, and has less to look up than the library.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from _tables import plain
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.graph import Streams
from lifted_bregman.solvers import Batch, CurvatureStep

SAMPLES, BATCH = 400, 100
SWEEPS, EPOCHS, INNER = 100, 5, 15
WEIGHT = 1.0  # τ of ImplicitSGD


class Residual(nn.Module):
    """Blocks h + ReLU(W h + b) on the pixels themselves, and a linear layer; the branches are 1/√blocks long."""

    def __init__(self, blocks: int, seed: int, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.head = nn.Linear(width, classes)
        generator = torch.Generator().manual_seed(seed)
        for layer in (*self.blocks, self.head):
            nn.init.normal_(layer.weight, std=width**-0.5, generator=generator)
            nn.init.zeros_(layer.bias)
        for layer in self.blocks:
            layer.weight.data.mul_(blocks**-0.5)

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.blocks:
            h = h + torch.relu(layer(h))
        z: Tensor = self.head(h)
        return z


class Reached(NamedTuple):
    """Where a run stands after some steps: processor time in its steps, lifted energy, objective of the network."""

    seconds: float
    energy: float
    objective: float


class PaperCut:
    """The energy whose variables are the h_k, with proximal gradient steps on its blocks, for ReLU.

    (1/s) Σ_i [ ½‖y - z_L‖² + Σ_k B(h_k - h_{k-1}, z_k) ] + (τ/2)‖Θ - Θ⁰‖²          z_k = f_k(h_{k-1})

    With u = h_{k+1} - h_k and d = ReLU(z_{k+1}) - u, the smooth part in h_k has the gradient W_{k+1}ᵀ d + z_{k+1} - z_k
    and the rest is ½‖h_k - h_{k-1}‖² + ½‖h_{k+1} - h_k‖² on h_{k-1} <= h_k <= h_{k+1}, where ReLU's φ is finite.  The
    product <h_k, W_{k+1} h_k> makes it non-convex: steps are 1/(‖W‖² + ‖W + Wᵀ‖), after which the energy is not larger.
    """

    def __init__(self, model: Residual, X: Tensor, Y: Tensor, tau: float = 0.0) -> None:
        self.layers: list[nn.Linear] = [*model.blocks, model.head]  # type: ignore[list-item]
        self.Y, self.tau = Y, tau
        self.h = [X]
        for layer in self.layers[:-1]:
            self.h.append(self.h[-1] + torch.relu(layer(self.h[-1])))
        self.anchor = [(layer.weight.clone(), layer.bias.clone()) for layer in self.layers]

    def z(self, k: int) -> Tensor:
        """z_{k+1}: what the layer above h_k computes."""
        value: Tensor = self.layers[k](self.h[k])
        return value

    def residual(self, k: int) -> Tensor:
        """d of the term above h_k."""
        if k == len(self.layers) - 1:
            return self.z(k) - self.Y
        return torch.relu(self.z(k)) - (self.h[k + 1] - self.h[k])

    def energy(self) -> float:
        """Without the quadratic term."""
        total = 0.5 * self.residual(len(self.layers) - 1).square().sum()
        for k in range(len(self.layers) - 1):
            total += lb.bregman_loss(self.h[k + 1] - self.h[k], self.z(k), lb.activations.ReLU()).sum()
        return float(total) / len(self.Y)

    def sweep(self) -> None:
        """Θ and the variable below it, from the top down."""
        for k in reversed(range(len(self.layers))):
            self.move_parameters(k)
            if k:
                self.move_variable(k)

    def move_parameters(self, k: int) -> None:
        A = torch.cat((self.h[k], torch.ones(len(self.Y), 1)), 1)
        t = 1.99 / (float(torch.linalg.matrix_norm(A, 2)) ** 2 / len(A) + self.tau)
        gradient = self.residual(k).t() @ A / len(A)
        moved = (self.layers[k].weight, gradient[:, :-1]), (self.layers[k].bias, gradient[:, -1])
        for (p, own), start in zip(moved, self.anchor[k], strict=True):
            p.sub_(own + self.tau * (p - start), alpha=t)

    def move_variable(self, k: int) -> None:
        W, h, below = self.layers[k].weight, self.h[k], self.h[k - 1]
        top, curvature = k == len(self.layers) - 1, float(torch.linalg.matrix_norm(W, 2)) ** 2
        gradient = self.residual(k) @ W - self.layers[k - 1](below)
        if top:
            t = 1.99 / curvature
            v = (h - t * gradient + t * below) / (1.0 + t)
            self.h[k] = torch.maximum(v, below)
            return
        gradient += self.z(k)
        t = 1.0 / (curvature + float(torch.linalg.matrix_norm(W + W.t(), 2)))
        v = (h - t * gradient + t * (below + self.h[k + 1])) / (1.0 + 2.0 * t)
        self.h[k] = torch.minimum(torch.maximum(v, below), self.h[k + 1])


def digits() -> tuple[Tensor, Tensor]:
    """The first samples, with pixels centred and of variance 1 on average, and one-hot targets."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = torch.as_tensor(X[:SAMPLES], dtype=torch.float32)
    X = X - X.mean(0)
    return X / X.std(), nn.functional.one_hot(torch.as_tensor(y[:SAMPLES]), 10).float()


def deterministic(streams: Streams | None, blocks: int, seed: int, sweeps: int) -> Iterator[Reached]:
    """`ProximalGradient` on all samples; `streams` is None for the paper's cut."""
    model, (X, Y) = Residual(blocks, seed), digits()
    problem = lb.lift(model, loss=lb.SquaredError(), streams=streams or Streams.VARIABLES)
    batch = Batch.whole(problem, X, Y)
    if streams is None:
        own = PaperCut(model, X, Y)
        yield from _follow(sweeps, own.sweep, own.energy, lambda: float(problem.objective(X, Y)))
        return
    solver = lb.ProximalGradient(step_rule=CurvatureStep(1.99, upper=False))
    state = solver.init(problem, batch)

    def energy() -> float:
        assert state.variables is not None
        return float(problem.energy(state.variables, X, Y))

    step = lambda: solver.step(problem, state, batch)  # noqa: E731
    yield from _follow(sweeps, step, energy, lambda: float(problem.objective(X, Y)))


def stochastic(streams: Streams | None, blocks: int, seed: int, epochs: int) -> Iterator[Reached]:
    """`ImplicitSGD`; the energy is that of the last batch after its inner sweeps."""
    model, (X, Y) = Residual(blocks, seed), digits()
    problem = lb.lift(model, loss=lb.SquaredError(), streams=streams or Streams.VARIABLES)
    whole = Batch.whole(problem, X, Y)
    batches = [whole.slice(start, start + BATCH) for start in range(0, SAMPLES, BATCH)]
    solver = lb.ImplicitSGD(prox_weight=WEIGHT, inner_steps=INNER)
    state = solver.init(problem, batches[0])
    last: list[PaperCut] = []

    def epoch() -> None:
        for batch in batches:
            if streams is not None:
                solver.step(problem, state, batch)
                continue
            last[:] = [PaperCut(model, batch.X, batch.Y, WEIGHT)]
            for _ in range(INNER):
                last[0].sweep()

    def energy() -> float:
        if last:
            return last[0].energy()
        assert state.variables is not None
        return float(problem.energy(state.variables, batches[-1].X, batches[-1].Y))

    yield from _follow(epochs, epoch, energy, lambda: float(problem.objective(X, Y)))


def _follow(
    steps: int, step: Callable[[], object], energy: Callable[[], float], objective: Callable[[], float]
) -> Iterator[Reached]:
    seconds = 0.0
    for _ in range(steps):
        start = time.process_time()
        with torch.no_grad():
            step()
        seconds += time.process_time() - start
        with torch.no_grad():
            yield Reached(seconds, energy(), objective())


CUTS = {"variables": Streams.VARIABLES, "derived": Streams.DERIVED, "paper": None}
RUNS = {
    "ProximalGradient": (deterministic, SWEEPS, 1),
    "ImplicitSGD": (stochastic, EPOCHS, INNER * SAMPLES // BATCH),
}


def measure(solver: str, blocks: int, rounds: int) -> list[dict[str, object]]:
    """A row for each cut."""
    run, steps, sweeps = RUNS[solver]
    paths = {name: [list(run(cut, blocks, seed, steps)) for seed in range(rounds)] for name, cut in CUTS.items()}
    budget = median(path[-1].seconds for path in paths["variables"])
    rows: list[dict[str, object]] = []
    for name, own in paths.items():
        timely = [next((r for r in reversed(path) if r.seconds <= budget), path[0]) for path in own]
        rows.append(
            {
                "solver": solver,
                "blocks": blocks,
                "cut": name,
                "sweeps": steps * sweeps,
                "energy": median(path[-1].energy for path in own),
                "objective": median(path[-1].objective for path in own),
                "milliseconds": 1e3 * median(path[-1].seconds for path in own) / (steps * sweeps),
                "objective at equal time": median(reached.objective for reached in timely),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="seeds")
    parser.add_argument("--blocks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [row for solver in RUNS for blocks in options.blocks for row in measure(solver, blocks, options.rounds)]
    shown = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    print(plain([list(rows[0]), *shown]))
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
