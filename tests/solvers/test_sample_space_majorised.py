"""The majorise-minimise step: descent, minimum, ridge, float32, and the steps that replace it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.solvers.implicit_sgd import ImplicitSGD, Space
from lifted_bregman.solvers.inner_steps import Majorised
from lifted_bregman.solvers.steps import FixedStep
from tests import cases
from tests.sampling import over
from tests.solvers.problems import make

F64 = torch.float64
SPACES = [Space.SAMPLES, Space.WEIGHTS]
BOTH = pytest.mark.parametrize("space", SPACES, ids=lambda s: s.name)


# One layer: a convex problem with every activation in the loss


def one_layer(activation, samples=9, inputs=5, outputs=4, dtype=F64, bias=True, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=bias, dtype=dtype))
    problem = lb.lift(model, loss=lb.BregmanLoss(activation))
    X = 1.5 * torch.randn(samples, inputs, dtype=dtype) + 0.4
    Y = cases.domain_points(activation, torch.randn(samples, outputs, dtype=dtype))
    return problem, X, Y


def packed(model):
    return torch.cat([p.detach().double().view(len(p), -1) for p in model.parameters()], 1)


def implicit_objective(activation, X, Y, start, tau, weights=None):
    """Θ = [W b] ↦ mean B(y, AΘᵀ) + (τ/2)‖Θ - Θ⁰‖² without what does not depend on Θ, and its gradient."""
    A = torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], 1).double()[:, : start.shape[1]]
    w = torch.ones(len(X), dtype=F64) if weights is None else weights

    def value(theta):
        Z = A @ theta.T
        inner = activation.conjugate(Z)
        inner = inner if inner.ndim == 1 else inner.sum(1)
        return float((w * (inner - (Y.double() * Z).sum(1))).mean() + 0.5 * tau * (theta - start).square().sum())

    def gradient(theta):
        d = activation(A @ theta.T) - Y.double()
        return (w[:, None] * d).T @ A / len(A) + tau * (theta - start)

    return value, gradient


@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_the_gradient_above_is_that_of_the_value(activation):
    problem, X, Y = one_layer(activation)
    start, w = packed(problem.model), torch.linspace(0.4, 1.9, len(X), dtype=F64)
    value, gradient = implicit_objective(activation, X, Y, start, 0.7, w)
    theta, direction = start + 0.3, torch.randn_like(start)
    slope = (value(theta + 1e-5 * direction) - value(theta - 1e-5 * direction)) / 2e-5
    assert float((gradient(theta) * direction).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def after(problem, X, Y, tau, steps, space, weights=None):
    batch = solvers.Batch.whole(problem, X, Y, weights)
    solver = ImplicitSGD(tau, steps, reading=Majorised(), space=space)
    state = solver.step(problem, solver.init(problem, batch), batch)
    return state, packed(problem.model)


@over(cases.name, activation=cases.ACTIVATIONS, samples=[4, 12], space=SPACES)
def test_no_step_increases_the_implicit_objective_and_the_limit_is_its_minimum(activation, samples, space):
    """Fewer samples than columns, and more; the minimum by SciPy."""
    tau, values = 0.3, []
    start = packed(one_layer(activation, samples)[0].model)
    _, X, Y = one_layer(activation, samples)
    objective, slope = implicit_objective(activation, X, Y, start, tau)
    values.append(objective(start))
    for steps in (1, 2, 3, 4, 6, 9):
        problem, X, Y = one_layer(activation, samples)
        state, theta = after(problem, X, Y, tau, steps, space)
        values.append(objective(theta))
    assert all(later <= earlier + 1e-13 for earlier, later in pairwise(values)) and values[1] < values[0]
    assert state.metrics["fallbacks"] == 0.0

    problem, X, Y = one_layer(activation, samples)
    _, found = after(problem, X, Y, tau, 400, space)

    def with_gradient(flat):
        theta = torch.tensor(flat).view_as(start)
        return objective(theta), slope(theta).numpy().ravel()

    best = minimize(
        with_gradient,
        start.numpy().ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": 1e-11, "ftol": 1e-16, "maxiter": 5000},
    )
    reached = objective(found)
    assert reached <= best.fun + 1e-9 * (1.0 + abs(best.fun))
    assert reached >= best.fun - 1e-7 * (1.0 + abs(best.fun))
    np.testing.assert_allclose(found.numpy().ravel(), best.x, atol=1e-4)


@BOTH
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("samples", [3, 11])
def test_one_step_solves_squared_error(samples, bias, weighted, space):
    """The normal equations ( AᵀSA/m + τ ) Θ = AᵀSY/m + τΘ⁰, S = diag(w)."""
    problem, X, Y = one_layer(lb.activations.Identity(), samples, bias=bias)
    start, tau = packed(problem.model), 0.8
    w = torch.linspace(0.3, 2.0, samples, dtype=F64) if weighted else torch.ones(samples, dtype=F64)
    A = torch.cat([X, torch.ones(samples, 1, dtype=F64)], 1)[:, : start.shape[1]]
    S = (w / w.mean())[:, None] / samples
    H = A.T @ (S * A) + tau * torch.eye(A.shape[1], dtype=F64)
    expected = torch.linalg.solve(H, A.T @ (S * Y) + tau * start.T).T
    _, found = after(problem, X, Y, tau, 1, space, w if weighted else None)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@BOTH
@pytest.mark.parametrize("samples", [4, 12])
def test_without_a_proximal_weight_the_limit_is_a_minimum_of_the_energy(samples, space):
    """τ = 0: the energy decreases until its gradient vanishes."""
    activation, values = lb.activations.LeakyReLU(0.2), []
    for steps in (1, 2, 5, 20, 400):
        problem, X, Y = one_layer(activation, samples)
        start = packed(problem.model)
        objective, slope = implicit_objective(activation, X, Y, start, 0.0)
        state, found = after(problem, X, Y, 0.0, steps, space)
        values.append(objective(found))
    assert all(later <= earlier + 1e-13 for earlier, later in pairwise([objective(start), *values]))
    assert float(slope(found).abs().max()) < 1e-5 and state.metrics["fallbacks"] == 0.0


@BOTH
@pytest.mark.parametrize("tau", [0.0, 1e-9, 1e-5])
@pytest.mark.parametrize("kind", ["duplicates", "rank deficient", "zero", "large mean"])
@pytest.mark.parametrize("name", ["ReLU", "Tanh", "Identity"])
def test_float32_descends_for_any_samples(name, kind, tau, space):
    """Values in float64 of parameters in float32; what cancels there bounds the rounding."""
    activation = getattr(lb.activations, name)()
    problem, X, Y = one_layer(activation, 24, 12, 4, torch.float32)
    if kind == "duplicates":
        X, Y = X[:3].repeat(8, 1), Y[:3].repeat(8, 1)
    elif kind == "rank deficient":
        X = X[:, :2] @ torch.randn(2, 12)
    elif kind == "zero":
        X = torch.zeros_like(X)
    else:
        X = X + 300.0
    start, values = packed(problem.model), []
    objective, _ = implicit_objective(activation, X, Y, start, tau)
    values.append(objective(start))
    batch = solvers.Batch.whole(problem, X, Y)
    for steps in (1, 2, 4, 8):
        for p, value in zip(problem.model.parameters(), (start[:, :-1], start[:, -1]), strict=True):
            p.data.copy_(value)
        solver = ImplicitSGD(tau, steps, reading=Majorised(), space=space)
        state = solver.step(problem, solver.init(problem, batch), batch)
        values.append(objective(packed(problem.model)))
        assert state.metrics["fallbacks"] == 0.0
    Z = X.double() @ start[:, :-1].T
    slack = 64 * torch.finfo(torch.float32).eps * float((Z.square() + Y.double().square()).sum(1).mean() + 1.0)
    assert all(later <= values[0] + slack for later in values[1:]), (values, slack)
    assert values[-1] < values[0] or values[0] <= slack


# The steps that replace it


@BOTH
@pytest.mark.parametrize("fault", ["factor", "solution"])
def test_a_step_without_a_solution_is_a_gradient_step_and_is_counted(fault, space, monkeypatch):
    """Θ ← Θ - t∇ with t = 1/(c tr K + τ), with weighted samples."""
    activation, tau, samples = lb.activations.Tanh(), 0.6, 4
    problem, X, Y = one_layer(activation, samples)
    start = packed(problem.model)
    if fault == "factor":
        real = torch.linalg.cholesky_ex
        monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda S: (real(S)[0], torch.ones((), dtype=torch.int32)))
    else:
        monkeypatch.setattr(torch, "cholesky_solve", lambda G, factor: torch.full_like(G, torch.nan))
    w = torch.tensor([0.5, 1.0, 1.5, 1.0], dtype=F64)
    _, slope = implicit_objective(activation, X, Y, start, tau, w)
    A = torch.cat([X, torch.ones(samples, 1, dtype=F64)], 1)
    t = 1.0 / (float((w[:, None] * A.square()).sum()) / samples + tau)
    theta = start
    for _ in range(3):
        theta = theta - t * slope(theta)
    state, found = after(problem, X, Y, tau, 3, space, w)
    torch.testing.assert_close(found, theta, rtol=0, atol=1e-12)
    assert state.fallbacks == 3 and state.metrics["fallbacks"] == 3.0


def test_fallbacks_add_up_in_the_history_and_survive_a_restart():
    """Inputs of 1e22 overflow the Gram matrix in float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    problem = lb.lift(model, loss=lb.SquaredError())
    X, Y = torch.randn(8, 3), torch.randn(8, 2)
    X[:4] *= 1e22
    solver = ImplicitSGD(1.0, 1, reading=Majorised())
    whole = solvers.Batch.whole(problem, X, Y)
    parts = [whole.slice(0, 4), whole.slice(4, 8)]
    state = solver.init(problem, parts[0])
    counts = []
    for number in range(4):
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        state = solver.step(problem, state, parts[number % 2])
        counts.append(state.metrics["fallbacks"])
        assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert counts == [1.0, 1.0, 2.0, 2.0]
    again = solver.init(problem, parts[0])
    again.load_state_dict(state.state_dict())
    assert solver.step(problem, again, parts[1]).metrics["fallbacks"] == 2.0
    case = make("relu")
    result = solvers.run(case.problem, case.data, ImplicitSGD(5.0, 2, reading=Majorised()), epochs=2, batch_size=4)
    assert [row["fallbacks"] for row in result.history] == [0.0, 0.0]


