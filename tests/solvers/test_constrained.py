"""The constrained form: multipliers against closed forms and SciPy, their limits, the solver inside."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy.optimize import NonlinearConstraint, minimize
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, penalties, solvers
from lifted_bregman.solvers.admm import ADMM
from lifted_bregman.solvers.constrained import Constrained, ConstrainedState
from lifted_bregman.solvers.coordinate_descent import CoordinateDescent
from tests.solvers.problems import make

F64 = torch.float64
INNER = {
    "proximal gradient": (solvers.ProximalGradient(), 12),
    "coordinate descent": (CoordinateDescent(tolerance=1e-11), 1),
    "ADMM": (ADMM(inner_steps=100, tolerance=1e-12), 1),
}


def walk(problem, data, solver, steps):
    solver.require(problem)
    batch = solvers.Batch.whole(problem, *data)
    state = solver.init(problem, batch)
    for _ in range(steps):
        state = solver.step(problem, state, batch)
    return state


@pytest.mark.parametrize(("inner", "steps"), INNER.values(), ids=INNER)
def test_the_multiplier_of_a_linear_layer_in_closed_form(inner, steps):
    """min ½‖y - x‖² subject to ½‖x - z‖² <= ε in the mean: x = (y + λz)/(1 + λ) with 1 + λ = ‖y - z‖/√(2ε)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(2))
    model.requires_grad_(False)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=0.5)
    X, Y = torch.randn(6, 3, dtype=F64), torch.randn(6, 2, dtype=F64)
    epsilon = 0.05
    z = model[0](X)
    multiplier = math.sqrt(float((Y - z).square().sum(1).mean()) / (2 * epsilon)) - 1.0
    state = walk(problem, (X, Y), Constrained(solver=inner, tolerance=epsilon, rate=10.0, inner_steps=steps), 100)
    assert multiplier > 0.5
    assert state.multipliers == [pytest.approx(multiplier, rel=1e-8)]
    torch.testing.assert_close(state.variables[1], (Y + multiplier * z) / (1.0 + multiplier), rtol=0, atol=1e-8)
    assert state.metrics["bregman"][1] == pytest.approx(epsilon, rel=1e-8)
    assert state.metrics["multiplier"][1] == state.multipliers[0]
    assert 0.0 <= state.metrics["violation"] <= 1e-8


