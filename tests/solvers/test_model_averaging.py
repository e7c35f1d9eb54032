"""Model averaging and implicit parallel steps: closed forms on quadratics, workers that know only their own samples."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers.coordinate_descent import CoordinateDescent
from lifted_bregman.solvers.model_averaging import (
    ImplicitParallel,
    ModelAveraging,
    OneProcess,
    Team,
    deal,
    work_alone,
)
from lifted_bregman.solvers.parameters import accumulate, copy_parameters, overwrite, parameters_in_place, set_to_zero
from lifted_bregman.solvers.saga import SAGA
from lifted_bregman.solvers.schedules import Growing
from tests.solvers.problems import NAMES, make

F64 = torch.float64
PLAIN = solvers.ProximalGradient(step_rule=solvers.CurvatureStep(1.0))


def least_squares(samples=24):
    """One dense layer with squared error: E is a quadratic in Θ = [W b]."""
    torch.manual_seed(2)
    problem = lb.lift(nn.Sequential(nn.Linear(3, 2, dtype=F64)), loss=lb.SquaredError())
    X = torch.randn(samples, 3, dtype=F64) + 0.2
    return problem, X, torch.randn(samples, 2, dtype=F64)


def theta(problem):
    module = problem.model[0]
    return torch.cat([module.weight.detach(), module.bias.detach()[:, None]], 1).T


def quadratics(X, Y, parts):
    """H_p, g_p with E_p(Θ) = ½<Θ, H_pΘ> - <g_p, Θ> + constant, and |B_p|/s."""
    A = torch.cat([X, torch.ones(len(X), 1, dtype=F64)], 1)
    return [(A[p].T @ A[p] / len(p), A[p].T @ Y[p] / len(p), len(p) / len(X)) for p in parts]


@pytest.mark.parametrize("workers", [1, 3, 5])
def test_one_local_gradient_step_is_a_step_on_the_whole_set(workers):
    """The mean of Θ - t∇E_p with shares |B_p|/s is Θ - t∇E, also for parts of unequal size."""
    problem, X, Y = least_squares(24)
    H, g, _ = quadratics(X, Y, [torch.arange(24)])[0]
    expected = theta(problem)
    rule = solvers.FixedStep(parameter=0.1, variable=1.0)
    solver = ModelAveraging(workers, solvers.ProximalGradient(step_rule=rule), local_steps=1)
    batch = solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(4):
        state = solver.step(problem, state, batch)
        expected = expected - 0.1 * (H @ expected - g)
        torch.testing.assert_close(theta(problem), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("workers", [2, 5])
def test_solved_parts_give_the_mean_of_their_minimisers(workers):
    problem, X, Y = least_squares(27)
    parts = deal(27, workers, seed=4)
    exact = sum(w * torch.linalg.solve(H, g) for H, g, w in quadratics(X, Y, parts))
    solver = ModelAveraging(workers, CoordinateDescent(), local_steps=2, seed=4)
    batch = solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(2):
        state = solver.step(problem, state, batch)
        torch.testing.assert_close(theta(problem), exact, rtol=0, atol=1e-7)


def test_constant_weight_minimises_the_mean_of_moreau_envelopes_and_a_growing_one_the_mean():
    """E_p quadratic: the envelopes' stationarity Σ w_p (H_p + τ)⁻¹(H_pΘ - g_p) = 0 is a linear system; so is ∇E = 0."""
    problem, X, Y = least_squares()
    start, tau, workers = theta(problem), 0.6, 4
    parts = quadratics(X, Y, deal(24, workers, seed=0))
    eye = torch.eye(4, dtype=F64)
    left = sum(w * torch.linalg.solve(H + tau * eye, H) for H, _, w in parts)
    right = sum(w * torch.linalg.solve(H + tau * eye, g) for H, g, w in parts)
    enveloped = torch.linalg.solve(left, right)
    exact = torch.linalg.solve(sum(w * H for H, _, w in parts), sum(w * g for _, g, w in parts))
    gap = float(torch.linalg.matrix_norm(enveloped - exact))
    assert gap > 0.05

    def distances(weight, rounds, to, inner, local_steps):
        problem.network[1].map.module.weight.data.copy_(start.T[:, :3])
        problem.network[1].map.module.bias.data.copy_(start.T[:, 3])
        solver = ImplicitParallel(workers, weight, inner, local_steps)
        batch = solvers.Batch.whole(problem, X, Y)
        state, found = solver.init(problem, batch), []
        for _ in range(rounds):
            state = solver.step(problem, state, batch)
            found.append(float(torch.linalg.matrix_norm(theta(problem) - to)))
        return found

    anderson = solvers.ProximalGradient(acceleration=solvers.Anderson(6))
    assert distances(tau, 45, enveloped, anderson, 9)[-1] < 2e-5 * gap
    growing = distances(Growing(tau, 0.8), 180, exact, PLAIN, 4)
    assert growing[-1] < 0.1 * gap and growing[-1] < 0.5 * growing[59]  # O(1/τ_k), and 3^0.8 = 2.4


