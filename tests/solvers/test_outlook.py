"""StochasticADMM, PrimalDual, RandomCoordinateDescent: minima found elsewhere, stated rates, iterates written out."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, penalties, solvers
from lifted_bregman.problem.blocks import ParameterBlock, VariableBlock
from lifted_bregman.solvers.batches import InMemory
from lifted_bregman.solvers.random_coordinate_descent import UnitBlock, move, probabilities
from lifted_bregman.solvers.steps import block_values
from tests import cases
from tests.solvers.problems import make
from tests.solvers.test_convex_oracles import ORACLES, check

F64 = torch.float64
SOLVERS = [solvers.StochasticADMM(), solvers.PrimalDual(dual_step=0.3), solvers.RandomCoordinateDescent(parts=3)]


def epochs(solver, problem, data, count, size=10, weights=None):
    """The state after some epochs of batches in a fresh order each, or of steps on the whole set."""
    source = InMemory(solvers.Batch.whole(problem, *data, weights), size if solver.minibatch else None, 0)
    state = solver.init(problem, source.first)
    for epoch in range(1, count + 1):
        for batch in source.epoch(epoch):
            state = solver.step(problem, state, batch)
    return state


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("solver", SOLVERS, ids=cases.name)
def test_one_layer_ends_at_the_minimum_that_others_find(solver, name):
    oracle = ORACLES[name]()
    problem = oracle.problem()
    state = epochs(solver, problem, oracle.data, 120)
    check(oracle, problem, state)
    if name == "lasso":
        np.testing.assert_array_equal(problem.model[0].weight.detach().numpy() == 0.0, oracle.W == 0.0)


@pytest.mark.parametrize("solver", SOLVERS, ids=cases.name)
def test_weighted_least_squares(solver):
    """NumPy solves diag(√w)[X 1]Θ = diag(√w)Y."""
    generator = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(24, n, generator=generator, dtype=F64) for n in (3, 2))
    w = torch.rand(24, generator=generator, dtype=F64) + 0.2
    A = torch.cat([X, torch.ones(24, 1, dtype=F64)], 1) * w.sqrt()[:, None]
    expected = np.linalg.lstsq(A.numpy(), (Y * w.sqrt()[:, None]).numpy(), rcond=None)[0]
    problem = lb.lift(nn.Sequential(nn.Linear(3, 2)).double(), loss=lb.SquaredError())
    epochs(solver, problem, (X, Y), 120, size=6, weights=w)
    found = torch.cat([problem.model[0].weight, problem.model[0].bias[:, None]], 1).detach()
    np.testing.assert_allclose(found.t().numpy(), expected, atol=1e-7)


# PrimalDual


def test_primal_dual_iterates_are_those_of_the_published_method():
    """Written with whole matrices: a ReLU layer, an l1 penalty, batches of a partition in a given order."""
    torch.manual_seed(0)
    X, Y = torch.randn(12, 4, dtype=F64), torch.randn(12, 3, dtype=F64).relu()
    model = nn.Sequential(nn.Linear(4, 3, bias=False)).double()
    problem = lb.lift(model, loss=lb.BregmanLoss(lb.activations.ReLU()), parameter_penalties={1: penalties.L1(0.05)})
    solver, whole = solvers.PrimalDual(dual_step=0.7, factor=0.9), solvers.Batch.whole(problem, X, Y)
    parts = torch.arange(12).split(4)
    W, q, largest = model[0].weight.detach().clone(), Y.clone(), 0.0
    state = solver.init(problem, whole.select(parts[0]))
    for k in (0, 1, 2, 2, 0, 1, 1, 0, 2):
        state = solver.step(problem, state, whole.select(parts[k]))
        i = parts[k]
        before = (q - Y).t() @ X / 12
        # argmax over q >= 0 of <z, q> - ½q² - (q - q_old)²/2σ
        q[i] = ((q[i] + 0.7 * X[i] @ W.t()) / 1.7).clamp(min=0.0)
        after = (q - Y).t() @ X / 12
        largest = max(largest, float(torch.linalg.matrix_norm(X[i], 2)) ** 2 / 4)
        tau = state.metrics["step"][1]
        assert tau == pytest.approx(0.9 / (0.7 * largest), rel=0.011) and tau * 0.7 * largest < 0.9
        V = W - tau * (after + 3 * (after - before))
        W = V.sign() * (V.abs() - tau * 0.05).clamp(min=0.0)
        torch.testing.assert_close(model[0].weight.detach(), W, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ORACLES)
def test_the_gap_bounds_the_distance_to_the_minimum_and_vanishes(name):
    oracle, solver = ORACLES[name](), solvers.PrimalDual(dual_step=0.3)
    problem = oracle.problem()
    source = InMemory(solvers.Batch.whole(problem, *oracle.data), 10, 0)
    state, gaps = solver.init(problem, source.first), []
    for epoch in range(1, 101):
        for batch in source.epoch(epoch):
            state = solver.step(problem, state, batch)
        gap = solver.gap(problem, state, source.data)
        W, b = (p.detach().numpy() for p in problem.model.parameters())
        offset = b - oracle.b
        if isinstance(oracle.loss, lb.CrossEntropy):
            offset = offset - offset.mean()  # the nearest of the minimisers
        distance = math.hypot(np.linalg.norm(W - oracle.W), np.linalg.norm(offset))
        excess = float(problem.objective(*oracle.data)) - oracle.energy
        assert excess <= gap.value * max(1.0, distance / gap.radius) + 1e-11
        gaps.append(gap.value)
    assert gaps[-1] < 1e-7 < 1e-2 < gaps[0]


def test_the_gap_of_a_strongly_convex_penalty_holds_everywhere():
    torch.manual_seed(0)
    X, Y = torch.randn(20, 3, dtype=F64), torch.randn(20, 2, dtype=F64)
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalties.SquaredL2(0.3)})
    solver, whole = solvers.PrimalDual(), solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, whole)
    # dual p = 0: min over Θ of <0, Θ> + P is 0, so that the gap is E itself
    gap = solver.gap(problem, state, whole)
    assert gap.radius == math.inf and gap.value == pytest.approx(float(problem.objective(X, Y)), rel=1e-12)
    for _ in range(300):
        state = solver.step(problem, state, whole)
    assert solver.gap(problem, state, whole).value < 1e-12


def test_the_gap_is_refused_where_there_is_none():
    case, solver = make("relu"), solvers.PrimalDual()
    batch = solvers.Batch.whole(case.problem, *case.data)
    with pytest.raises(errors.CompatibilityError, match="of one layer, and the model has 3"):
        solver.gap(case.problem, solver.init(case.problem, batch), batch)
    linear = nn.Sequential(nn.Linear(5, 3)).double()
    problem = lb.lift(linear, loss=lb.SquaredError(), parameter_penalties={1: penalties.GroupL2(0.1)})
    batch = solvers.Batch.whole(problem, *case.data)
    with pytest.raises(errors.CompatibilityError, match="conjugate of GroupL2"):
        solver.gap(problem, solver.init(problem, batch), batch)


def test_primal_dual_on_one_hidden_layer_with_fixed_weights_finds_the_exact_variables():
    """Θ is frozen, so that the problem in X is convex; coordinate descent solves its one block exactly."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model.requires_grad_(False)
    model[2].bias.requires_grad_(True)
    model[2].bias.data.zero_()
    X, Y = torch.randn(9, 4, dtype=F64), torch.randn(9, 3, dtype=F64)
    Y -= Y.mean(0)
    problem = lb.lift(model, loss=lb.SquaredError())
    state = epochs(solvers.PrimalDual(), problem, (X, Y), 600, size=9)
    assert problem.certificates(state.variables, X, Y).largest < 1e-9


