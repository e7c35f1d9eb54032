"""MAC with quadratic penalty: proximal gradient steps on its own energy, in plain torch."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.solvers import Batch, baselines
from lifted_bregman.solvers.parameters import copy_parameters
from tests.solvers.baseline_cases import F64, gap, lifted, network


def quadratic_penalty_energy(problem, variables, X, Y, mu):
    """Q_μ in plain torch, for the networks of `network()`."""
    model, x = problem.model, X
    value = torch.zeros(len(X), dtype=F64)
    for layer, weight in zip((1, 2, 3), problem.weights, strict=True):
        u = model[2 * layer - 1](model[2 * layer - 2](x))
        x = variables[layer]
        value = value + 0.5 * mu * weight * (x - u).square().sum(1)
    value = value + 0.5 * (model[6](x) - Y).square().sum(1)
    return value.mean()


def mac_penalties(problem, variables):
    on_code = 0.05 * variables[2].abs().sum(1).mean()
    return on_code + 0.01 * problem.model[0].weight.square().sum() + 0.01 * problem.model[4].weight.abs().sum()


def test_mac_steps_are_proximal_gradient_steps_on_its_energy():
    model, X, Y = network()
    problem = lifted(model)
    solver = baselines.MACQP(penalty=3.0, growth_every=2, growth=1.7, largest_penalty=4.0)
    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    soft = torch.nn.functional.softshrink
    for step in range(6):
        before = copy.deepcopy(model)
        variables = state.variables.clone()
        mu = min(3.0 * 1.7 ** (step // 2), 4.0)
        value = quadratic_penalty_energy(problem, variables, X, Y, mu)
        gradient = torch.autograd.grad(value, list(model.parameters()))
        start = float((value + mac_penalties(problem, variables)).detach())
        state = solver.step(problem, state, batch)
        assert state.metrics["penalty"] == pytest.approx(mu)
        t = state.metrics["parameter_step"]
        with torch.no_grad():
            for p, g in zip(before.parameters(), gradient, strict=True):
                p -= t * g
            before[0].weight /= 1.0 + 0.02 * t
            before[4].weight.copy_(soft(before[4].weight, 0.01 * t))
        assert gap(model, before) < 1e-12
        for x in variables:
            x.requires_grad_()
        value = quadratic_penalty_energy(problem, variables, X, Y, mu)
        slopes = torch.autograd.grad(len(X) * value, list(variables))
        t = state.metrics["variable_step"]
        moved = [(x - t * g).detach() for x, g in zip(variables, slopes, strict=True)]
        moved[1] = soft(moved[1], 0.05 * t)
        for x, u in zip(state.variables, moved, strict=True):
            torch.testing.assert_close(x, u, rtol=1e-11, atol=1e-12)
        after = quadratic_penalty_energy(problem, state.variables, X, Y, mu) + mac_penalties(problem, state.variables)
        assert state.metrics["penalised_objective"] == pytest.approx(float(after.detach()), rel=1e-12)
        assert float(after.detach()) < start


def test_mac_reaches_a_stationary_point_and_then_stalls():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    X, Y = torch.randn(10, 3, dtype=F64), torch.randn(10, 2, dtype=F64)
    decay = {l: lb.penalties.SquaredL2(0.3) for l in (1, 2)}
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties=decay)
    result = solvers.run(problem, (X, Y), baselines.MACQP(growth=1.0), epochs=1000, record_every=1000)
    x = result.state.variables[1].requires_grad_()
    coupling = 0.5 * (x - model[:2](X)).square().sum(1)
    value = (coupling + 0.5 * (model[2](x) - Y).square().sum(1)).mean()
    value = value + 0.15 * (model[0].weight.square().sum() + model[2].weight.square().sum())
    gradient = torch.autograd.grad(value, [x, *model.parameters()])
    assert max(float(g.abs().max()) for g in gradient) < 1e-6
    assert result.outcome is solvers.Outcome.STALLED and "Q_μ" in result.message


def test_mac_without_activations_is_the_lifted_energy():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.4, 1.9])
    batch = Batch.whole(problem, torch.randn(7, 3, dtype=F64), torch.randn(7, 2, dtype=F64))
    solver = baselines.MACQP()
    state = solver.init(problem, batch)
    for _ in range(3):
        state = solver.step(problem, state, batch)
        energy = float(problem.energy(state.variables, batch.X, batch.Y))
        assert state.metrics["penalised_objective"] == pytest.approx(energy, rel=1e-12)


def test_mac_says_that_it_differentiates_activations():
    assert repr(baselines.MACQP(penalty=2.0)) == (
        "MACQP(penalty=2.0, growth=2.0, growth_every=50, largest_penalty=100.0; differentiates activations)"
    )
    assert "DIFFERENTIATES ACTIVATIONS" in baselines.MACQP.__doc__


# Inside an implicit step: F = Q_μ + (τ/2)‖Θ - Θ⁰‖²


def distance(model, start):
    """½‖Θ - Θ⁰‖²."""
    pairs = zip(model.parameters(), start.parameters(), strict=True)
    return 0.5 * sum((p - q.detach()).square().sum() for p, q in pairs)


@pytest.mark.parametrize("tau", [0.3, 3.0, 30.0])
def test_mac_in_a_sub_problem_descends_with_its_proximal_term(tau):
    """A proximal gradient step with backtracking never increases what it is a step on, which has the term."""
    model, X, Y = network()
    problem, start = lifted(model), copy.deepcopy(model)
    sub = problem.anchored(copy_parameters(problem), tau)
    solver, batch = baselines.MACQP(growth=1.0), Batch.whole(problem, X, Y)
    state = solver.init(sub, batch)

    def value():
        energy = quadratic_penalty_energy(problem, state.variables, X, Y, 1.0) + mac_penalties(problem, state.variables)
        return float((energy + tau * distance(model, start)).detach())

    values = [value()]
    for _ in range(30):
        state = solver.step(sub, state, batch)
        values.append(value())
        assert state.metrics["penalised_objective"] == pytest.approx(values[-1], rel=1e-12)
    assert all(after < before for before, after in pairwise(values))


def test_mac_takes_no_step_that_increases_the_sub_problem():
    """Where Q alone would be content: F(w) = ½(4w - 1)² + 5w² for one weight, from w = 0.

    The step t leads to 4t/(1 + 10t).  With F(0) = 0.5, the steps 2, 1 and ½ lead to 8/21, 4/11 and 1/3, where Q is
    below 0.5 and F above; ¼ leads to 2/7.
    """
    model = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    nn.init.zeros_(model[0].weight)
    problem = lb.lift(model, loss=lb.SquaredError())
    batch = Batch.whole(problem, torch.full((1, 1), 4.0, dtype=F64), torch.ones(1, 1, dtype=F64))
    solver = solvers.ImplicitSGD(10.0, 1, solver=baselines.MACQP())
    state = solver.step(problem, solver.init(problem, batch), batch)
    assert state.metrics["parameter_step"] == 0.25
    assert model[0].weight.item() == pytest.approx(2 / 7, rel=1e-15)
    assert state.metrics["penalised_objective"] == pytest.approx(0.5 / 49 + 20 / 49, rel=1e-15)


def test_mac_reaches_a_stationary_point_of_the_sub_problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    X, Y = torch.randn(10, 3, dtype=F64), torch.randn(10, 2, dtype=F64)
    problem, start, tau = lb.lift(model, loss=lb.SquaredError()), copy.deepcopy(model), 0.5
    solver = solvers.ImplicitSGD(tau, 1000, solver=baselines.MACQP(growth=1.0))
    solver.require(problem)
    batch = Batch.whole(problem, X, Y)
    state = solver.step(problem, solver.init(problem, batch), batch)
    x = state.variables[1].requires_grad_()
    coupling = 0.5 * (x - model[:2](X)).square().sum(1)
    value = (coupling + 0.5 * (model[2](x) - Y).square().sum(1)).mean() + tau * distance(model, start)
    gradient = torch.autograd.grad(value, [x, *model.parameters()])
    assert float(distance(model, start).detach()) > 1e-2
    assert max(float(g.abs().max()) for g in gradient) < 1e-6