def test_a_round_of_exact_implicit_steps():
    """Θ̄⁺ = Σ w_p (H_p + τ)⁻¹(g_p + τΘ̄), parts of unequal size."""
    problem, X, Y = least_squares(22)
    parts = quadratics(X, Y, deal(22, 3, seed=7))
    expected = sum(
        w * torch.linalg.solve(H + 2.0 * torch.eye(4, dtype=F64), g + 2.0 * theta(problem)) for H, g, w in parts
    )
    solver = ImplicitParallel(3, 2.0, PLAIN, local_steps=60, seed=7)
    batch = solvers.Batch.whole(problem, X, Y)
    state = solver.step(problem, solver.init(problem, batch), batch)
    torch.testing.assert_close(theta(problem), expected, rtol=0, atol=1e-10)
    assert state.metrics["prox_weight"] == 2.0


@dataclass(frozen=True)
class Scattered(Team):
    """Workers in reverse order, their results kept apart and summed at the end, as processes would."""

    def average(self, work, shares, parameters, common, mean):
        results = {}
        for worker in reversed(range(len(shares))):
            overwrite(parameters, common)
            work(worker)
            results[worker] = copy.deepcopy(parameters)
        set_to_zero(mean)
        for worker, share in enumerate(shares):
            accumulate(mean, results[worker], share)
        overwrite(parameters, mean)


INNER = [
    solvers.ProximalGradient(),
    solvers.ProximalGradient(acceleration=solvers.Nesterov()),
    CoordinateDescent(block_iterations=8),
]


@pytest.mark.parametrize("inner", INNER, ids=lambda s: f"{type(s).__name__}, {getattr(s, 'acceleration', '')}")
@pytest.mark.parametrize("weight", [None, 0.7])
def test_workers_may_run_anywhere(weight, inner):
    """Bitwise the same: in one process, in another order, and in copies that get Θ and their own samples only."""

    def solver(team):
        if weight is None:
            return ModelAveraging(3, inner, local_steps=3, team=team)
        return ImplicitParallel(3, weight, inner, local_steps=3, team=team)

    results = []
    for team in (OneProcess(), Scattered()):
        case = make("smooth", samples=11)
        result = solvers.run(case.problem, case.data, solver(team), epochs=3)
        results.append([*(p.detach() for p in case.problem.model.parameters()), *result.state.variables])
    case = make("smooth", samples=11)
    for _ in range(3):
        common, mean = copy_parameters(case.problem), copy_parameters(case.problem)
        set_to_zero(mean)
        for places in deal(11, 3, seed=0):
            alone = make("smooth", samples=11)  # a problem with no past
            overwrite(parameters_in_place(alone.problem), common)
            own = solvers.Batch.whole(alone.problem, *case.data).select(places)
            work_alone(alone.problem, copy_parameters(alone.problem), weight or 0.0, inner, own, 3)
            accumulate(mean, parameters_in_place(alone.problem), len(places) / 11)
        overwrite(parameters_in_place(case.problem), mean)
    results.append([p.detach() for p in case.problem.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[2], strict=False))


