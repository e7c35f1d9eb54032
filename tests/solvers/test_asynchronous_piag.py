"""Asynchronous PIAG in one process: the recursion written out, its bound, its Lyapunov function, its limits."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import AsynchronousPIAG, AtRandom, InTurn, Outcome, Recorded
from lifted_bregman.solvers.asynchronous_round import Round
from tests.sampling import over
from tests.solvers.asynchronous_orders import delays, moves
from tests.solvers.problems import make

F64 = torch.float64


def linear(outputs, penalty, samples=31, loss=None, features=5):
    """One layer; the rows of the parts are of different sizes."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(features, outputs, dtype=F64))
    problem = lb.lift(model, loss=loss or lb.SquaredError(), parameter_penalties={1: penalty})
    X = (torch.randn(samples, features, dtype=F64) + 0.3) * torch.linspace(0.5, 1.5, samples, dtype=F64)[:, None]
    Y = X @ torch.randn(features, outputs, dtype=F64) * 0.4 + 1.0 + torch.randn(samples, outputs, dtype=F64)
    return problem, X, Y


def theta(problem):
    module = problem.model[0]
    return np.hstack([module.weight.detach().numpy(), module.bias.detach().numpy()[:, None]])


def rounds_of(problem, data, solver, rounds, look=lambda: None, weights=None):
    """The state after some rounds, and the order and delays of each."""
    batch = solvers.Batch.whole(problem, *data, weights)
    state, order, ages = solver.init(problem, batch), [], []
    for _ in range(rounds):
        state = solver.step(problem, state, batch)
        order.append(state.order)
        ages += state.delays.tolist()
        look()
    return state, order, ages


# The recursion


def reference(problem, X, Y, w, solver, rounds):
    """Two dense layers, ReLU between them, λ_1 = 0.7, L1 on the weights of the first: with every Θ there ever was.

    Returns the parameters after each round, and the variables.
    """
    t, t_x, alpha, lam = 0.11, 0.4, 0.02, 0.7
    parts = np.array_split(np.arange(len(X)), solver.workers)
    first, second = (m for m in problem.model if isinstance(m, nn.Linear))
    Theta = [tuple(p.detach().numpy().copy() for p in (first.weight, first.bias, second.weight, second.bias))]
    x = np.maximum(X @ Theta[0][0].T + Theta[0][1], 0.0)
    g, ends, steps = [None] * solver.workers, [], list(moves(rounds, solver.workers))
    for update, came, versions in steps:
        for p in came:
            W1, b1, W2, b2 = Theta[versions[p]]
            i = parts[p]
            z1 = X[i] @ W1.T + b1
            for _ in range(solver.variable_steps):
                slope = (x[i] @ W2.T + b2 - Y[i]) @ W2 - lam * z1
                x[i] = np.maximum((x[i] - t_x * slope) / (1.0 + t_x * lam), 0.0)
            d1, d2 = lam * (np.maximum(z1, 0.0) - x[i]) * w[i, None], (x[i] @ W2.T + b2 - Y[i]) * w[i, None]
            g[p] = [v / len(X) for v in (d1.T @ X[i], d1.sum(0), d2.T @ x[i], d2.sum(0))]
        W1, b1, W2, b2 = (value - t * sum(terms) for value, terms in zip(Theta[-1], zip(*g, strict=True), strict=True))
        Theta.append((np.sign(W1) * np.maximum(np.abs(W1) - t * alpha, 0.0), b1, W2, b2))
        if (update + 1) % solver.round_updates == 0:
            ends.append(Theta[-1])
    return ends, x


