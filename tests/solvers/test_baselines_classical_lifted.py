"""Classical lifted networks: the coupling beside the Bregman loss, projected gradient steps, descent."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import solvers
from lifted_bregman.solvers import Batch, baselines
from tests.solvers.baseline_cases import F64, gap


@pytest.mark.parametrize(
    "activation",
    [act.Identity(), act.ReLU(), act.Box(-0.3, 0.7), act.Sparsemax(), act.BallProjection(0.8)],
    ids=repr,
)
def test_the_classical_coupling_is_the_bregman_loss_plus_the_distance_to_the_domain(activation):
    torch.manual_seed(0)
    z = 2.0 * torch.randn(50, 4, dtype=F64)
    x = activation(torch.randn(50, 4, dtype=F64))
    classical = 0.5 * (x - z).square().sum(1)
    distance = 0.5 * (z - activation(z)).square().sum(1)
    torch.testing.assert_close(classical, lb.bregman_loss(x, z, activation) + distance, rtol=1e-12, atol=1e-13)


def classical_case():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.Hardtanh(-0.2, 0.6), nn.Linear(4, 3)).double()
    problem = lb.lift(
        model, loss=lb.SquaredError(), weights=[0.7, 1.6], penalties={1: lb.penalties.L1(0.04)},
        parameter_penalties={2: lb.penalties.SquaredL2(0.03)},
    )  # fmt: skip
    return problem, Batch.whole(problem, torch.randn(9, 5, dtype=F64), torch.randn(9, 3, dtype=F64))


def classical_energy(problem, variables, X, Y):
    model, (x1, x2) = problem.model, variables
    value = 0.7 * 0.5 * (x1 - model[0](X)).square().sum(1) + 1.6 * 0.5 * (x2 - model[2](x1)).square().sum(1)
    value = value + 0.5 * (model[4](x2) - Y).square().sum(1)
    return value.mean()


def test_classical_steps_are_projected_gradient_steps_on_its_energy():
    problem, batch = classical_case()
    solver = baselines.ClassicalLifted(
        sweep=solvers.Jacobi(), step_rule=solvers.FixedStep(parameter=0.05, variable=0.2)
    )
    state = solver.init(problem, batch)
    for _ in range(3):
        twin = copy.deepcopy(problem.model)
        variables = [x.clone().requires_grad_() for x in state.variables]
        value = classical_energy(problem, variables, batch.X, batch.Y)
        slopes = torch.autograd.grad(value, [*variables, *problem.model.parameters()])
        penalties = 0.04 * variables[0].abs().sum(1).mean() + 0.015 * twin[2].weight.square().sum()
        state = solver.step(problem, state, batch)
        assert state.metrics["start_energy"] == pytest.approx(float((value + penalties).detach()), rel=1e-12)
        with torch.no_grad():
            for p, g in zip(twin.parameters(), slopes[2:], strict=True):
                p -= 0.05 * g
            twin[2].weight /= 1.0 + 0.05 * 0.03
        assert gap(problem.model, twin) < 1e-12
        # The step of eq. 17 has ½‖x‖² in its proximal part: gradient without λx, then division by 1 + tλ.
        t, parts = 0.2, []
        for x, g, weight in zip(variables, slopes[:2], (0.7, 1.6), strict=True):
            v = x - t * (9 * g - weight * x)
            parts.append((v / (1.0 + t * weight)).detach())
        first = (parts[0] - 0.04 * t / (1.0 + 0.7 * t)).clamp(min=0.0)
        torch.testing.assert_close(state.variables[1], first, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(state.variables[2], parts[1].clamp(-0.2, 0.6), rtol=1e-11, atol=1e-12)


def test_the_classical_energy_never_increases():
    problem, batch = classical_case()
    solver = baselines.ClassicalLifted(inner_steps=2)
    state = solver.init(problem, batch)
    values = []
    for _ in range(60):
        state = solver.step(problem, state, batch)
        values.append(state.metrics["start_energy"])
    assert all(after <= before * (1 + 1e-13) for before, after in pairwise(values))
    assert values[-1] < 0.7 * values[0]
    assert all(bool(problem.network[l].contains(state.variables[l]).all()) for l in (1, 2))
