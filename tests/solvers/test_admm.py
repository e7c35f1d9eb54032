"""ADMM: its updates against the augmented Lagrangians written out in NumPy, its fixed points, its residuals."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, penalties, solvers
from lifted_bregman.problem.blocks import ParameterBlock, VariableBlock, all_blocks
from lifted_bregman.solvers._admm_blocks import (
    InnerSettings,
    ResidualBalancing,
    conjugate_prox,
    parameter_block,
    variable_block,
)
from lifted_bregman.solvers.admm import ADMM
from lifted_bregman.solvers.block_solvers import minimise_block
from lifted_bregman.solvers.coordinate_descent import CoordinateDescent
from tests import cases
from tests.problem.networks import dense_case
from tests.solvers.problems import NAMES, make

F64 = torch.float64


def start(case, **settings):
    problem = case.problem(**settings)
    X, Y = problem.prepare(case.X, case.Y)
    return problem, problem.point(case.state(), X, Y)


def iterations(count, tolerance=0.0, prox_weight=0.0, balancing=None):
    return InnerSettings(count, tolerance, prox_weight, balancing)


@pytest.mark.parametrize("delta", [0.05, 1.0, 7.0])
@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_the_proximal_map_of_the_conjugate(activation, delta):
    """z = argmin φ*(z) + (δ/2)‖z - r/δ‖² has σ(z) + δz = r, since σ = ∇φ*; and the second output is σ(z)."""
    torch.manual_seed(0)
    r = 3.0 * torch.randn(6, 5, dtype=F64)
    model = nn.Sequential(nn.Linear(2, 5), activation.as_module(), nn.Linear(5, 1)).double()
    layer = lb.lift(model, loss=lb.SquaredError()).network[1]
    z, p = conjugate_prox(layer, r, delta)
    torch.testing.assert_close(p, activation(z), rtol=0, atol=2e-9)
    torch.testing.assert_close(activation(z) + delta * z, r, rtol=0, atol=2e-9)


def relu_conjugate_prox(r, delta):
    """φ* = ½ max(z, 0)²: σ(z) + δz = r, solved by hand."""
    return np.where(r > 0, r / (1.0 + delta), r / delta)


def tanh_conjugate_prox(r, delta):
    """tanh z + δz = r, by bisection."""
    low, high = np.full_like(r, -1e3), np.full_like(r, 1e3)
    for _ in range(200):
        middle = 0.5 * (low + high)
        above = np.tanh(middle) + delta * middle > r
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return 0.5 * (low + high)


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(
    ("layer", "proximal"), [(1, tanh_conjugate_prox), (3, relu_conjugate_prox)], ids=["tanh", "relu"]
)
def test_parameter_iterates_are_those_of_the_appendix(layer, proximal, delta):
    """Order Θ, z, μ, with (W, b) in one least-squares solve over [X 1] of z + μ/δ."""
    case = dense_case((3, 4, 5, 6, 2), ("tanh", "soft 0.3", "relu"), samples=20)
    problem, point = start(case)
    f = case.stages[layer - 1][0]
    A = np.hstack([case.xs[layer - 1].numpy(), np.ones((20, 1))])
    x = case.xs[layer].numpy()
    theta = np.vstack([f.weight.detach().numpy().T, f.bias.detach().numpy()[None]])
    z = A @ theta
    mu = x - (np.tanh(z) if layer == 1 else np.maximum(z, 0.0))
    for _ in range(4):
        theta = np.linalg.lstsq(A, z + mu / delta, rcond=None)[0]
        z = proximal(x - mu + delta * A @ theta, delta)
        mu = mu + delta * (z - A @ theta)
    parameter_block(problem, point, layer, delta, iterations(4))
    np.testing.assert_allclose(f.weight.detach().numpy(), theta[:-1].T, atol=1e-8)
    np.testing.assert_allclose(f.bias.detach().numpy(), theta[-1], atol=1e-8)


@pytest.mark.parametrize("tau", [0.0, 0.4])
def test_the_ridge_follows_delta(tau):
    """P = (α/2)‖W‖² and the proximal term are in the solve; δ doubles or halves after every iteration by the rule."""
    case = dense_case((3, 4, 2), ("tanh",), samples=20)
    problem, point = start(case, parameter_penalties={1: penalties.SquaredL2(0.3)})
    rule = ResidualBalancing(ratio=1.001, factor=2.0, every=1, until=100)
    f, c, delta, deltas = case.stages[0][0], case.weights[0] / 20, 1.0, []
    A = np.hstack([case.X.numpy(), np.ones((20, 1))])
    x = case.xs[1].numpy()
    theta = np.vstack([f.weight.detach().numpy().T, f.bias.detach().numpy()[None]])
    z = A @ theta
    mu = x - np.tanh(z)
    for _ in range(6):
        deltas.append(delta)
        M = c * delta * A.T @ A + np.diag([0.3 + tau] * 3 + [tau])
        theta = np.linalg.solve(M, c * A.T @ (delta * z + mu) + tau * theta)
        last, z = z, tanh_conjugate_prox(x - mu + delta * A @ theta, delta)
        mu = mu + delta * (z - A @ theta)
        primal, dual = np.linalg.norm(z - A @ theta), delta * np.linalg.norm(z - last)
        delta = 2.0 * delta if primal > 1.001 * dual else 0.5 * delta if dual > 1.001 * primal else delta
    result = parameter_block(problem, point, 1, 1.0, iterations(6, prox_weight=tau, balancing=rule))
    assert len(set(deltas)) > 1 and result.coupling == delta
    np.testing.assert_allclose(f.weight.detach().numpy(), theta[:-1].T, atol=1e-9)
    np.testing.assert_allclose(f.bias.detach().numpy(), theta[-1], atol=1e-9)
    assert result.primal == pytest.approx(math.sqrt(c) * primal, rel=1e-6)
    assert result.dual == pytest.approx(math.sqrt(c) * dual, rel=1e-6)


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_variable_iterates_minimise_the_augmented_lagrangian(delta):
    """(x, z), then v, then μ, with weights λ: each update solved from its own optimality condition in NumPy."""
    case = dense_case((3, 4, 5, 2), ("soft 0.3", "tanh"), samples=7)
    problem, point = start(case)
    own, upper = case.weights[0], case.weights[1]
    W, b = (t.detach().numpy() for t in case.stages[1][0].parameters())
    with torch.no_grad():
        z_own = case.stages[0][0](case.X).numpy()
    x_upper, v = case.xs[2].numpy(), case.xs[1].numpy()
    mu = x_upper - np.tanh(v @ W.T + b)
    nu = upper / own * mu @ W
    for _ in range(4):
        # λ (x + 0.3 sign x) = λ (z_own + ν) + λδ (v - x)
        w = (z_own + nu + delta * v) / (1.0 + delta)
        x = np.sign(w) * np.maximum(np.abs(w) - 0.3 / (1.0 + delta), 0.0)
        z = tanh_conjugate_prox(x_upper - mu + delta * (v @ W.T + b), delta)
        matrix = delta * (upper * W.T @ W + own * np.eye(4))
        right = upper * (mu + delta * (z - b)) @ W + own * (delta * x - nu)
        v = np.linalg.solve(matrix, right.T).T
        mu = mu + delta * (z - v @ W.T - b)
        nu = nu + delta * (v - x)
    result = variable_block(problem, point, 1, delta, iterations(4))
    np.testing.assert_allclose(point.x[1].numpy(), x, atol=1e-10)
    gaps = upper * np.square(z - v @ W.T - b).sum() + own * np.square(v - x).sum()
    assert result.primal == pytest.approx(np.sqrt(gaps / 7), rel=1e-8)


def test_one_inner_step_is_a_step_we_know():
    """Θ: the majorise-minimise step in the ridge metric, 1/δ long.  x: the proximal gradient step 1/(λδ)."""
    case = dense_case((3, 4, 5, 2), ("sigmoid", "relu"), samples=12)
    problem, point = start(case)
    A = np.hstack([case.X.numpy(), np.ones((12, 1))])
    f = case.stages[0][0]
    theta = np.vstack([f.weight.detach().numpy().T, f.bias.detach().numpy()[None]])
    d = 1.0 / (1.0 + np.exp(-A @ theta)) - case.xs[1].numpy()
    expected = theta - np.linalg.lstsq(A, d, rcond=None)[0] / 2.0
    parameter_block(problem, point, 1, 2.0, iterations(1))
    np.testing.assert_allclose(f.weight.detach().numpy(), expected[:-1].T, atol=1e-9)
    problem, point = start(dense_case((3, 4, 5, 2), ("sigmoid", "relu"), samples=12))
    step = 1.0 / (problem.weight(2) * 2.0)
    moved = problem.variable_prox(2, point.x[2] - step * problem.variable_gradient(point, 2), step)
    variable_block(problem, point, 2, 2.0, iterations(1))
    torch.testing.assert_close(point.x[2], moved, rtol=0, atol=1e-12)


PENALTIES = [
    None,
    penalties.SquaredL2(0.1),
    penalties.L1(0.05),
    penalties.GroupL2(0.1),
    penalties.NonNegative(),
    penalties.Bounds(-0.2, 0.3),
]


@pytest.mark.parametrize("balancing", [None, ResidualBalancing()], ids=["fixed", "balanced"])
@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("layer", [1, 3])
def test_parameter_blocks_converge_to_the_exact_minimiser(layer, penalty, balancing):
    case = dense_case((3, 4, 5, 2), ("tanh", "relu"), samples=25)
    settings = {"parameter_penalties": {layer: penalty} if penalty else None}
    problem, point = start(case, **settings)
    result = parameter_block(problem, point, layer, 1.0, iterations(20_000, 1e-11, 0.0, balancing))
    assert result.iterations < 20_000 and max(result.primal, result.dual) <= 1e-11
    found = problem.certificates(point.state, case.X, case.Y)
    curvature = problem.parameter_curvature(point, layer, upper=True)
    assert found.parameters[layer - 1] <= 1e-9 * max(1.0, curvature)
    ours = [p.detach().clone() for p in case.stages[layer - 1][0].parameters()]
    other = dense_case((3, 4, 5, 2), ("tanh", "relu"), samples=25)
    exact, there = start(other, **settings)
    minimise_block(exact, there, ParameterBlock(layer), tolerance=1e-12, iterations=50_000)
    for p, q in zip(ours, other.stages[layer - 1][0].parameters(), strict=True):
        torch.testing.assert_close(p, q.detach(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("balancing", [None, ResidualBalancing()], ids=["fixed", "balanced"])
@pytest.mark.parametrize("layer", [1, 2, 3, 4])
def test_variable_blocks_converge_to_the_exact_minimiser(layer, balancing):
    chosen = {1: penalties.L1(0.1), 3: penalties.SquaredL2(0.3)}
    problem, point = start(dense_case(), penalties=chosen)
    result = variable_block(problem, point, layer, 1.0, iterations(20_000, 1e-12, 0.0, balancing))
    assert result.iterations < 20_000
    exact, there = start(dense_case(), penalties=chosen)
    assert minimise_block(exact, there, VariableBlock(layer), tolerance=1e-12, iterations=50_000).residual < 1e-11
    torch.testing.assert_close(point.x[layer], there.x[layer], rtol=0, atol=1e-9)


def test_residuals_tend_to_zero():
    """With a fixed δ, by three orders of magnitude in every block."""
    for block in all_blocks(3):
        run = parameter_block if isinstance(block, ParameterBlock) else variable_block
        totals = []
        for count in (1, 400):
            problem, point = start(dense_case((3, 4, 5, 2), ("tanh", "relu"), samples=25))
            result = run(problem, point, block.layer, 1.0, iterations(count))
            totals.append(result.primal + result.dual)
        assert totals[1] < 1e-3 * totals[0], block


@pytest.mark.parametrize("penalty", [penalties.SquaredL2(0.1), penalties.L1(0.05)], ids=repr)
def test_a_minimiser_is_a_fixed_point(penalty):
    """From exact minimisers of the blocks nothing moves, whatever δ and the number of iterations."""
    for block in all_blocks(3):
        case = dense_case((3, 4, 5, 2), ("tanh", "relu"), samples=25)
        problem, point = start(case, parameter_penalties={1: penalty, 2: penalty, 3: penalty})
        minimise_block(problem, point, block, tolerance=1e-13, iterations=50_000)
        run = parameter_block if isinstance(block, ParameterBlock) else variable_block
        is_parameter = isinstance(block, ParameterBlock)
        values = list(case.stages[block.layer - 1][0].parameters()) if is_parameter else [point.x[block.layer]]
        kept = [value.detach().clone() for value in values]
        result = run(problem, point, block.layer, 0.7, iterations(5))
        assert max(result.primal, result.dual) <= 1e-10
        values = list(case.stages[block.layer - 1][0].parameters()) if is_parameter else [point.x[block.layer]]
        for value, old in zip(values, kept, strict=True):
            torch.testing.assert_close(value.detach(), old, rtol=0, atol=1e-9)


# The solver


def walk(case, solver, steps):
    solver.require(case.problem)
    batch = solvers.Batch.whole(case.problem, *case.data)
    state = solver.init(case.problem, batch)
    values = [float(case.problem.energy(state.variables, *case.data))]
    for _ in range(steps):
        state = solver.step(case.problem, state, batch)
        values.append(float(case.problem.energy(state.variables, *case.data)))
    return values, state


@pytest.mark.parametrize("inner", [1, 3, 12])
@pytest.mark.parametrize("name", NAMES)
def test_no_sweep_increases_the_energy(name, inner):
    case = make(name)
    values, state = walk(case, ADMM(inner_steps=inner), 5)
    assert all(after <= before * (1 + 1e-13) for before, after in pairwise(values)) and values[-1] < 0.6 * values[0]
    assert state.metrics["primal_residual"] == max(state.primal.values())
    assert state.metrics["dual_residual"] == max(state.dual.values())
    assert set(state.primal) == set(state.dual) == set(state.coupling)
    assert "variables_1" in state.primal and f"parameters_{case.problem.depth}" in state.primal


def test_without_monotone_few_inner_steps_increase_the_energy():
    """With few inner steps the printed method raises E by orders of magnitude: the known non-monotonicity."""
    values, _ = walk(make("smooth"), ADMM(inner_steps=3, balancing=None, monotone=False), 5)
    assert max(values) > 10 * values[0]
    many, _ = walk(make("smooth"), ADMM(inner_steps=400, tolerance=1e-9, monotone=False), 5)
    assert all(after <= before + 1e-8 for before, after in pairwise(many))


@pytest.mark.parametrize("sweep", [solvers.TopDown(), solvers.BottomUp(), solvers.OddEven()], ids=repr)
def test_solved_blocks_make_it_coordinate_descent(sweep):
    one, state = walk(make("smooth", samples=30), ADMM(sweep=sweep, inner_steps=5000, tolerance=1e-11), 2)
    other, _ = walk(make("smooth", samples=30), CoordinateDescent(sweep=sweep, tolerance=1e-11), 2)
    assert one == pytest.approx(other, rel=1e-8)
    assert max(state.metrics["primal_residual"], state.metrics["dual_residual"]) <= 1e-11
    assert state.metrics["inner_iterations"] < 5 * 5000


def test_residual_balancing_follows_its_rule():
    rule = ResidualBalancing(ratio=4.0, factor=3.0, every=2, until=6)
    assert rule.adjusted(1.0, 5.0, 1.0, 2) == 3.0
    assert rule.adjusted(1.0, 1.0, 5.0, 4) == pytest.approx(1.0 / 3.0)
    assert rule.adjusted(1.0, 3.9, 1.0, 2) == 1.0
    assert rule.adjusted(1.0, 5.0, 1.0, 3) == 1.0  # not its turn
    assert rule.adjusted(1.0, 5.0, 1.0, 8) == 1.0  # too late
    case = make("classes")
    _, state = walk(case, ADMM(inner_steps=20), 3)
    assert any(value != 1.0 for value in state.coupling.values())
    _, state = walk(make("classes"), ADMM(inner_steps=20, balancing=None, coupling=0.3), 3)
    assert set(state.coupling.values()) == {0.3}


def test_state_dict_round_trip_is_bitwise():
    case, solver = make("sparse code"), ADMM(inner_steps=10)
    _, state = walk(case, solver, 3)
    saved = copy.deepcopy((case.problem.model.state_dict(), state.state_dict()))
    fresh = make("sparse code")
    fresh.problem.model.load_state_dict(saved[0])
    batch = solvers.Batch.whole(fresh.problem, *fresh.data)
    again = solver.init(fresh.problem, batch)
    again.load_state_dict(saved[1])
    for _ in range(5):
        state = solver.step(case.problem, state, batch)
        again = solver.step(fresh.problem, again, batch)
    assert state.metrics == again.metrics and state.coupling == again.coupling
    assert all(torch.equal(x, y) for x, y in zip(state.variables, again.variables, strict=True))
    for p, q in zip(case.problem.model.parameters(), fresh.problem.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_counters_by_hand():
    """Two layers, three inner iterations, not guarded.

    Θ_1, Θ_2: z and σ once for the start; then a parameter gradient, z and a proximal map, three times.  x_1: σ_2 once
    more, z_1 and z_2 are known; one adjoint for the start; then two proximal maps, an adjoint and z_2, three times.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    problem = lb.lift(model, loss=lb.CrossEntropy())
    batch = solvers.Batch.whole(problem, torch.randn(9, 3, dtype=F64), torch.randint(0, 2, (9,)))
    solver = ADMM(inner_steps=3, monotone=False)
    state = solver.init(problem, batch)
    state.variables[1] = state.variables[1] + 0.5  # a forward pass is optimal for Θ_1 already
    problem.work.reset()
    solver.step(problem, state, batch)
    assert problem.work.as_dict() == {
        "forward_maps": 2 * (1 + 3) + 3,
        "adjoints": 1 + 3,
        "parameter_gradients": 2 * 3,
        "prox_maps": 2 * (1 + 3) + 1 + 2 * 3,
    }