# StochasticADMM


def admm_problem():
    generator = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(20, n, generator=generator, dtype=F64) for n in (4, 2))
    model = nn.Sequential(nn.Linear(4, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalties.SquaredL2(0.02)})
    return problem, X, Y


def test_the_stated_rate_of_stochastic_admm_holds_in_expectation():
    """Squared error, ρ = 0, δ = 3: 1 - κ = ¼(1 + ½)², so that ‖v - v*‖² falls by (1 - κ/m) per random batch."""
    delta, parts = 3.0, torch.arange(20).split(4)
    problem, X, Y = admm_problem()
    solver, whole = solvers.StochasticADMM(coupling=delta, damping=0.0), solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, whole)
    state = solver.step(problem, state, whole)  # now every sample is part of the sums
    A = torch.cat([X, torch.ones(20, 1, dtype=F64)], 1)
    damping = torch.diag(torch.tensor([20 * 0.02] * 4 + [0.0], dtype=F64))
    best = A @ torch.linalg.solve(A.t() @ A + damping, A.t() @ Y)
    solution = best + (best - Y) / delta  # v* = AΘ* + p*/δ

    def distance(state):
        v = (state.targets[1] + 2.0 * state.duals[1]) / delta  # z + p/δ
        return float((v - solution).square().sum())

    factor = 1.0 - (1.0 - 0.25 * 1.5**2) / 5
    for last in (0, 3, 3, 1, 4, 2, 0, 1):
        # the expectation over the batch that comes next is the mean over all five
        ends = []
        for part in parts:
            twin, other = copy.deepcopy(problem), solver.init(problem, whole)
            other.load_state_dict(state.state_dict())
            ends.append(distance(solver.step(twin, other, whole.select(part))))
        assert 0.9 * distance(state) * factor**4 < np.mean(ends) <= factor * distance(state) * (1.0 + 1e-12)
        state = solver.step(problem, state, whole.select(parts[last]))


