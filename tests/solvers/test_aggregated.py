"""PIAG, SAG and SAGA: iterates written out, exact solutions from scikit-learn, linear rates, the table itself."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers.piag import PIAG
from lifted_bregman.solvers.saga import SAG, SAGA
from lifted_bregman.solvers.stochastic_proximal_gradient import StochasticProximalGradient
from tests.problem.networks import conv_case, dense_case
from tests.problem.oracle import sample_terms
from tests.solvers.brute_networks import batches
from tests.solvers.problems import NAMES, make

F64 = torch.float64


def regression(outputs, penalty, samples=60):
    torch.manual_seed(1)
    problem = lb.lift(
        nn.Sequential(nn.Linear(5, outputs, dtype=F64)), loss=lb.SquaredError(), parameter_penalties={1: penalty}
    )
    X = torch.randn(samples, 5, dtype=F64) + 0.3
    Y = X @ torch.randn(5, outputs, dtype=F64) * 0.4 + 1.0 + torch.randn(samples, outputs, dtype=F64)
    return problem, X, Y


def theta(problem):
    module = problem.model[0]
    return np.hstack([module.weight.detach().numpy(), module.bias.detach().numpy()[:, None]])


def run_epochs(problem, data, solver, epochs, size, look):
    """A fixed partition, its parts in a random order in every epoch (PIAG: in the same order); look() each epoch."""
    parts = batches(problem, *data, size)
    state, seen = solver.init(problem, parts[0]), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = range(len(parts)) if isinstance(solver, PIAG) else torch.randperm(len(parts), generator=generator)
        for k in order:
            state = solver.step(problem, state, parts[k])
        seen.append(look())
    return state, seen


# the solver, samples a batch, epochs
METHODS = {
    "SAGA": (SAGA(), 5, 80),
    "SAG": (SAG(solvers.CurvatureStep(0.25, upper=False)), 5, 100),
    "PIAG": (PIAG(delay_bound=2), 20, 220),
}


def falls_linearly(distances):
    """To rounding; and the logarithm falls as much in the second half of the way down as in the first."""
    down = distances[: next(k for k, d in enumerate(distances) if d < 1e-9)]
    half = len(down) // 2
    first, second = math.log(down[0] / down[half]), math.log(down[half] / down[-1])
    return 0.5 < first / second < 2.0


@pytest.mark.parametrize("name", METHODS)
def test_ridge_to_the_exact_solution(name):
    """scikit-learn's Ridge has s times our weight; a stochastic gradient step of the same length stays away from it."""
    problem, X, Y = regression(2, lb.penalties.SquaredL2(0.1))
    model = Ridge(alpha=60 * 0.1, solver="cholesky").fit(X.numpy(), Y.numpy())
    exact = np.hstack([model.coef_, model.intercept_[:, None]])
    solver, size, epochs = METHODS[name]
    start = copy.deepcopy(problem.model.state_dict())
    look = lambda: float(np.linalg.norm(theta(problem) - exact))  # noqa: E731
    state, distances = run_epochs(problem, (X, Y), solver, epochs, size, look)
    assert distances[-1] < 1e-9 and falls_linearly(distances)
    problem.model.load_state_dict(start)
    t = state.metrics["step"][1]
    _, others = run_epochs(problem, (X, Y), StochasticProximalGradient(t), 40, size, look)
    assert min(others[-10:]) > 1e-4


@pytest.mark.parametrize("name", METHODS)
def test_lasso_to_the_exact_solution_and_support(name):
    problem, X, Y = regression(1, lb.penalties.L1(0.25))
    model = Lasso(alpha=0.25, tol=1e-14, max_iter=100000).fit(X.numpy(), Y.numpy()[:, 0])
    exact = np.append(model.coef_, model.intercept_)[None]
    assert 0 < np.count_nonzero(model.coef_) < 5
    solver, size, epochs = METHODS[name]
    look = lambda: float(np.linalg.norm(theta(problem) - exact))  # noqa: E731
    _, distances = run_epochs(problem, (X, Y), solver, epochs, size, look)
    assert distances[-1] < 1e-8
    assert np.array_equal(theta(problem)[0, :5] == 0, model.coef_ == 0)


