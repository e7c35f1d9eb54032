"""One layer and three for LinBreg and AdaBreg, random numbers by seed, steps in a row and a safe step size."""

from __future__ import annotations

import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def one_layer(inputs, outputs, samples, bias=False):
    """Underdetermined least squares, from Θ = 0."""
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=bias, dtype=F64))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return lb.lift(model, loss=lb.SquaredError()), randn(samples, inputs, seed=1), randn(samples, outputs, seed=2)


def deep(weights=(0.7, 1.6), seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    return lb.lift(model, loss=lb.SquaredError(), weights=weights), randn(20, 6, seed=3), randn(20, 3, seed=4)


def converge(solver, problem, X, Y, steps):
    batch = Batch.whole(problem, X, Y)
    solver.require(problem)
    state = solver.init(problem, batch)
    for _ in range(steps):
        state = solver.step(problem, state, batch)
    return state


def safe_step(X, scale, factor=1.9, bias=False):
    A = torch.cat([X, torch.ones(len(X), 1, dtype=F64)], 1) if bias else X
    return factor * len(X) / float(torch.linalg.matrix_norm(A, 2)) ** 2 / scale