EVERYBODY = [0, 1, 2]
ORDERS = {
    "in turn, K = workers - 1": (2, InTurn(), None),
    "in turn": (4, InTurn(), None),
    "at once": (0, InTurn(), None),
    "at random": (7, AtRandom(3), None),
    "recorded": (
        6,
        None,
        [[EVERYBODY, [0], [0], [2], [0, 2], [1], EVERYBODY], [[2], [2], [1, 2], [2], [0], [2], EVERYBODY]],
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_iterates_are_those_of_the_recursion_in_numpy(name):
    """In float64 NumPy with every Θ kept, for weighted samples, parts of unequal size and two sweeps over variables."""
    bound, team, given = ORDERS[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.7], parameter_penalties={1: lb.penalties.L1(0.02)})
    X, Y = torch.randn(11, 4, dtype=F64), torch.randn(11, 2, dtype=F64)
    w = torch.linspace(0.4, 1.6, 11, dtype=F64)
    if given is not None:
        team = Recorded([came for order in given for came in order])
    solver = AsynchronousPIAG(3, bound, 7, 0.11, 0.4, variable_steps=2, team=team)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    ends = []
    state, rounds, ages = rounds_of(
        problem, (X, Y), solver, 2, lambda: ends.append([p.detach().clone() for p in model.parameters()]), w
    )
    assert given is None or rounds == given
    model.load_state_dict(start)
    expected, x = reference(problem, X.numpy(), Y.numpy(), (w / w.mean()).numpy(), solver, rounds)
    for found, values in zip(ends, expected, strict=True):
        for p, value in zip(found, values, strict=True):
            np.testing.assert_allclose(p.numpy(), value, rtol=0, atol=1e-13)
    np.testing.assert_allclose(state.variables[1].numpy(), x, rtol=0, atol=1e-13)
    assert ages == delays(rounds, 3) and max(ages) <= bound and state.updates == 14


# The bound


@over(str, 4, workers=[1, 2, 3, 5], bound=[0, 1, 2, 4, 9, 30], team=[InTurn(), *(AtRandom(seed) for seed in range(4))])
def test_the_bound_is_kept_and_recorded(workers, bound, team):
    """Delays are those that the order implies, and never above K; the metrics are theirs."""
    problem, X, Y = linear(1, lb.penalties.L1(0.1), samples=7)
    solver = AsynchronousPIAG(workers, bound, 13, team=team)
    state, rounds, ages = rounds_of(problem, (X, Y), solver, 3)
    assert ages == delays(rounds, workers) and max(ages) <= bound
    assert state.metrics["delay"] == max(ages[-13:]) and state.metrics["delay_mean"] == np.mean(ages[-13:])
    everybody = list(range(workers))
    assert rounds[0][0] == everybody and all(order[-1] == everybody for order in rounds)
    steps = list(moves(rounds, workers))
    at_bound = 0
    for (_, _, before), (update, came, _) in pairwise(steps):
        too_old = [p for p, version in enumerate(before) if update - version > bound]
        at_bound += bool(too_old) and update >= 26
        if update % 13 != 12:
            assert came == too_old or (not too_old and len(came) == 1), "one at a time, unless the bound wants more"
    assert state.at_bound == state.metrics["at_bound"] == at_bound


@pytest.mark.parametrize("workers", [2, 3, 6])
def test_workers_of_one_speed_have_twice_the_delay_of_their_turn(workers):
    """2m - 2, which is all the bound they need; with less, several have to come together."""
    solver = AsynchronousPIAG(workers, 2 * workers - 2, 40)
    problem, X, Y = linear(1, lb.penalties.L1(0.1))
    _, (order,), ages = rounds_of(problem, (X, Y), solver, 1)
    assert order[1:-1] == [[(k - 1) % workers] for k in range(1, 39)] and max(ages) == 2 * workers - 2
    problem, X, Y = linear(1, lb.penalties.L1(0.1))
    _, (order,), _ = rounds_of(problem, (X, Y), AsynchronousPIAG(workers, 2 * workers - 3, 40), 1)
    assert any(len(came) > 1 for came in order[1:-1])


def test_at_random_is_a_function_of_seed_and_update():
    orders = []
    for seed in (1, 1, 2):
        problem, X, Y = linear(1, lb.penalties.L1(0.1))
        orders.append(rounds_of(problem, (X, Y), AsynchronousPIAG(4, 20, team=AtRandom(seed)), 2)[1])
    assert orders[0] == orders[1] != orders[2] and orders[0][0] != orders[0][1]
    assert {p for came in orders[0][0][1:-1] for p in came} == {0, 1, 2, 3}


# What is guaranteed


@pytest.mark.parametrize(("workers", "bound"), [(2, 1), (3, 4), (4, 9), (5, 20)])
@pytest.mark.parametrize("seed", range(3))
def test_the_lyapunov_function_decreases_whoever_comes_when(workers, bound, seed, monkeypatch):
    """E + (L/2) Σ_{j=1..K} (K + 1 - j) ‖Δ_{k-j}‖², for t = 1.99/((2K + 1)L), L = Σ_p (|p|/s) L_p, from the start on."""
    problem, X, Y = linear(2, lb.penalties.L1(0.1))
    A = np.hstack([X.numpy(), np.ones((31, 1))])
    L = sum(np.linalg.norm(rows, 2) ** 2 for rows in np.array_split(A, workers)) / 31
    path, energies, original = [theta(problem)], [float(problem.objective(X, Y))], Round._move

    def watched(self, values, update):
        original(self, values, update)
        path.append(theta(problem))
        energies.append(float(problem.objective(X, Y)))

    monkeypatch.setattr(Round, "_move", watched)
    solver = AsynchronousPIAG(workers, bound, 30, 1.99 / ((2 * bound + 1) * L), team=AtRandom(seed))
    _, _, ages = rounds_of(problem, (X, Y), solver, 3)
    assert max(ages) == bound and len(energies) == 91
    moved = [np.sum((new - old) ** 2) for old, new in pairwise(path)]
    values = [
        energy + L / 2 * sum((bound + 1 - j) * moved[k - j] for j in range(1, min(bound, k) + 1))
        for k, energy in enumerate(energies)
    ]
    assert all(after <= before + 1e-13 for before, after in pairwise(values)) and values[-1] < values[0]


TEAMS = [InTurn(), AtRandom(5)]


@pytest.mark.parametrize("team", TEAMS, ids=repr)
def test_ridge_to_the_exact_solution(team):
    problem, X, Y = linear(2, lb.penalties.SquaredL2(0.1))
    model = Ridge(alpha=31 * 0.1, solver="cholesky").fit(X.numpy(), Y.numpy())
    exact = np.hstack([model.coef_, model.intercept_[:, None]])
    rounds_of(problem, (X, Y), AsynchronousPIAG(3, 5, 300, team=team), 8)
    assert np.linalg.norm(theta(problem) - exact) < 1e-9


@pytest.mark.parametrize("team", TEAMS, ids=repr)
def test_lasso_to_the_exact_solution_and_support(team):
    problem, X, Y = linear(1, lb.penalties.L1(0.4))
    model = Lasso(alpha=0.4, tol=1e-14, max_iter=100000).fit(X.numpy(), Y.numpy()[:, 0])
    assert 0 < np.count_nonzero(model.coef_) < 5
    rounds_of(problem, (X, Y), AsynchronousPIAG(3, 5, 300, team=team), 8)
    np.testing.assert_allclose(theta(problem)[0], [*model.coef_, model.intercept_], rtol=0, atol=1e-8)
    assert np.array_equal(theta(problem)[0, :5] == 0, model.coef_ == 0)


def test_weighted_logistic_regression():
    """Stationarity by autograd, and scikit-learn's probabilities, for weighted samples."""
    problem, X, _ = linear(3, lb.penalties.SquaredL2(0.6), loss=lb.CrossEntropy())
    labels = torch.arange(31) % 3
    X[:, 0] += 0.5 * (labels - 1)
    w = torch.linspace(0.2, 2.0, 31, dtype=F64)
    rounds_of(problem, (X, labels), AsynchronousPIAG(4, 7, 300, team=AtRandom(0)), 8, weights=w)
    module = problem.model[0]
    value = (w / w.mean() * nn.functional.cross_entropy(module(X), labels, reduction="none")).mean()
    slopes = torch.autograd.grad(value + 0.3 * module.weight.square().sum(), (module.weight, module.bias))
    assert math.hypot(*(float(slope.norm()) for slope in slopes)) < 1e-6
    model = LogisticRegression(C=1 / (31 * 0.6), tol=1e-10, max_iter=10000, solver="newton-cg")
    model.fit(X.numpy(), labels, sample_weight=(w / w.mean()).numpy())
    np.testing.assert_allclose(torch.softmax(module(X), 1).detach().numpy(), model.predict_proba(X.numpy()), atol=1e-6)


@pytest.mark.parametrize("bound", [0, 3])
def test_the_step_size_is_that_of_the_guarantee(bound):
    """factor/((2K + 1) Σ_p ‖[X_p 1]‖²/s), a few per cent below."""
    problem, X, Y = linear(2, lb.penalties.L1(0.1))
    state, _, _ = rounds_of(problem, (X, Y), AsynchronousPIAG(4, bound, 6), 2)
    A = np.hstack([X.numpy(), np.ones((31, 1))])
    norms = [np.linalg.norm(rows, 2) ** 2 / 31 for rows in np.array_split(A, 4)]
    expected = 1.9 / ((2 * bound + 1) * sum(norms))
    assert 0.97 * expected < state.metrics["step"][1] <= expected
    assert [own[1] for own in state.curvature] == pytest.approx(norms, rel=0.02)


# Replays and refusals


def test_a_recorded_run_is_the_run():
    ends = []
    team, recorded = AtRandom(2), []
    for _ in range(2):
        case = make("smooth")
        state, rounds, _ = rounds_of(case.problem, case.data, AsynchronousPIAG(4, 9, 11, team=team), 3)
        recorded.append(rounds)
        ends.append([*(p.detach() for p in case.problem.model.parameters()), *state.variables])
        team = Recorded([came for order in rounds for came in order])
    assert recorded[0] == recorded[1] and all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ([[0, 1, 2]] * 4, "has 4 updates, and this round needs those up to 5"),
        ([[0, 1, 2], [0], [0], [0], [0, 1, 2]], "update 3 of the recorded order leaves out worker 1"),
        ([[0, 1], [2], [0], [1], [0, 1, 2]], "update 0 of the recorded order leaves out worker 2"),
        ([[0, 1, 2], [0], [1], [2], [1, 2]], "update 4 of the recorded order leaves out worker 0"),
        ([[0, 1, 2], [], [1], [2], [0, 1, 2]], r"update 1 of the recorded order has the workers \[\]"),
        ([[0, 1, 3], [0], [1], [2], [0, 1, 2]], r"\[0, 1, 3\]; it must be at least one of 0 to 2"),
    ],
)
def test_an_order_that_cannot_be_played_is_refused_before_the_round(order, says):
    problem, X, Y = linear(1, lb.penalties.L1(0.1))
    solver = AsynchronousPIAG(3, 2, 5, team=Recorded(order))
    before = theta(problem)
    with pytest.raises(errors.SettingError, match=says):
        rounds_of(problem, (X, Y), solver, 1)
    assert np.array_equal(before, theta(problem))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"delay_bound": -1}, "delay_bound is -1"),
        ({"delay_bound": 1.5}, "delay_bound is 1.5"),
        ({"updates": 0}, "updates is 0"),
        ({"step_parameter": 0.0}, "step_parameter"),
        ({"step_variable": -1.0}, "step_variable"),
        ({"variable_steps": 0}, "variable_steps is 0"),
    ],
)
def test_settings_that_are_refused(settings, says):
    with pytest.raises(errors.SettingError, match=says):
        AsynchronousPIAG(**{"workers": 2, "delay_bound": 3, **settings})