@pytest.mark.parametrize("name", METHODS)
def test_logistic_regression(name):
    """Stationarity by autograd, and scikit-learn's probabilities."""
    torch.manual_seed(4)
    X, labels = torch.randn(60, 4, dtype=F64), torch.randint(0, 3, (60,))
    X[:, 0] += 0.5 * (labels - 1)
    problem = lb.lift(
        nn.Sequential(nn.Linear(4, 3, dtype=F64)),
        loss=lb.CrossEntropy(),
        parameter_penalties={1: lb.penalties.SquaredL2(0.6)},
    )
    module = problem.model[0]

    def slope():
        value = nn.functional.cross_entropy(module(X), labels) + 0.3 * module.weight.square().sum()
        return math.hypot(*(float(g.norm()) for g in torch.autograd.grad(value, (module.weight, module.bias))))

    solver, size, epochs = METHODS[name]
    _, slopes = run_epochs(problem, (X, labels), solver, epochs, size, slope)
    assert slopes[-1] < 1e-6
    model = LogisticRegression(C=1 / (60 * 0.6), tol=1e-10, max_iter=10000, solver="newton-cg").fit(X.numpy(), labels)
    found = torch.softmax(module(X), 1).detach().numpy()
    np.testing.assert_allclose(found, model.predict_proba(X.numpy()), atol=1e-6)


