"""The same network twice, lifted and for brute force; its batches; a comparison of both."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.solvers.inner_steps import LayerByLayer, Sweeps
from tests.solvers.brute_force import Brute

F64 = torch.float64
MODULES = {
    "relu": nn.ReLU,
    "soft": lambda: nn.Softshrink(0.2),
    "tanh": nn.Tanh,
    "leaky": lambda: nn.LeakyReLU(0.3),
}
ORDERS = [LayerByLayer(), Sweeps()]


def build(widths, names, weights, bias=True, on_variables=None, on_weights=None, seed=0, spread=1.0):
    """The same network twice: lifted, and for brute force."""
    torch.manual_seed(seed)
    linears = [nn.Linear(a, b, bias=bias, dtype=F64) for a, b in pairwise(widths)]
    modules = [m for linear, name in zip(linears, names, strict=False) for m in (linear, MODULES[name]())]
    problem = lb.lift(
        nn.Sequential(*modules, linears[-1]),
        loss=lb.SquaredError(),
        weights=weights,
        penalties={l: lb.penalties.L1(a) for l, a in (on_variables or {}).items()},
        parameter_penalties={l: lb.penalties.L1(a) for l, a in (on_weights or {}).items()},
    )
    X = spread * torch.randn(12, widths[0], dtype=F64) + 0.3
    Y = torch.randn(12, widths[-1], dtype=F64)
    return problem, brute(problem, names, weights, on_variables, on_weights), X, Y


def brute(problem, names, weights, on_variables=None, on_weights=None):
    maps = [layer.map.module for layer in problem.network]
    return Brute(
        [torch.empty(0), *(m.weight.detach().clone() for m in maps)],
        [None, *(None if m.bias is None else m.bias.detach().clone() for m in maps)],
        ["", *names, "identity"],
        [0.0, *weights, 1.0],
        dict(on_variables or {}),
        dict(on_weights or {}),
    )


NETWORKS = {
    "relu soft tanh": lambda: build((4, 6, 3, 5, 2), ("relu", "soft", "tanh"), [0.7, 1.3, 0.5]),
    "tanh, no bias": lambda: build((3, 5, 2), ("tanh",), [1.6], bias=False),
    "code penalty": lambda: build((5, 3, 4, 2), ("leaky", "soft"), [1.0, 0.8], on_variables={2: 0.05}),
    "sparse weights": lambda: build((4, 5, 3, 3), ("relu", "tanh"), [0.9, 1.2], on_weights={1: 0.01, 3: 0.02}),
}


def batches(problem, X, Y, size=5):
    whole = solvers.Batch.whole(problem, X, Y)
    return [whole.select(places) for places in torch.arange(len(X)).split(size)]


def assert_same(problem, variables, net, x, atol=1e-10):
    for l in range(1, net.depth + 1):
        module = problem.network[l].map.module
        torch.testing.assert_close(module.weight.detach(), net.W[l], rtol=0, atol=atol)
        if net.b[l] is not None:
            torch.testing.assert_close(module.bias.detach(), net.b[l], rtol=0, atol=atol)
    for l in range(1, net.depth):
        torch.testing.assert_close(variables[l], x[l], rtol=0, atol=atol)