def test_more_workers_than_samples_are_refused():
    case = make("relu")
    with pytest.raises(errors.SettingError, match="workers is 13 for 12 samples"):
        solvers.run(case.problem, case.data, AsynchronousPIAG(13, 30), epochs=1)


def test_numbers_that_are_not_finite_end_the_run(monkeypatch):
    """In the gradient of a worker, and in the parameters after an update; finite parameters are put back."""
    original = Round.work

    def broken(self, worker, version):
        done = original(self, worker, version)
        if worker == 1 and version >= 12:
            done.gradient[2]["bias"][0] = math.nan
        return done

    case = make("relu")
    with monkeypatch.context() as patch:
        patch.setattr(Round, "work", broken)
        result = solvers.run(case.problem, case.data, AsynchronousPIAG(2, 4, 10), epochs=5)
    assert result.outcome is Outcome.DIVERGED and len(result.history) == 1
    assert "the gradient of worker 1 in Θ_2 is not finite at update 1" in result.message
    assert all(bool(p.isfinite().all()) for p in case.problem.model.parameters())
    case = make("relu")
    result = solvers.run(case.problem, case.data, AsynchronousPIAG(2, 4, 10, step_parameter=1e308), epochs=5)
    assert result.outcome is Outcome.DIVERGED and "is not finite at update" in result.message
    assert all(bool(p.isfinite().all()) for p in case.problem.model.parameters())