@pytest.mark.parametrize("kind", ["SAGA", "SAG", "PIAG"])
def test_iterates_with_a_table_of_whole_gradients(kind):
    """The textbook update with one stored gradient per batch and soft thresholding, for a ReLU loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, dtype=F64))
    alpha, t, s = 0.05, 0.15, 14
    problem = lb.lift(
        model, loss=lb.BregmanLoss(lb.activations.ReLU()), parameter_penalties={1: lb.penalties.L1(alpha)}
    )
    X, Y = torch.randn(s, 4, dtype=F64), torch.rand(s, 3, dtype=F64)
    parts = batches(problem, X, Y, 4)  # 4, 4, 4, 2
    solver = {"SAGA": SAGA(t), "SAG": SAG(t), "PIAG": PIAG(3, t)}[kind]
    state = solver.init(problem, parts[0])
    A = torch.cat([X, torch.ones(s, 1, dtype=F64)], 1)
    Theta = torch.cat([model[0].weight.detach(), model[0].bias.detach()[:, None]], 1)
    table = torch.zeros(4, 3, 5, dtype=F64)
    for k in [0, 1, 2, 3, 0, 1, 2, 3] if kind == "PIAG" else [0, 2, 3, 2, 1, 0, 0, 3]:
        i = parts[k].index
        fresh = ((A[i] @ Theta.T).clamp(min=0) - Y[i]).T @ A[i]  # a sum over the batch
        mean = table.sum(0) / s
        after = mean + (fresh - table[k]) / s
        direction = (fresh - table[k]) / len(i) + mean if kind == "SAGA" else after
        table[k] = fresh
        Theta = Theta - t * direction
        Theta[:, :4] = Theta[:, :4].sign() * (Theta[:, :4].abs() - t * alpha).clamp(min=0)
        state = solver.step(problem, state, parts[k])
        torch.testing.assert_close(model[0].weight.detach(), Theta[:, :4], rtol=0, atol=1e-13)
        torch.testing.assert_close(model[0].bias.detach(), Theta[:, 4], rtol=0, atol=1e-13)


@pytest.mark.parametrize("network", ["one layer", "deep"])
def test_saga_direction_is_unbiased(network):
    """From one state, the mean over all batches of (Θ - Θ⁺)/t is the gradient of E at Θ and the moved variables."""
    shape = ((4, 3), ()) if network == "one layer" else ((5, 7, 4, 2), ("tanh", "soft 0.3"))
    case = dense_case(*shape, samples=12)
    problem = case.problem()
    samples, t = len(case.X), 0.07
    X, Y = case.X, case.Y
    parts = batches(problem, X, Y, samples // 3)
    solver = SAGA(t, step_variable=0.2)
    state = solver.init(problem, parts[0])
    for k in (0, 2, 2, 1, 0):
        state = solver.step(problem, state, parts[k])
    saved, model = copy.deepcopy(state.state_dict()), copy.deepcopy(problem.model.state_dict())
    start = [p.detach().clone() for p in problem.model.parameters()]
    total = [torch.zeros_like(p) for p in start]
    moved = state.variables.clone()
    for batch in parts:
        problem.model.load_state_dict(model)
        state = solver.init(problem, batch)
        state.load_state_dict(saved)
        state = solver.step(problem, state, batch)
        moved.update(batch.index, state.variables.select(batch.index))
        for sum_, old, p in zip(total, start, problem.model.parameters(), strict=True):
            sum_ += (old - p.detach()) / t / len(parts)
    problem.model.load_state_dict(model)
    value = sum(term.mean() for term in sample_terms(case.stages, case.weights, [X, *moved, Y]))
    gradient = torch.autograd.grad(value, list(problem.model.parameters()))
    for found, expected in zip(total, gradient, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make_case", [lambda: dense_case(samples=9), conv_case], ids=["dense", "convolutions"])
@pytest.mark.parametrize("solver", [SAGA(0.02), SAG(0.02), PIAG(6, 0.02)], ids=lambda s: type(s).__name__)
def test_the_mean_is_that_of_the_table(solver, make_case):
    """(1/s) Σ_i λ_l J_Θᵀ d_l, rebuilt by autograd from the d_l and variables that are kept, a row of each a sample."""
    case = make_case()
    problem = case.problem()
    parts = batches(problem, case.X, case.Y, 2 if len(case.X) < 6 else 4)
    state = solver.init(problem, parts[0])
    for k in (0, 1, 0, 1, 1):
        state = solver.step(problem, state, parts[k])
    inputs = [case.X, *state.variables]
    for l, (f, _) in enumerate(case.stages, 1):
        parameters = problem.network[l].map.parameters
        image = (f(inputs[l - 1]) * state.residuals[l]).sum() * case.weights[l - 1] / len(case.X)
        for (name, _), expected in zip(
            parameters.items(), torch.autograd.grad(image, list(parameters.values())), strict=True
        ):
            torch.testing.assert_close(state.mean[l][name], expected, rtol=0, atol=1e-13)
        assert state.residuals[l].shape[0] == len(case.X) and state.residuals[l].ndim == f(inputs[l - 1]).ndim


def test_piag_decreases_its_lyapunov_function():
    """E + (L/2) Σ_{j=1..K} (K + 1 - j) ‖Θ^{k+1-j} - Θ^{k-j}‖² from the second epoch on, for t = 1.99/((2K + 1)L)."""
    problem, X, Y = regression(2, lb.penalties.L1(0.1))
    parts = batches(problem, X, Y, 10)
    K = len(parts) - 1
    A = np.hstack([X.numpy(), np.ones((60, 1))])
    L = sum(np.linalg.norm(A[b.index.numpy()], 2) ** 2 for b in parts) / 60
    solver = PIAG(K, 1.99 / ((2 * K + 1) * L))
    state, path, values = solver.init(problem, parts[0]), [theta(problem)], []
    for k in range(80):
        state = solver.step(problem, state, parts[k % len(parts)])
        path.append(theta(problem))
        moves = [np.sum((new - old) ** 2) for old, new in pairwise(path)][::-1]
        energy = float(problem.objective(X, Y))
        values.append(energy + L / 2 * sum((K + 1 - j) * moves[j - 1] for j in range(1, min(K, len(moves)) + 1)))
    assert all(after <= before + 1e-13 for before, after in pairwise(values[K:])) and values[-1] < values[K]


@pytest.mark.parametrize(("solver", "factor"), [(SAGA(), 1 / 3), (SAG(), 1 / 16), (PIAG(2), 1.9 / 5)])
def test_curvature_steps_take_the_worst_batch_so_far(solver, factor):
    """factor/L, with L the largest ‖[X_B 1]‖²/|B| met, a few per cent below; for PIAG 2K + 1 = 5 divides it."""
    problem, X, Y = regression(2, lb.penalties.L1(0.1), samples=12)
    X = X * torch.tensor([1.0] * 4 + [3.0] * 4 + [0.5] * 4, dtype=F64)[:, None]
    parts = batches(problem, X, Y, 4)
    state, worst = solver.init(problem, parts[0]), 0.0
    for batch in parts:
        state = solver.step(problem, state, batch)
        A = torch.cat([batch.X, torch.ones(4, 1, dtype=F64)], 1)
        worst = max(worst, float(torch.linalg.matrix_norm(A, 2)) ** 2 / 4)
        assert 0.96 * factor / worst < state.metrics["step"][1] <= factor / worst


def test_piag_refuses_orders_that_break_the_delay_bound():
    problem, X, Y = regression(1, lb.penalties.L1(0.1), samples=12)
    parts = batches(problem, X, Y, 4)
    solver = PIAG(delay_bound=2)
    state = solver.init(problem, parts[0])
    for k in (0, 1, 2, 0, 1, 2):
        state = solver.step(problem, state, parts[k])
    assert state.metrics["delay"] == 2.0
    state = solver.step(problem, state, parts[0])
    kept = theta(problem)
    with pytest.raises(errors.CompatibilityError, match="3 steps ago"):
        solver.step(problem, state, parts[2])
    assert np.array_equal(kept, theta(problem))
    drawn_afresh = PIAG(delay_bound=2 * 3 - 2)
    problem, X, Y = regression(1, lb.penalties.L1(0.1), samples=12)
    assert solvers.run(problem, (X, Y), drawn_afresh, epochs=30, batch_size=4).outcome is solvers.Outcome.FINISHED


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("solver", [SAGA(), SAG(), PIAG(4), SAGA(variable_steps=3)], ids=repr)
def test_the_objective_falls_on_every_problem(name, solver):
    case = make(name)
    before = float(case.problem.objective(*case.data))
    result = solvers.run(case.problem, case.data, solver, epochs=12, batch_size=4)
    assert result.outcome is solvers.Outcome.FINISHED and result.history[-1]["energy"] < before


@pytest.mark.parametrize("solver", [SAGA(), SAG(0.02), PIAG(2)], ids=lambda s: type(s).__name__)
def test_state_round_trip_continues_bitwise(solver):
    case = make("smooth")
    parts = batches(case.problem, *case.data, 4)
    state = solver.init(case.problem, parts[0])
    for k in range(2):
        state = solver.step(case.problem, state, parts[k % 3])
    saved, model = copy.deepcopy(state.state_dict()), copy.deepcopy(case.problem.model.state_dict())
    for k in range(2, 7):
        state = solver.step(case.problem, state, parts[k % 3])
    fresh = make("smooth", seed=1)
    fresh.problem.model.load_state_dict(model)
    again = solver.init(fresh.problem, parts[2])
    again.load_state_dict(saved)
    for k in range(2, 7):
        again = solver.step(fresh.problem, again, parts[k % 3])
    assert again.steps == 7 and again.metrics == state.metrics
    tensors = [*case.problem.model.parameters(), *state.variables]
    others = [*fresh.problem.model.parameters(), *again.variables]
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


def test_counters_by_hand():
    """Two layers.  x_1: z_2, σ_2, the adjoint, z_1, a prox.  Then z_2, σ_2 again and σ_1; the gradient of Θ_1 is one
    product since x_0 stays, that of Θ_2 two, of the new and of the old pair.
    """
    torch.manual_seed(0)
    problem = lb.lift(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double(), loss=lb.SquaredError())
    X, Y = torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64)
    batch = solvers.Batch.whole(problem, X, Y)
    for solver in (SAGA(0.1, 0.1), SAG(0.1, 0.1), PIAG(3, 0.1, 0.1)):
        state = solver.step(problem, solver.init(problem, batch), batch)
        problem.work.reset()
        solver.step(problem, state, batch)
        assert problem.work.as_dict() == {
            "forward_maps": 3,
            "adjoints": 1,
            "parameter_gradients": 3,
            "prox_maps": 4,
        }


@pytest.mark.parametrize(
    ("make_solver", "says"),
    [
        (lambda: PIAG(-1), "delay_bound"),
        (lambda: PIAG(2, 0.0), "step_parameter"),
        (lambda: SAGA(-0.1), "step_parameter"),
        (lambda: SAGA(step_variable=0.0), "step_variable"),
        (lambda: SAG(variable_steps=0), "variable_steps"),
    ],
)
def test_settings_that_are_refused(make_solver, says):
    with pytest.raises(errors.SettingError, match=says):
        make_solver()


@pytest.mark.parametrize("solver", [SAGA(), SAG(), PIAG(1)], ids=lambda s: type(s).__name__)
def test_maps_that_are_not_affine_are_refused(solver):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), lb.Map(nn.Linear(4, 2)))
    problem = lb.lift(model.double(), loss=lb.SquaredError())
    with pytest.raises(errors.CompatibilityError, match="affine"):
        solver.require(problem)
