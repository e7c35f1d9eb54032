"""A deep network for iterative regularisation, and a run that is saved and continued."""

from __future__ import annotations

import copy

import torch
from torch import nn

import lifted_bregman as lb
from tests.solvers.linbreg_cases import randn


def deep(samples=6, trained=True, **settings):
    """No more samples than width + 1 in any layer."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 6), nn.Softshrink(0.05), nn.Linear(6, 2)
    ).double()
    model.requires_grad_(trained)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.8, 1.5, 1.1], **settings)
    return problem, randn(samples, 8, seed=3), randn(samples, 2, seed=4)


def continued(make, steps_before=4, steps_after=5):
    """Parameters after going on, and after a save, a fresh start, a load, and the same steps."""
    problem, solver, batch = make()
    state = solver.init(problem, batch)
    for _ in range(steps_before):
        state = solver.step(problem, state, batch)
    saved, parameters = copy.deepcopy(state.state_dict()), copy.deepcopy(problem.model.state_dict())
    for _ in range(steps_after):
        state = solver.step(problem, state, batch)
    again, solver, batch = make()
    other = solver.init(again, batch)
    again.model.load_state_dict(parameters)
    other.load_state_dict(saved)
    for _ in range(steps_after):
        other = solver.step(again, other, batch)
    return (problem, state), (again, other)
