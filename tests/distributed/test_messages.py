"""The bytes that a step sends, by the formulas of the documentation."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import solvers

WIDTHS = (11, 7, 9, 3)
NUMBER = 8
"""Bytes of a number."""


def step(mate, solver, samples):
    """The bytes that the second step hands to collectives."""
    torch.manual_seed(0)
    linears = [nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(WIDTHS)]
    model = nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.Tanh(), linears[2])
    problem = lb.lift(model, loss=lb.SquaredError())
    X, Y = torch.randn(samples, WIDTHS[0], dtype=torch.float64), torch.randn(samples, WIDTHS[-1], dtype=torch.float64)
    ranks, whole = mate.ranks(), solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, whole.share(ranks))
    sent = []
    for _ in range(2):
        before = ranks.sent
        state = solver.step(problem, state, whole.share(ranks))
        sent.append(ranks.sent - before)
    return sent[-1]


def layers():
    return list(enumerate(pairwise(WIDTHS), start=1))


def gradient():
    """All parameters."""
    return sum((n + 1) * out for _, (n, out) in layers())


def backprop(s):
    return 1 + gradient()


def variables(s):
    """x_1 and x_2 of the longest part."""
    return s * sum(WIDTHS[1:-1])


def samples_space(s):
    """In each of 3 inner steps d_l of every layer and x_{l-1} of all but the first; a residual; the variables."""
    moves = sum(s * out + (s * n if layer > 1 else 0) for layer, (n, out) in layers())
    return 3 * moves + 1 + variables(s)


def weight_space(s):
    """The same with the gradient in place of d_l; the rows x_{l-1} are for the norms."""
    rows = sum(s * n for layer, (n, _) in layers() if layer > 1)
    return 3 * (rows + gradient()) + 1 + variables(s)


def gram_weight_space(s):
    """AᵀA of every layer, EᵀE of the hidden ones, the gradient, and the sum of squares of the output's residual."""
    hidden = sum(out**2 for layer, (_, out) in layers() if layer < len(layers()))
    return sum((n + 1) ** 2 for _, (n, _) in layers()) + hidden + gradient() + 1


IMPLICIT = {"prox_weight": 5.0, "inner_steps": 3}
CASES = {
    "Adam": (solvers.baselines.Adam(), backprop),
    "SGD": (solvers.baselines.SGD(0.1), backprop),
    "sample space": (solvers.ImplicitSGD(**IMPLICIT, space=solvers.Space.SAMPLES), samples_space),
    "weight space": (solvers.ImplicitSGD(**IMPLICIT, space=solvers.Space.WEIGHTS), weight_space),
    "gram, weight space": (solvers.GramSweep(), gram_weight_space),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_of_a_step(crew, name):
    """A batch of 8 on 2 and on 4 processes: parts of 4 and of 2 samples, the ends of blocks of 2."""
    solver, formula = CASES[name]
    for size in (2, 4):
        longest = 8 // size
        assert crew.run(size, step, solver, 8) == [NUMBER * formula(longest)] * size