def test_scipy_finds_the_same_constrained_minimum_of_a_tanh_layer():
    """min mean ½‖y - Wx - b‖² + α‖x‖² / 2 subject to mean B_tanh(x, z) <= ε over x = tanh s: SLSQP."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 4)).double().requires_grad_(False)
    X, Y = torch.randn(3, 3, dtype=F64), torch.randn(3, 4, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError(), penalties={1: penalties.SquaredL2(0.1)})
    z, epsilon = model[0](X).numpy(), 0.03
    W, b = model[2].weight.numpy(), model[2].bias.numpy()

    def split(s):
        return np.tanh(s.reshape(3, 2)), s.reshape(3, 2)

    def objective(s):
        x, _ = split(s)
        return 0.5 * np.square(Y.numpy() - x @ W.T - b).sum() / 3 + 0.05 * np.square(x).sum() / 3

    def bregman(s):
        x, s = split(s)
        return (x * s - np.log(np.cosh(s)) + np.log(np.cosh(z)) - x * z).sum() / 3

    inside = NonlinearConstraint(bregman, -np.inf, epsilon)
    options = {"ftol": 1e-14, "maxiter": 1000}
    found = minimize(objective, z.ravel(), method="SLSQP", constraints=[inside], options=options)
    assert bregman(found.x) == pytest.approx(epsilon, abs=1e-7)  # active
    solver = Constrained(solver=CoordinateDescent(), tolerance=epsilon, rate=5.0, inner_steps=1)
    state = walk(problem, (X, Y), solver, 150)
    x = state.variables[1].numpy()
    np.testing.assert_allclose(x, split(found.x)[0], atol=1e-5)
    assert objective(np.arctanh(x).ravel()) == pytest.approx(found.fun, abs=1e-7)
    assert state.metrics["bregman"][1] == pytest.approx(epsilon, abs=1e-8)


def test_the_update_is_the_clipped_ascent():
    """One step, with B_l at the new point computed from its definition."""
    case = make("smooth")
    solver = Constrained(tolerance=0.02, rate=3.0, inner_steps=2)
    state = walk(case.problem, case.data, solver, 1)
    x, inputs = state.variables, [case.X, *state.variables]
    for l, (place, start) in enumerate(zip((0, 2), (0.7, 2.0), strict=True), 1):
        z = case.problem.model[place](inputs[l - 1]).detach()
        activation = lb.activations.Tanh() if l == 1 else lb.activations.Softplus()
        phi = 0.5 * x[l].square().sum(1) + activation.potential(x[l])
        mean = float((phi + activation.conjugate(z) - (x[l] * z).sum(1)).mean())
        assert state.metrics["bregman"][l] == pytest.approx(mean, abs=1e-12)
        assert state.multipliers[l - 1] == pytest.approx(start + 3.0 * (mean - 0.02), abs=1e-10)
    assert case.problem.weights == (0.7, 2.0)  # the problem itself keeps its weights


def test_constraints_are_met_on_a_network():
    """With Θ free: the violation goes below a tenth of what the start's weights leave, and active ones sit at ε."""
    case = make("relu")
    loose = walk(case.problem, case.data, solvers.ProximalGradient(), 300)
    point = case.problem.point(loose.variables, case.X, case.Y)
    left = [float(case.problem.network[l].bregman(point.x[l], point.z(l)).mean()) for l in (1, 2)]
    epsilon = 0.05 * max(left)
    case = make("relu")
    state = walk(case.problem, case.data, Constrained(tolerance=epsilon, rate=20.0), 100)
    assert state.metrics["violation"] <= 0.5 * epsilon < 0.1 * max(left)


