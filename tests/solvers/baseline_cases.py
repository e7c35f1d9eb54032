"""What the tests of the baselines share: networks, an objective in plain torch, the solvers by back-propagation."""

from __future__ import annotations

import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.solvers import baselines

F64 = torch.float64
BACKPROPAGATION = [
    baselines.GradientDescent(0.05),
    baselines.SGD(0.05, momentum=0.9),
    baselines.Adam(0.01),
    baselines.AdamW(0.01),
    baselines.ImplicitBackprop(prox_weight=0.7, inner_steps=3, learning_rate=0.05),
]


def network():
    """Three activations, four widths, a penalty on a variable and two on parameters."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Softshrink(0.1), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)
    ).double()
    return model, torch.randn(11, 5, dtype=F64), torch.randn(11, 3, dtype=F64)


def lifted(model):
    return lb.lift(
        model,
        loss=lb.SquaredError(),
        weights=[0.5, 2.0, 1.3],
        penalties={2: lb.penalties.L1(0.05)},
        parameter_penalties={1: lb.penalties.SquaredL2(0.02), 3: lb.penalties.L1(0.01)},
    )


def plain_objective(model, X, Y):
    """The nested objective of `lifted(network())`, in plain torch."""
    code = model[:4](X)
    data = 0.5 * (model[4:](code) - Y).square().sum(1) + 0.05 * code.abs().sum(1)
    return data.mean() + 0.01 * model[0].weight.square().sum() + 0.01 * model[4].weight.abs().sum()


def states_of(problem):
    return [p.detach().clone() for p in problem.model.parameters()]


def gap(model, other):
    return max(float((a - b).detach().abs().max()) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def dense(*activations, **settings):
    torch.manual_seed(0)
    modules, width = [], 4
    for activation in activations:
        modules += [nn.Linear(width, width + 1), activation.as_module()]
        width += 1
    return lb.lift(nn.Sequential(*modules, nn.Linear(width, 2)).double(), loss=lb.SquaredError(), **settings)
