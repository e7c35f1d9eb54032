"""Variational regularisation of the parameters breaks network consistency; iterative regularisation does not.

A network 8 -> 7 -> 2 and six samples: fewer than width + 1 in each layer, so that without a penalty stationary
parameters mean consistent layers.  Run it for the table in docs/regularisation.md.
"""

import sys
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch, BregmanIterations, Nesterov, ProximalGradient, sparse_start

VARIATIONAL = (0.02, 0.05, 0.1)
ITERATIVE = (0.1, 0.3, 1.0)


class Row(NamedTuple):
    regularisation: str
    weight: float
    gap: float
    """‖x_1 - σ(z_1)‖ / ‖σ(z_1)‖."""
    certificate: float
    zeros: float
    """The fraction of weights that are zero."""
    loss: float
    """Of the network itself, by a forward pass."""


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    return X, torch.randn(6, 2, generator=generator, dtype=torch.float64)


def network() -> nn.Sequential:
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def train(solver, steps, penalties=None):
    """The problem and its variables after `steps` steps from the same sparse start."""
    problem = lb.lift(network(), loss=lb.SquaredError(), parameter_penalties=penalties)
    sparse_start(problem, density=0.25, seed=0)
    solver.require(problem)
    batch = Batch.whole(problem, *data())
    state = solver.init(problem, batch)
    for _ in range(steps):
        state = solver.step(problem, state, batch)
    return problem, state.variables


@cache
def variational(weight):
    penalties = {layer: lb.penalties.L1(weight) for layer in (1, 2)}
    return train(ProximalGradient(acceleration=Nesterov()), 600, penalties)


@cache
def iterative(weight):
    penalties = {layer: lb.penalties.L1(weight) for layer in (1, 2)}
    return train(BregmanIterations(parameter_penalties=penalties, factor=1.9), 1000)


def row(name, weight, problem, variables):
    X, Y = data()
    weights = [p for p in problem.model.parameters() if p.ndim > 1]
    zeros = sum(int((W == 0).sum()) for W in weights) / sum(W.numel() for W in weights)
    (gap,) = problem.consistency(variables, X)
    with torch.no_grad():
        loss = float(lb.SquaredError()(problem.model(X), Y))
    return Row(name, weight, gap, problem.certificates(variables, X, Y).largest, zeros, loss)


def rows() -> list[Row]:
    found = [row("variational", weight, *variational(weight)) for weight in VARIATIONAL]
    return found + [row("iterative", weight, *iterative(weight)) for weight in ITERATIVE]


def table(found: list[Row]) -> str:
    lines = [
        "| regularisation | weight | consistency gap | weights that are zero | loss of the network |",
        "|---|---|---|---|---|",
    ]
    for r in found:
        gap = f"{r.gap:.3f}" if r.gap > 1e-6 else "below 1e-6"
        loss = f"{r.loss:.3f}" if r.loss > 1e-6 else "below 1e-6"
        lines.append(f"| {r.regularisation} | {r.weight:g} | {gap} | {100 * r.zeros:.0f} % | {loss} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table(rows()) + "\n")