@pytest.mark.parametrize("penalty", [None, penalties.SquaredL2(0.1), penalties.L1(0.05)], ids=repr)
def test_stochastic_admm_iterates_written_out(penalty):
    """All samples' z and multipliers as matrices, Θ by a dense solve over all of them."""
    torch.manual_seed(0)
    X, Y = torch.randn(12, 4, dtype=F64), torch.randn(12, 3, dtype=F64).relu()
    model = nn.Sequential(nn.Linear(4, 3)).double()
    given = {} if penalty is None else {1: penalty}
    problem = lb.lift(model, loss=lb.BregmanLoss(lb.activations.ReLU()), parameter_penalties=given)
    delta, solver = 0.8, solvers.StochasticADMM(coupling=0.8, damping=0.2)
    whole, parts = solvers.Batch.whole(problem, X, Y), torch.arange(12).split(4)
    A = torch.cat([X, torch.ones(12, 1, dtype=F64)], 1)
    theta = torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach().clone()
    V, nu = theta.clone(), torch.zeros_like(theta)
    z, p, known = torch.zeros(12, 3, dtype=F64), torch.zeros(12, 3, dtype=F64), torch.zeros(12, dtype=torch.bool)
    l1, l2 = getattr(penalty, "weight", 0.0), 0.0
    if isinstance(penalty, penalties.SquaredL2):
        l1, l2 = 0.0, l1
    state = solver.init(problem, whole.select(parts[0]))
    for k in (0, 1, 2, 2, 0, 1, 1, 0):
        state = solver.step(problem, state, whole.select(parts[k]))
        i = parts[k]
        if not known[i[0]]:
            p[i] = (A[i] @ theta.t()).relu() - Y[i]
        known[i] = True
        # z minimises ½relu(z)² - <y + p, z> + (δ/2)‖z - AΘ‖²: (1 + δ)z = r if r > 0, δz = r otherwise
        r = delta * A[i] @ theta.t() + Y[i] + p[i]
        z[i] = torch.where(r > 0, r / (1 + delta), r / delta)
        p[i] = z[i].relu() - Y[i]
        B = A[known]
        rho = 0.2 * delta * float((B * B).sum() / 12 / 5)
        on_weights = torch.tensor([l2] * 4 + [0.0], dtype=F64)
        M = delta * B.t() @ B / 12 + torch.diag(on_weights + rho)
        right = (delta * z[known] - p[known]).t() @ B / 12 + nu + rho * V
        theta = torch.linalg.solve(M, right.t()).t()
        ahead = theta - nu / rho
        V = ahead.clone()
        V[:, :4] = ahead[:, :4].sign() * (ahead[:, :4].abs() - l1 / rho).clamp(min=0.0)
        nu = nu + rho * (V - theta)
        found = torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach()
        torch.testing.assert_close(found, V, rtol=1e-10, atol=1e-11)


def test_stochastic_admm_leaves_a_stationary_point_alone():
    case = make("smooth")
    exact = solvers.CoordinateDescent(tolerance=1e-13, block_iterations=5000, prox_weight=0.01)
    problem = lb.lift(
        case.problem.model,
        loss=lb.SquaredError(),
        weights=[0.7, 2.0],
        parameter_penalties={l: penalties.SquaredL2(0.2) for l in (1, 2, 3)},
    )
    batch = solvers.Batch.whole(problem, *case.data)
    found = exact.init(problem, batch)
    for _ in range(150):
        found = exact.step(problem, found, batch)
    assert problem.certificates(found.variables, *case.data).largest < 1e-9
    before = [p.detach().clone() for p in problem.model.parameters()]
    solver = solvers.StochasticADMM()
    state = solver.init(problem, batch)
    state.variables = found.variables
    for _ in range(3):
        state = solver.step(problem, state, batch)
    for p, q in zip(problem.model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=0.0, atol=1e-8)