def test_parts_are_a_partition_that_depends_on_the_seed():
    parts = deal(23, 4, seed=1)
    assert sorted(torch.cat(parts).tolist()) == list(range(23)) and {len(p) for p in parts} == {5, 6}
    assert all(torch.equal(a, b) for a, b in zip(parts, deal(23, 4, seed=1), strict=True))
    assert not torch.equal(parts[0], deal(23, 4, seed=2)[0])


SOLVERS = [
    ModelAveraging(3, local_steps=2),
    ImplicitParallel(2, Growing(0.8), local_steps=2),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("name", NAMES)
def test_every_problem_of_the_list(name, solver):
    case = make(name)
    before = float(case.problem.objective(*case.data))
    result = solvers.run(case.problem, case.data, solver, epochs=10)
    assert result.outcome is solvers.Outcome.FINISHED
    assert result.history[-1]["objective"] < before and result.history[-1]["energy"] < before
    assert result.history[-1]["parameter_gradients"] > 0


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_state_round_trip_continues_bitwise(solver):
    case = make("relu")
    batch = solvers.Batch.whole(case.problem, *case.data)
    state = solver.init(case.problem, batch)
    for _ in range(2):
        state = solver.step(case.problem, state, batch)
    saved, model = copy.deepcopy(state.state_dict()), copy.deepcopy(case.problem.model.state_dict())
    for _ in range(5):
        state = solver.step(case.problem, state, batch)
    fresh = make("relu", seed=1)
    fresh.problem.model.load_state_dict(model)
    again = solver.init(fresh.problem, batch)
    again.load_state_dict(saved)
    for _ in range(5):
        again = solver.step(fresh.problem, again, batch)
    assert again.steps == 7 and again.metrics == state.metrics
    tensors = [*case.problem.model.parameters(), *state.variables]
    others = [*fresh.problem.model.parameters(), *again.variables]
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


def test_counters_add_up_over_workers():
    """Two layers: m workers do what one does, each on its own samples."""
    counts = []
    for workers in (1, 3):
        problem = lb.lift(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double(), loss=lb.SquaredError())
        X, Y = torch.randn(6, 3, dtype=F64), torch.randn(6, 2, dtype=F64)
        solver = ModelAveraging(workers, solvers.ProximalGradient(step_rule=solvers.FixedStep(0.01, 0.1)), 1)
        batch = solvers.Batch.whole(problem, X, Y)
        state = solver.init(problem, batch)
        problem.work.reset()
        solver.step(problem, state, batch)
        counts.append(problem.work.as_dict())
    # the forward pass and a top-down sweep, counted by hand
    assert counts[0] == {"forward_maps": 1 + 3, "adjoints": 1, "parameter_gradients": 2, "prox_maps": 1 + 4}
    assert counts[1] == {key: 3 * count for key, count in counts[0].items()}


@pytest.mark.parametrize(
    ("make_solver", "says"),
    [
        (lambda: ModelAveraging(0), "workers"),
        (lambda: ModelAveraging(2, local_steps=0), "local_steps"),
        (lambda: ModelAveraging(2, SAGA()), "deterministic"),
        (lambda: ImplicitParallel(2, 0.0), "prox_weight"),
        (lambda: ImplicitParallel(2.5, 1.0), "workers"),
    ],
)
def test_settings_that_are_refused(make_solver, says):
    with pytest.raises(errors.SettingError, match=says):
        make_solver()


def test_more_workers_than_samples_are_refused():
    case = make("relu", samples=3)
    with pytest.raises(errors.SettingError, match="each worker needs at least one"):
        solvers.run(case.problem, case.data, ModelAveraging(4), epochs=1)
