"""Certificates vanish at minima found by other means, and elsewhere equal a residual computed by other means."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from torch import nn

import lifted_bregman as lb
from lifted_bregman import penalties

from . import oracle
from .networks import CASES, F64, dense_case


def ridge_free(X, Y):
    """The least-squares minimiser (W, b) of ½ mean ‖y - Wx - b‖², by NumPy."""
    A = np.hstack([X.numpy(), np.ones((len(X), 1))])
    solution = np.linalg.lstsq(A, Y.numpy(), rcond=None)[0]
    return torch.tensor(solution[:-1].T.copy()), torch.tensor(solution[-1])


def test_zero_at_the_least_squares_solution_and_nowhere_near_it():
    torch.manual_seed(0)
    X, Y = torch.randn(20, 4, dtype=F64) + 1.0, torch.randn(20, 3, dtype=F64)
    model = nn.Sequential(nn.Linear(4, 3, dtype=F64))
    problem = lb.lift(model, loss=lb.SquaredError())
    state = problem.forward_state(X)
    W, b = ridge_free(X, Y)
    model[0].weight.data.copy_(W), model[0].bias.data.copy_(b)
    found = problem.certificates(state, X, Y)
    assert found.variables == ()
    assert found.parameters[0] == found.largest <= 1e-13
    model[0].bias.data.add_(0.1)  # then the gradient is 0.1 in the bias and 0.1 mean(x) in each row
    expected = 0.1 * math.sqrt(3 * (1.0 + float(X.mean(0).square().sum())))
    assert problem.certificates(state, X, Y).largest == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("step", [0.1, 1.0, 7.0])
def test_zero_at_the_lasso_solution(step):
    # Orthonormal columns and no bias: the minimiser of ½ mean ‖y - Wx‖² + α‖W‖₁ is soft thresholding, by hand.
    torch.manual_seed(1)
    X = torch.linalg.qr(torch.randn(16, 4, dtype=F64)).Q * 4.0  # XᵀX / 16 = I
    Y = torch.randn(16, 2, dtype=F64)
    model = nn.Sequential(nn.Linear(4, 2, bias=False, dtype=F64))
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalties.L1(0.15)})
    correlation = Y.t() @ X / 16
    solution = correlation.sign() * (correlation.abs() - 0.15).clamp(min=0)
    assert (solution == 0).any()
    assert (solution != 0).any()
    model[0].weight.data.copy_(solution)
    state = problem.forward_state(X)
    assert problem.certificates(state, X, Y, step=step).largest <= 1e-14
    model[0].weight.data.copy_(correlation)  # least squares: the penalty's pull is all that is left
    moved = correlation.sign() * (correlation.abs() - step * 0.15).clamp(min=0)
    expected = float(torch.linalg.vector_norm(correlation - moved)) / step
    assert problem.certificates(state, X, Y, step=step).largest == pytest.approx(expected, rel=1e-10)


def test_the_parameter_prox_takes_weights_as_matrices_and_leaves_biases():
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)).double()
    penalty = penalties.GroupL2(0.5)
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalty})
    values = {name: p.detach() for name, p in model[0].named_parameters()}
    found = problem.parameter_prox(1, values, 0.4)
    # One group for each output channel: all weights that lead to it.
    expected = torch.stack([penalty.prox(row.flatten(), 0.4).view(2, 2, 2) for row in values["weight"]])
    torch.testing.assert_close(found["weight"], expected)
    assert torch.equal(found["bias"], values["bias"])
    assert problem.parameter_prox(2, values, 0.4) == values
    X, Y = torch.randn(4, 2, 2, 2, dtype=F64), torch.randn(4, 2, dtype=F64)
    state = problem.forward_state(X)
    gradient = problem.parameter_gradient(problem.evaluate(state, X, Y), 1)
    assert all(float(g.norm()) == 0.0 for g in gradient.values())  # consistent, so that only the penalty pulls
    gap = float((values["weight"] - expected).norm()) / 0.4
    assert problem.certificates(state, X, Y, step=0.4).parameters[0] == pytest.approx(gap, rel=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("step", [0.05, 1.0])
def test_zero_where_scipy_solved_the_relu_variable(alpha, step):
    # min over x >= 0 of λ(½‖x‖² - <x, z>) + α Σx + ½‖y - Wx - b‖² is a non-negative least-squares problem.
    torch.manual_seed(2)
    weight = 0.6
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4)).double()
    X, Y = torch.randn(5, 3, dtype=F64), torch.randn(5, 4, dtype=F64)
    with torch.no_grad():
        z = model[0](X)
    W, b = model[2].weight.detach().numpy(), model[2].bias.detach().numpy()
    A = np.vstack([math.sqrt(weight) * np.eye(6), W])
    rows = [
        np.concatenate([math.sqrt(weight) * (row - alpha / weight), y - b])
        for row, y in zip(z.numpy(), Y.numpy(), strict=True)
    ]
    x = torch.tensor(np.stack([nnls(A, row)[0] for row in rows]))
    assert (x == 0).any()
    problem = lb.lift(
        model, loss=lb.SquaredError(), weights=weight, penalties={1: penalties.L1(alpha)} if alpha else None
    )
    found = problem.certificates(lb.LiftedState([x]), X, Y, step=step)
    assert found.variables[0] <= 1e-12
    assert found.parameters[0] > 1e-3
    away = problem.certificates(lb.LiftedState([x + 0.01]), X, Y, step=step)
    assert away.variables[0] > 1e-3


def test_zero_where_scipy_solved_the_tanh_variable():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 4)).double()
    X, Y = torch.randn(1, 3, dtype=F64), torch.randn(1, 4, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=0.7)
    with torch.no_grad():
        z = model[0](X).numpy()[0]
    W, b = model[2].weight.detach().numpy(), model[2].bias.detach().numpy()

    def energy(s):  # x = tanh s
        x = np.tanh(s)
        phi = x * s + 0.5 * np.log1p(-(x**2))
        return 0.7 * (phi - x * z).sum() + 0.5 * ((Y.numpy()[0] - W @ x - b) ** 2).sum()

    x = torch.tensor(np.tanh(minimize(energy, z, method="BFGS", options={"gtol": 1e-10}).x))
    assert problem.certificates(lb.LiftedState([x[None]]), X, Y).variables[0] <= 1e-6


def brute_force_prox(phi_star, v, weight, step):
    """argmin (1/2t)‖x - v‖² + λφ(x) as x = σ(s) with (x - v)/t + λs = 0, by bisection on s (σ = φ*' by autograd)."""
    low, high = torch.full_like(v, -1e3), torch.full_like(v, 1e3)
    for _ in range(200):
        s = ((low + high) / 2).requires_grad_()
        (x,) = torch.autograd.grad(phi_star(s).sum(), s)
        too_high = (x - v) / step + weight * s.detach() > 0
        low, high = torch.where(too_high, low, s.detach()), torch.where(too_high, s.detach(), high)
    return x


@pytest.mark.parametrize("step", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("name", ["dense", "dense, equal widths"])
def test_equal_to_a_residual_computed_by_autograd_and_bisection(name, step):
    case = CASES[name]()
    found = case.problem().certificates(case.state(), case.X, case.Y, step=step)
    energy = sum(term.mean() for term in oracle.sample_terms(case.stages, case.weights, case.xs))
    for l, (f, _) in enumerate(case.stages, 1):
        gradients = torch.autograd.grad(energy, list(f.parameters()), retain_graph=True)
        expected = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        assert found.parameters[l - 1] == pytest.approx(expected, rel=1e-10)
    variables = [x.clone().requires_grad_() for x in case.variables]
    total = oracle.smooth_part(case.stages, case.weights, [case.X, *variables, case.Y], quadratic=False)
    for l, gradient in enumerate(torch.autograd.grad(total, variables), 1):
        x, activation = case.variables[l - 1], case.stages[l - 1][1]
        moved = brute_force_prox(oracle.CLOSED_FORMS[activation][1], x - step * gradient, case.weights[l - 1], step)
        expected = float((x - moved).norm()) / step / math.sqrt(len(x))
        assert found.variables[l - 1] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("quadratic", [False, True])
def test_the_variable_prox_satisfies_fermats_rule(quadratic):
    # (x - v)/t + λ(x if the quadratic is not smooth) + λ∂Ψ + α∂|x| contains 0, for tanh: Ψ' = atanh(x) - x.
    case = dense_case()
    problem = case.problem(penalties={1: penalties.L1(0.2)})
    torch.manual_seed(4)
    v, step, weight = torch.randn(9, 7, dtype=F64), 0.8, case.weights[0]
    x = problem.variable_prox(1, v, step, smooth_quadratic=quadratic)
    rest = (x - v) / step + weight * (torch.atanh(x) - (x if quadratic else 0.0))
    inside = x == 0
    assert inside.any()
    assert (rest[inside].abs() <= 0.2 + 1e-12).all()
    torch.testing.assert_close(rest[~inside], -0.2 * x[~inside].sign(), rtol=1e-9, atol=1e-9)


def test_both_splittings_have_the_same_stationary_points():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4)).double()
    X, Y = torch.randn(5, 3, dtype=F64), torch.randn(5, 4, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError())
    point = problem.evaluate(problem.forward_state(X), X, Y)
    for _ in range(3000):
        step = 1.0 / problem.variable_curvature(point, 1, upper=True)
        gradient = problem.variable_gradient(point, 1)
        point.set_variable(1, problem.variable_prox(1, point.x[1] - step * gradient, step))
    x = point.x[1]
    for quadratic in (False, True):
        gradient = problem.variable_gradient(point, 1, smooth_quadratic=quadratic)
        torch.testing.assert_close(problem.variable_prox(1, x - 0.5 * gradient, 0.5, smooth_quadratic=quadratic), x)