# RandomCoordinateDescent


def coordinates(problem, X, Y, solver, variables=None):
    batch = solvers.Batch.whole(problem, X, Y)
    point = batch.point(problem, variables or problem.forward_state(batch.X)).complete()
    return point, list(solver.blocks(problem, point))


def numpy_curvature(problem, point, b: UnitBlock) -> float:
    """L_b by NumPy's norms."""
    l, s = b.block.layer, len(point.x[0])
    if isinstance(b.block, VariableBlock):
        W = problem.network[l + 1].map.module.weight.detach().numpy()[:, b.units]
        return problem.weight(l + 1) * np.linalg.norm(W, 2) ** 2 + problem.weight(l)
    A = np.ones((s, 1)) if b.units is None else point.x[l - 1].numpy()[:, b.units]
    return problem.weight(l) * np.linalg.norm(A, 2) ** 2 / s


def test_probabilities_are_proportional_to_curvature():
    case = make("smooth")
    solver = solvers.RandomCoordinateDescent(parts=3, sample_parts=2, importance=1.0, updates=1)
    point, blocks = coordinates(case.problem, *case.data, solver)
    L = np.array([numpy_curvature(case.problem, point, b) for b in blocks])
    np.testing.assert_allclose(probabilities(L.tolist(), 1.0).numpy(), L / L.sum(), rtol=1e-12)
    np.testing.assert_allclose(probabilities(L.tolist(), 0.5).numpy(), L**0.5 / (L**0.5).sum(), rtol=1e-12)
    np.testing.assert_allclose(probabilities(L.tolist(), 0.0).numpy(), 1.0 / len(L), rtol=1e-12)
    # a block without curvature has its turn too: it counts as a hundredth of the mean
    assert float(probabilities([0.0, 2.0], 1.0)[0]) == pytest.approx(0.01 / 2.01)
    state = solver.init(case.problem, solvers.Batch.whole(case.problem, *case.data))
    state = solver.step(case.problem, state, solvers.Batch.whole(case.problem, *case.data))
    assert state.metrics["total_curvature"] == pytest.approx(L.sum(), rel=1e-9)
    # which blocks come is a matter of the seed, and rare ones come rarely
    drawn = torch.multinomial(
        probabilities(L.tolist(), 1.0), 20_000, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    share = np.bincount(drawn.numpy(), minlength=len(L)) / 20_000
    assert np.abs(share - L / L.sum()).max() < 4 * np.sqrt(0.25 / 20_000)


@pytest.mark.parametrize("name", ["relu", "smooth", "sparse code", "classes", "joint"])
def test_every_update_decreases_the_energy_as_stated_and_so_does_their_expectation(name):
    """By (L_b/2)‖Δ‖² for a step 1/L, ‖·‖² with 1/s for variables; the mean over p_b ∝ L_b follows."""
    case = make(name)
    solver = solvers.RandomCoordinateDescent(parts=3, sample_parts=2, importance=1.0)
    start = solvers.ProximalGradient()
    batch = solvers.Batch.whole(case.problem, *case.data)
    state = start.init(case.problem, batch)
    for _ in range(3):  # away from the forward pass, where variables have no slope
        state = start.step(case.problem, state, batch)
    before = float(case.problem.energy(state.variables, *case.data))
    _, blocks = coordinates(case.problem, *case.data, solver, state.variables.clone())
    assert {type(b.block) for b in blocks} == {ParameterBlock, VariableBlock}
    expected, promised, total = 0.0, 0.0, 0.0
    for b in blocks:
        problem = copy.deepcopy(case.problem)
        point, _ = coordinates(problem, *case.data, solver, state.variables.clone())
        L = numpy_curvature(problem, point, b)
        smooth = L - (problem.weight(b.block.layer) if isinstance(b.block, VariableBlock) else 0.0)
        old = {name: v.clone() for name, v in block_values(problem, point, b.block).items()}
        z = {l: point.z(l) for l in range(1, problem.depth + 1)}
        if smooth == 0.0:  # units that no sample switches on
            continue
        move(problem, point, b, 1.0 / smooth)
        moved = sum(float((v - old[name]).square().sum()) for name, v in block_values(problem, point, b.block).items())
        moved *= 1.0 / len(case.X) if isinstance(b.block, VariableBlock) else 1.0
        after = float(problem.energy(point.state, *case.data))
        assert after <= before - 0.5 * L * moved + 1e-12
        for l, value in z.items():  # z was changed by what the block changes of it
            torch.testing.assert_close(value, problem.network[l].map.apply(point.x[l - 1]), rtol=1e-12, atol=1e-13)
        expected, promised, total = expected + L * after, promised + L * 0.5 * L * moved, total + L
    assert expected / total <= before - promised / total + 1e-12


def test_the_expected_descent_of_a_smooth_problem():
    """One layer, no penalty: E[E(after)] <= E - ‖∇E‖²/(2ΣL), the gradient by autograd, the mean over all blocks."""
    problem, X, Y = admm_problem()
    problem = lb.lift(problem.model, loss=lb.SquaredError())
    solver = solvers.RandomCoordinateDescent(parts=2)
    loss = 0.5 * (problem.model(X) - Y).square().sum(1).mean()
    slope = sum(float(g.square().sum()) for g in torch.autograd.grad(loss, list(problem.model.parameters())))
    point, blocks = coordinates(problem, X, Y, solver)
    L = [numpy_curvature(problem, point, b) for b in blocks]
    expected = 0.0
    for b, curvature in zip(blocks, L, strict=True):
        twin = copy.deepcopy(problem)
        move(twin, coordinates(twin, X, Y, solver)[0], b, 1.0 / curvature)
        expected += curvature * float(twin.objective(X, Y)) / sum(L)
    assert expected <= float(loss.detach()) - slope / (2.0 * sum(L)) + 1e-13


def test_the_stated_rate_of_coordinate_descent_holds_in_expectation():
    """Least squares: E[E - min E] <= (1 - μ/ΣL)^k (E_0 - min E), with μ and the minimum by NumPy."""
    _, X, Y = admm_problem()
    A = np.hstack([X.numpy(), np.ones((20, 1))])
    theta = np.linalg.lstsq(A, Y.numpy(), rcond=None)[0]
    least = 0.5 * np.square(A @ theta - Y.numpy()).sum() / 20
    mu, ratios, steps = np.linalg.svd(A, compute_uv=False)[-1] ** 2 / 20, [], 20
    for seed in range(30):
        torch.manual_seed(0)
        problem = lb.lift(nn.Sequential(nn.Linear(4, 2)).double(), loss=lb.SquaredError())
        batch = solvers.Batch.whole(problem, X, Y)
        solver = solvers.RandomCoordinateDescent(parts=4, importance=1.0, factor=1.0, updates=steps, seed=seed)
        first = float(problem.objective(X, Y)) - least
        state = solver.step(problem, solver.init(problem, batch), batch)
        ratios.append((float(problem.objective(X, Y)) - least) / first)
    bound = (1.0 - mu / state.metrics["total_curvature"]) ** steps
    assert np.mean(ratios) + 3.0 * np.std(ratios) / math.sqrt(30) <= bound < 1.0


@pytest.mark.parametrize("name", ["relu", "smooth", "sparse code", "classes", "joint", "frozen and bias-free"])
def test_random_coordinate_descent_never_increases_the_energy(name):
    case = make(name)
    batch, last = solvers.Batch.whole(case.problem, *case.data), math.inf
    solver = solvers.RandomCoordinateDescent(parts=3, sample_parts=2, factor=1.9)
    state = solver.init(case.problem, batch)
    for _ in range(20):
        state = solver.step(case.problem, state, batch)
        value = float(case.problem.energy(state.variables, *case.data))
        assert value <= last + 1e-12
        last = value


def test_what_is_coupled_is_not_cut():
    solver = solvers.RandomCoordinateDescent(parts=2, sample_parts=3)
    case = make("joint")  # softmax, then arctan
    _, blocks = coordinates(case.problem, *case.data, solver)
    count = {l: sum(b.block == VariableBlock(l) for b in blocks) for l in (1, 2)}
    assert count == {1: 3, 2: 6}
    grouped = lb.lift(
        case.problem.model,
        loss=lb.SquaredError(),
        parameter_penalties={1: penalties.Nuclear(0.1), 3: penalties.L1(0.1)},
    )
    _, blocks = coordinates(grouped, *case.data, solver)
    weights = {l: sum(b.block == ParameterBlock(l) and b.units is not None for b in blocks) for l in (1, 2, 3)}
    assert weights == {1: 1, 2: 2, 3: 2}


# All three


@pytest.mark.parametrize(
    "solver", [solvers.StochasticADMM(), solvers.PrimalDual(), solvers.RandomCoordinateDescent()], ids=cases.name
)
def test_six_epochs_are_three_and_three(solver, tmp_path):
    digits = lb.data.load("digits-200").train

    def problem():
        torch.manual_seed(0)
        return lb.lift(nn.Sequential(nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10)), loss=lb.CrossEntropy())

    size = {"batch_size": 50} if solver.minibatch else {}
    whole, parts = problem(), problem()
    lb.fit(whole, digits, solver, epochs=6, out=tmp_path / "whole", **size)
    lb.fit(parts, digits, solver, epochs=3, out=tmp_path / "parts", **size)
    again = problem()
    result = lb.fit(again, digits, solver, epochs=6, out=tmp_path / "parts", resume=True, **size)
    assert len(result.history) == 6
    for p, q in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("solver", "epochs", "accuracy", "left"),
    [
        (solvers.StochasticADMM(), 6, 0.95, 0.25),
        (solvers.PrimalDual(), 20, 0.9, 0.5),
        (solvers.RandomCoordinateDescent(), 30, 0.9, 0.6),
    ],
    ids=lambda value: type(value).__name__,
)
def test_they_train_real_networks_with_their_defaults(solver, epochs, accuracy, left):
    """Digits: accuracy of 64-32-10; share of the pixels' variance that an autoencoder 64-32-16-32-64 leaves over."""
    X, y = lb.data.load("digits").train.X, lb.data.load("digits").train.y
    size = {"batch_size": 50} if solver.minibatch else {}
    torch.manual_seed(0)
    classifier = lb.lift(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), loss=lb.CrossEntropy())
    with lb.forbid_activation_derivatives():
        result = lb.fit(classifier, (X, y), solver, epochs=epochs, record_every=epochs, **size)
    assert result.history[-1]["accuracy"] > accuracy
    torch.manual_seed(0)
    layers = [
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.Tanh(),
        nn.Linear(16, 32),
        nn.ReLU(),
        nn.Linear(32, 64),
    ]
    autoencoder = lb.lift(nn.Sequential(*layers), loss=lb.SquaredError())
    result = lb.fit(autoencoder, (X, X), solver, epochs=epochs, record_every=epochs, **size)
    variance = 0.5 * float((X - X.mean(0)).square().sum(1).mean())
    assert result.history[-1]["objective"] < left * variance