def test_the_proximal_term_of_an_outer_solver_is_no_part_of_the_constraint():
    """In `ImplicitSGD` it is in the energy, (τ/2)‖Θ - Θ⁰‖²; the multipliers answer to B_l alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    X, Y = torch.randn(10, 4, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    problem = lb.lift(model, loss=lb.SquaredError())
    batch = solvers.Batch.whole(problem, X, Y)
    solver = lb.ImplicitSGD(50.0, 3, solver=Constrained(inner_steps=5, tolerance=1e-3))
    state = solver.step(problem, solver.init(problem, batch), batch)
    x, z = state.variables[1], (X @ model[0].weight.T + model[0].bias).detach()
    expected = float((0.5 * (x - z.relu()).square() + (z.relu() - z) * x).sum(1).mean())  # ½x² + φ*(z) - xz
    assert state.metrics["bregman"][1] == pytest.approx(expected, rel=1e-12)
    assert state.metrics["violation"] == pytest.approx(expected - 1e-3, rel=1e-12)


def test_cap_and_floor():
    """Without tolerance λ only grows, to the cap; with a huge one it falls to the floor."""
    case = make("smooth")
    previous, solver = [0.7, 2.0], Constrained(tolerance=0.0, rate=1e3, cap=5.0, inner_steps=1)
    batch = solvers.Batch.whole(case.problem, *case.data)
    state = solver.init(case.problem, batch)
    for _ in range(20):
        state = solver.step(case.problem, state, batch)
        assert all(new >= old for new, old in zip(state.multipliers, previous, strict=True))
        previous = list(state.multipliers)
    assert max(state.multipliers) == 5.0
    state = walk(case.problem, case.data, Constrained(tolerance=1e3, floor=0.2), 3)
    assert state.multipliers == [0.2, 0.2]
    case = make("smooth")
    assert walk(case.problem, case.data, Constrained(floor=1.0, cap=1.5), 0).multipliers == [1.0, 1.5]


@pytest.mark.parametrize("inner", ["accelerated", "ADMM"])
def test_state_dict_round_trip_is_bitwise(inner):
    """The state of the solver inside goes along."""
    accelerated = solvers.ProximalGradient(
        step_rule=solvers.FixedStep(0.05, 0.2), acceleration=solvers.Nesterov(restart_on_increase=False)
    )
    chosen = accelerated if inner == "accelerated" else ADMM(inner_steps=10)
    solver = Constrained(solver=chosen, tolerance=0.01, inner_steps=2)
    case = make("smooth")
    state = walk(case.problem, case.data, solver, 3)
    saved = copy.deepcopy((case.problem.model.state_dict(), state.state_dict()))
    fresh = make("smooth")
    fresh.problem.model.load_state_dict(saved[0])
    batch = solvers.Batch.whole(fresh.problem, *fresh.data)
    again = solver.init(fresh.problem, batch)
    again.load_state_dict(saved[1])
    assert isinstance(again, ConstrainedState)
    for _ in range(5):
        state = solver.step(case.problem, state, batch)
        again = solver.step(fresh.problem, again, batch)
    assert state.multipliers == again.multipliers and state.metrics == again.metrics
    assert all(torch.equal(x, y) for x, y in zip(state.variables, again.variables, strict=True))
    for p, q in zip(case.problem.model.parameters(), fresh.problem.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_state_of_another_solver_is_refused():
    case = make("smooth")
    state = walk(case.problem, case.data, Constrained(), 1)
    with pytest.raises(errors.SettingError, match="the saved state has"):
        state.load_state_dict(solvers.SolverState().state_dict())


def test_work_is_counted_and_metrics_of_the_solver_are_kept():
    case = make("smooth")
    solver = Constrained(solver=CoordinateDescent(block_iterations=20), inner_steps=1)
    batch = solvers.Batch.whole(case.problem, *case.data)
    state = solver.init(case.problem, batch)
    case.problem.work.reset()
    state = solver.step(case.problem, state, batch)
    assert case.problem.work.parameter_gradients > 0 and case.problem.work.forward_maps > 0
    assert {"block_residual", "violation"} <= set(state.metrics)
    assert set(state.metrics["multiplier"]) == set(state.metrics["bregman"]) == {1, 2}


def test_it_runs_in_the_shared_loop():
    case = make("classes")
    result = solvers.run(case.problem, case.data, Constrained(inner_steps=2), epochs=5)
    assert result.outcome is solvers.Outcome.FINISHED
    assert result.history[-1]["multiplier_1"] == result.state.multipliers[0]


def test_what_is_refused():
    problem = lb.lift(nn.Sequential(nn.Linear(3, 2)).double(), loss=lb.SquaredError())
    data = torch.randn(4, 3, dtype=F64), torch.randn(4, 2, dtype=F64)
    with pytest.raises(errors.CompatibilityError, match=r"Constrained requires at least one hidden layer.* missing"):
        solvers.run(problem, data, Constrained(), epochs=1)

    class Stochastic(solvers.ProximalGradient):
        minibatch = True

    case = make("relu")
    with pytest.raises(errors.CompatibilityError, match=r"requires a solver that keeps .* Stochastic is made for"):
        solvers.run(case.problem, case.data, Constrained(solver=Stochastic()), epochs=1)

    class Nested(solvers.ProximalGradient):
        def init(self, problem, batch):
            state = super().init(problem, batch)
            state.variables = None
            return state

    with pytest.raises(errors.CompatibilityError, match=r"auxiliary variables.* missing: Nested has none"):
        solvers.run(case.problem, case.data, Constrained(solver=Nested()), epochs=1)
    with pytest.raises(errors.CompatibilityError, match="CoordinateDescent requires a sweep"):
        solvers.run(case.problem, case.data, Constrained(solver=CoordinateDescent(sweep=solvers.Jacobi())), epochs=1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tolerance": -1.0}, "tolerance"),
        ({"rate": 0.0}, "rate"),
        ({"floor": 0.0}, "floor"),
        ({"floor": 2.0, "cap": 1.0}, "must not exceed the cap"),
        ({"inner_steps": 0}, "inner_steps is 0"),
        ({"solver": "gradient"}, "solver is 'gradient'"),
    ],
)
def test_settings_that_are_refused(settings, says):
    with pytest.raises(errors.SettingError, match=says):
        Constrained(**settings)