def test_frozen_layers_stay():
    case = make("frozen and bias-free")
    case.problem.model[0].requires_grad_(False)
    kept = {name: p.detach().clone() for name, p in case.problem.model.named_parameters() if not p.requires_grad}
    values, state = walk(case, ADMM(inner_steps=5), 3)
    assert values[-1] < values[0] and "parameters_1" not in state.primal
    now = dict(case.problem.model.named_parameters())
    assert len(kept) == 2 and all(torch.equal(now[name].detach(), value) for name, value in kept.items())


def test_maps_that_are_not_dense_are_refused():
    model = nn.Sequential(nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    data = torch.randn(4, 1, 5, dtype=F64), torch.randn(4, 3, dtype=F64)
    with pytest.raises(errors.CompatibilityError, match=r"ADMM requires dense layers .* missing: model.0 \(Conv1d\)"):
        solvers.run(problem, data, ADMM(), epochs=1)
    case = make("relu")
    with pytest.raises(errors.CompatibilityError, match=r"ADMM requires a sweep .* missing: Jacobi"):
        solvers.run(case.problem, case.data, ADMM(sweep=solvers.Jacobi()), epochs=1)


def test_a_dense_layer_after_flatten_is_dense():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    data = torch.randn(7, 2, 3, dtype=F64), torch.randn(7, 3, dtype=F64)
    result = solvers.run(problem, data, ADMM(), epochs=3)
    assert result.history[-1]["energy"] < result.history[0]["energy"]


@pytest.mark.parametrize(
    ("make_setting", "says"),
    [
        (lambda: ADMM(coupling=0.0), "coupling"),
        (lambda: ADMM(inner_steps=0), "inner_steps is 0"),
        (lambda: ADMM(tolerance=-1.0), "tolerance"),
        (lambda: ADMM(prox_weight=-1.0), "prox_weight"),
        (lambda: ResidualBalancing(ratio=1.0), "ratio is 1.0"),
        (lambda: ResidualBalancing(factor=0.5), "factor is 0.5"),
        (lambda: ResidualBalancing(every=0), "every is 0"),
    ],
)
def test_settings_that_are_refused(make_setting, says):
    with pytest.raises(errors.SettingError, match=says):
        make_setting()