@pytest.mark.parametrize("kind", [solvers.StochasticADMM, solvers.RandomCoordinateDescent])
def test_maps_that_are_not_dense_are_refused(kind):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), example=torch.zeros(1, 1, 4, 4, dtype=F64))
    with pytest.raises(errors.CompatibilityError, match=r"dense layers .* take CoordinateDescent or ProximalGradient"):
        kind().require(problem)


def test_settings_out_of_range_are_refused():
    for kind, settings in (
        (solvers.StochasticADMM, {"coupling": 0.0}),
        (solvers.StochasticADMM, {"damping": -1.0}),
        (solvers.StochasticADMM, {"inner_steps": 0}),
        (solvers.PrimalDual, {"dual_step": math.inf}),
        (solvers.PrimalDual, {"factor": 1.0}),
        (solvers.RandomCoordinateDescent, {"parts": 0}),
        (solvers.RandomCoordinateDescent, {"importance": 1.5}),
        (solvers.RandomCoordinateDescent, {"factor": 2.0}),
        (solvers.RandomCoordinateDescent, {"updates": 0}),
        (solvers.RandomCoordinateDescent, {"seed": 0.5}),
    ):
        with pytest.raises(errors.SettingError, match=next(iter(settings))):
            kind(**settings)
    model = nn.Sequential(nn.Linear(3, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalties.L1(0.1)})
    with pytest.raises(errors.CompatibilityError, match="damping is 0, and layer 1 has L1"):
        solvers.StochasticADMM(damping=0.0).require(problem)