def test_a_step_that_the_curvature_allows_decreases_the_energy():
    case = dense_case()
    problem = case.problem()
    point = problem.evaluate(case.state(), case.X, case.Y)
    value = float(problem.energy_at(point))
    for l in (5, 4, 3, 2, 1):
        problem.accumulate_parameter_gradient(
            point, l, problem.network[l].map.parameters, scale=-1.99 / problem.parameter_curvature(point, l, upper=True)
        )
        point.parameters_changed(l)
        new = float(problem.energy_at(point))
        assert new < value
        value = new
        if l > 1:
            step = 1.99 / problem.variable_curvature(point, l - 1, upper=True)
            gradient = problem.variable_gradient(point, l - 1)
            point.set_variable(l - 1, problem.variable_prox(l - 1, point.x[l - 1] - step * gradient, step))
            new = float(problem.energy_at(point))
            assert new < value
            value = new


def test_curvatures_carry_their_weights_and_the_number_of_samples():
    case = dense_case()
    problem = case.problem()
    point = problem.evaluate(case.state(), case.X, case.Y)
    for l in range(1, 6):
        A = torch.cat((case.xs[l - 1], torch.ones(9, 1, dtype=F64)), 1)
        exact = case.weights[l - 1] * float(torch.linalg.svdvals(A)[0]) ** 2 / 9
        assert problem.parameter_curvature(point, l) == pytest.approx(exact, rel=0.02)
        assert exact <= problem.parameter_curvature(point, l, upper=True) <= 1.05 * exact
    for l in range(1, 5):
        W = problem.network[l + 1].map.module.weight.detach()
        exact = case.weights[l] * float(torch.linalg.svdvals(W)[0]) ** 2
        assert problem.variable_curvature(point, l) == pytest.approx(exact, rel=0.02)
        assert exact <= problem.variable_curvature(point, l, upper=True) <= 1.05 * exact
        with_quadratic = problem.variable_curvature(point, l, upper=True, smooth_quadratic=True)
        assert with_quadratic >= exact + case.weights[l - 1]


@pytest.mark.parametrize("step", [0.0, -1.0, math.nan, math.inf])
def test_the_step_must_be_positive(step):
    case = dense_case()
    with pytest.raises(lb.errors.SettingError, match="step"):
        case.problem().certificates(case.state(), case.X, case.Y, step=step)


def test_residuals_go_by_the_names_of_the_summary():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    X, Y = torch.randn(6, 4, dtype=F64), torch.randn(6, 2, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError())
    found = problem.certificates(problem.forward_state(X), X, Y)
    shown = [line.split()[1] for line in problem.summary().splitlines()[2:4]]
    assert list(found.by_name) == list(found.names) == shown
    first, last = (found.by_name[name] for name in found.names)
    assert first == {"parameters": found.parameters[0], "variable": found.variables[0]}
    assert last == {"parameters": found.parameters[1]}