def test_layers_it_is_not_for_take_gradient_steps():
    """A convolution and a penalised layer move exactly as with `Corrected`; a dense one does not."""
    moved = []
    for reading in (Majorised(FixedStep(0.05, 0.2)), solvers.Corrected(FixedStep(0.05, 0.2))):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)
        ).double()
        problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={2: lb.penalties.L1(0.01)})
        batch = solvers.Batch.whole(problem, torch.randn(5, 1, 3, 3, dtype=F64), torch.randn(5, 2, dtype=F64))
        order = _Only((1, 2))
        solver = ImplicitSGD(0.5, 1, reading=reading, order=order)
        solver.require(problem)
        solver.step(problem, solver.init(problem, batch), batch)
        early = torch.cat([p.detach().flatten() for p in model[:4].parameters()])
        solver = ImplicitSGD(0.5, 1, reading=reading, order=_Only((3,)))
        solver.step(problem, solver.init(problem, batch), batch)
        moved.append((early, model[5].weight.detach().clone()))
    torch.testing.assert_close(moved[0][0], moved[1][0], rtol=0, atol=1e-15)
    assert float((moved[0][1] - moved[1][1]).abs().max()) > 1e-3


class _Only(solvers.LoopOrder):
    def __init__(self, chosen):
        self.chosen = chosen

    def visits(self, depth, steps):
        return iter(self.chosen)
