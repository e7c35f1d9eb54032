"""One block minimised: against closed forms in NumPy, SciPy, and the optimality conditions written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, penalties
from lifted_bregman.problem.blocks import ParameterBlock, VariableBlock, all_blocks
from lifted_bregman.solvers._subproblems import ParameterSubproblem
from lifted_bregman.solvers.block_solvers import _accelerate, minimise_block
from tests.problem import oracle
from tests.problem.networks import conv_case, dense_case

F64 = torch.float64
TIGHT = {"tolerance": 1e-11, "iterations": 20_000}

CASES = {
    "tanh soft relu sigmoid": dense_case,
    "elu leaky softmax soft": lambda: dense_case((4, 6, 5, 3, 7, 2), ("elu 0.7", "leaky 0.2", "softmax", "soft 0.3")),
    "no bias": lambda: dense_case((6, 3, 5, 2), ("sigmoid", "relu"), bias=False, samples=15),
}


def start(case, **settings):
    problem = case.problem(**settings)
    X, Y = problem.prepare(case.X, case.Y)
    return problem, problem.point(case.state(), X, Y)


def ridge_everywhere(case, weight=0.05):
    return {layer: penalties.SquaredL2(weight) for layer in range(1, len(case.stages) + 1)}


def block_gradients(case, point, weight):
    """∇ of E in every parameter, by autograd through the oracle."""
    xs = [x.detach() for x in point.x]
    value = sum(term.mean() for term in oracle.sample_terms(case.stages, case.weights, xs))
    maps = [f for f, _ in case.stages]
    for f in maps:
        value = value + 0.5 * weight * f.weight.square().sum()
    return [torch.autograd.grad(value, list(f.parameters()), retain_graph=True) for f in maps]


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_vanishes_in_every_parameter_block(name):
    case = CASES[name]()
    problem, point = start(case, parameter_penalties=ridge_everywhere(case))
    for layer in range(1, problem.depth + 1):
        before = float(problem.energy_at(point))
        solution = minimise_block(problem, point, ParameterBlock(layer), **TIGHT)
        assert solution.converged
        assert solution.residual <= 1e-11 < 1e-3 < solution.initial_residual
        assert float(problem.energy_at(point)) < before
        size = math.sqrt(sum(float(g.square().sum()) for g in block_gradients(case, point, 0.05)[layer - 1]))
        assert size <= 2e-11
        if case.stages[layer - 1][1] == "identity":
            assert solution.iterations <= 3  # a ridge problem: the first step solves it


def test_scipy_finds_the_same_minimum_of_a_parameter_block():
    case = CASES["tanh soft relu sigmoid"]()
    problem, point = start(case, parameter_penalties=ridge_everywhere(case))
    for layer in (1, 2, 3, 4):
        f = case.stages[layer - 1][0]
        shapes = [p.shape for p in f.parameters()]
        inputs, outputs, name = case.xs[layer - 1], case.xs[layer], case.stages[layer - 1][1]

        def value(flat, shapes=shapes, inputs=inputs, outputs=outputs, name=name, layer=layer):
            theta = torch.tensor(flat, requires_grad=True)
            W, b = theta[: shapes[0].numel()].view(shapes[0]), theta[shapes[0].numel() :]
            z = inputs @ W.T + b
            phi, phi_star, _ = oracle.CLOSED_FORMS[name]
            bregman = phi(outputs) + phi_star(z) - (outputs * z).sum(1)
            total = case.weights[layer - 1] * bregman.mean() + 0.025 * W.square().sum()
            total.backward()
            return total.item(), theta.grad.numpy()

        begin = torch.cat([p.detach().flatten() for p in f.parameters()]).numpy()
        found = minimize(value, begin, jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-9})
        assert minimise_block(problem, point, ParameterBlock(layer), **TIGHT).converged
        ours = value(torch.cat([p.detach().flatten() for p in f.parameters()]).numpy())[0]
        assert ours == pytest.approx(found.fun, abs=1e-10)


def slopes(case, point, layer):
    """λ_{l+1} d_{l+1} W_{l+1}ᵀ - λ_l z_l, by autograd: minus the subgradient of λφ + R that x_l must have."""
    xs = [x.detach().clone() for x in point.x]
    xs[layer].requires_grad_()
    return torch.autograd.grad(oracle.smooth_part(case.stages, case.weights, xs, quadratic=False), xs[layer])[0]


@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("name", CASES)
def test_the_optimality_conditions_of_every_variable_block(name, alpha):
    """-slope is in λ ∂φ(x) + α ∂‖x‖₁; φ' from the table of closed forms."""
    case = CASES[name]()
    names = [activation for _, activation in case.stages[:-1]]
    chosen = (
        {l: penalties.L1(alpha) for l, n in enumerate(names, 1) if n not in ("sigmoid", "softmax")} if alpha else {}
    )
    problem, point = start(case, penalties=chosen)
    for layer, activation in enumerate(names, 1):
        solution = minimise_block(problem, point, VariableBlock(layer), **TIGHT)
        assert solution.converged and solution.residual <= 1e-11
        x, wanted = point.x[layer], -slopes(case, point, layer) / case.weights[layer - 1]
        a = alpha / case.weights[layer - 1] if layer in chosen else 0.0
        tolerance = {"rtol": 0.0, "atol": 1e-9}
        if activation == "softmax":  # φ' = log x + 1 up to a constant
            gap = wanted - x.log()
            torch.testing.assert_close(gap, gap.mean(1, keepdim=True).expand_as(gap), **tolerance)
            continue
        if activation == "soft 0.3":
            a = a + 0.3
        slope = {
            "tanh": lambda x: torch.atanh(x),
            "sigmoid": lambda x: torch.logit(x),
            "relu": lambda x: x,
            "soft 0.3": lambda x: x,
            "leaky 0.2": lambda x: torch.where(x >= 0, x, x / 0.2),
            "elu 0.7": lambda x: torch.where(x >= 0, x, torch.log1p(x.clamp(max=0) / 0.7)),
        }[activation](x)
        inside = x != 0 if a or activation == "relu" else torch.ones_like(x, dtype=torch.bool)
        torch.testing.assert_close((slope + a * x.sign())[inside], wanted[inside], **tolerance)
        assert (wanted[~inside] <= a + 1e-9).all()
        if activation == "relu":
            assert (x >= 0).all() and (~inside).any()
        else:
            assert (wanted[~inside] >= -a - 1e-9).all()


def ridge_by_hand(A, Y, centre, weight, damping):
    """argmin (c/2)‖AΘ - Y‖² + ½ Σ damping_j ‖Θ_j - centre_j‖², by NumPy; without damping, the nearest to the centre."""
    root = np.sqrt(np.asarray(damping))
    stacked = np.vstack([math.sqrt(weight) * A, np.diag(root)])
    right = np.vstack([math.sqrt(weight) * (Y - A @ centre), np.zeros_like(centre)])
    return centre + np.linalg.lstsq(stacked, right, rcond=None)[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("samples", [4, 6, 7, 30])
@pytest.mark.parametrize("tau", [0.0, 0.7])
def test_squared_error_is_a_ridge_problem(samples, bias, tau):
    """Both sides of the factorisation, with and without the proximal term; the centre is not the start."""
    torch.manual_seed(samples)
    model = nn.Sequential(nn.Linear(6, 3, bias=bias)).double()
    X, Y = torch.randn(samples, 6, dtype=F64) + 0.5, torch.randn(samples, 3, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError())
    point = problem.point(problem.forward_state(X), X, Y)
    centre = {name: torch.randn_like(p) for name, p in model[0].named_parameters()}
    A = np.hstack([X.numpy(), np.ones((samples, 1))]) if bias else X.numpy()
    origin = {name: p.detach() for name, p in model[0].named_parameters()} if tau == 0.0 else centre
    columns = [origin["weight"].numpy().T] + ([origin["bias"].numpy()[None]] if bias else [])
    expected = ridge_by_hand(A, Y.numpy(), np.vstack(columns), 1.0 / samples, [tau] * A.shape[1])
    solution = minimise_block(problem, point, ParameterBlock(1), prox_weight=tau, centre=centre, **TIGHT)
    assert solution.converged and solution.iterations <= 4
    columns = [model[0].weight.detach().numpy().T] + ([model[0].bias.detach().numpy()[None]] if bias else [])
    unique = tau > 0.0 or samples >= A.shape[1]
    np.testing.assert_allclose(np.vstack(columns), expected, rtol=0, atol=1e-9 if unique else 1e-7)
    if not unique:
        np.testing.assert_allclose(A @ np.vstack(columns), Y.numpy(), atol=1e-9)


@pytest.mark.parametrize("hidden", [3, 9])
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_a_linear_variable_is_a_ridge_problem(hidden, alpha):
    """Two maps in a row leave an identity between them: (λ_u WᵀW + λ_l + α) x = λ_u Wᵀ(y - b) + λ_l z."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, 5)).double()
    X, Y = torch.randn(8, 4, dtype=F64), torch.randn(8, 5, dtype=F64)
    chosen = {1: penalties.SquaredL2(alpha)} if alpha else None
    problem = lb.lift(model, loss=lb.SquaredError(), weights=0.6, penalties=chosen)
    point = problem.point(problem.forward_state(X), X, Y)
    solution = minimise_block(problem, point, VariableBlock(1), **TIGHT)
    W, b = model[1].weight.detach().numpy(), model[1].bias.detach().numpy()
    with torch.no_grad():
        z = model[0](X).numpy()
    expected = np.linalg.solve(W.T @ W + (0.6 + alpha) * np.eye(hidden), (W.T @ (Y.numpy() - b).T) + 0.6 * z.T).T
    assert solution.converged and solution.iterations <= 3
    np.testing.assert_allclose(point.x[1].numpy(), expected, atol=1e-10)


def test_flattened_inputs_of_a_dense_layer():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(8, 3)).double()
    X, Y = torch.randn(5, 1, 3, 3, dtype=F64), torch.randn(5, 3, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.6, 1.7])
    state = lb.LiftedState(x + torch.randn_like(x) for x in problem.forward_state(X))
    point = problem.point(state, X, Y)
    before = float(problem.energy_at(point))
    for block in all_blocks(3):
        assert minimise_block(problem, point, block, **TIGHT).converged
        after = float(problem.energy_at(point))
        assert after < before
        before = after
    found = problem.certificates(point.state, X, Y)
    assert found.variables[1] <= 1e-11


def test_convolutions_and_joint_activations():
    """No dense map: steps 1/L; every block ends stationary, as autograd sees it."""
    case = conv_case()
    problem, point = start(case)
    for layer in (1, 2, 3, 4):
        solution = minimise_block(problem, point, ParameterBlock(layer), tolerance=1e-7, iterations=20_000)
        assert solution.converged
        xs = [x.detach() for x in point.x]
        value = sum(term.mean() for term in oracle.sample_terms(case.stages, case.weights, xs))
        gradient = torch.autograd.grad(value, list(case.stages[layer - 1][0].parameters()))
        assert math.sqrt(sum(float(g.square().sum()) for g in gradient)) <= 1.01e-7
    for layer in (1, 2, 3):
        assert minimise_block(problem, point, VariableBlock(layer), tolerance=1e-9, iterations=20_000).converged
    assert problem.certificates(point.state, case.X, case.Y).variables[2] <= 1e-9


@pytest.mark.parametrize(
    "penalty",
    [penalties.L1(0.05), penalties.GroupL2(0.08), penalties.NonNegative(), penalties.Bounds(-0.1, 0.2)],
    ids=repr,
)
@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_penalised_weights_satisfy_their_optimality_conditions(penalty, activation):
    case = dense_case((5, 7, 4, 2), ("tanh", "relu"), samples=20)
    layer = 1 if activation == "tanh" else 3
    problem, point = start(case, parameter_penalties={layer: penalty})
    assert minimise_block(problem, point, ParameterBlock(layer), **TIGHT).converged
    pull, on_bias = (-g for g in block_gradients(case, point, 0.0)[layer - 1])
    W = case.stages[layer - 1][0].weight.detach()
    assert float(on_bias.abs().max()) <= 1e-10
    if isinstance(penalty, penalties.L1):
        assert (W == 0).any() and (W != 0).any()
        torch.testing.assert_close(pull[W != 0], 0.05 * W[W != 0].sign(), rtol=0, atol=1e-10)
        assert (pull[W == 0].abs() <= 0.05 + 1e-10).all()
    elif isinstance(penalty, penalties.GroupL2):  # a group is a row: one output
        norms = W.norm(dim=1, keepdim=True)
        on = norms[:, 0] > 0
        torch.testing.assert_close(pull[on], (0.08 * W / norms)[on], rtol=0, atol=1e-10)
        assert (pull[~on].norm(dim=1) <= 0.08 + 1e-10).all()
    else:
        inside = (W > penalty.low) & (W < penalty.high)
        assert inside.any() and (~inside).any()
        assert float(pull[inside].abs().max()) <= 1e-10
        assert (pull[W == penalty.low] <= 1e-10).all() and (pull[W == penalty.high] >= -1e-10).all()


@pytest.mark.parametrize("iterations", [1, 2, 3, 7])
@pytest.mark.parametrize("name", CASES)
def test_too_few_iterations_still_never_increase_the_energy(name, iterations):
    case = CASES[name]()
    problem, point = start(case)
    value = float(problem.energy_at(point))
    for block in all_blocks(problem.depth) * 2:
        solution = minimise_block(problem, point, block, tolerance=0.0, iterations=iterations)
        assert solution.iterations <= iterations and not solution.converged
        after = float(problem.energy_at(point))
        assert after <= value * (1 + 1e-13)
        value = after


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
@pytest.mark.parametrize("name", CASES)
def test_the_residual_bounds_the_certificate(name, tolerance):
    """At the returned point, for steps below, at and above 1/L; and it is not far above it."""
    case = CASES[name]()
    problem, point = start(case)
    for block in all_blocks(problem.depth):
        solution = minimise_block(problem, point, block, tolerance=tolerance, iterations=5000)
        assert solution.converged and solution.residual <= tolerance
        for step in (0.01, 1.0, 30.0):
            found = problem.certificates(point.state, case.X, case.Y, step=step)
            certificate = (found.parameters if isinstance(block, ParameterBlock) else found.variables)[block.layer - 1]
            assert certificate <= solution.residual * (1 + 1e-6) + 1e-12


def test_a_block_that_would_get_worse_is_left_where_it_was():
    """The guard alone: a problem whose energy is higher wherever it is not at its start."""
    case = CASES["no bias"]()
    problem, point = start(case)

    class Worse(ParameterSubproblem):
        def energy(self, value):
            return float((value - first).norm())

    block = Worse(problem, point, ParameterBlock(2), 0.0, None)
    first = block.y.clone()
    solution = _accelerate(block, 0.0, 3)
    weight = problem.model[2].weight.detach()
    assert torch.equal(weight, first) and solution.residual == solution.initial_residual and not solution.converged


def test_restarts_make_the_rate_linear():
    """Condition number 100 (squared singular values), no known modulus: FISTA alone needs thousands of iterations."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 2)).double()
    X = torch.randn(60, 8, dtype=F64) * torch.logspace(0, -1, 8, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalties.L1(1e-4)})
    point = problem.point(problem.forward_state(X), X, torch.randn(60, 2, dtype=F64))
    assert minimise_block(problem, point, ParameterBlock(1), tolerance=1e-10, iterations=600).converged


def test_variable_blocks_converge_at_the_rate_of_strong_convexity():
    """‖x_k - x*‖² falls at least like (1 - √q)^k, q = λ_l/(L + λ_l), L = λ_{l+1}‖W_{l+1}‖²."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)).double()
    with torch.no_grad():
        model[2].weight.mul_(20.0)
    X, Y = torch.randn(8, 4, dtype=F64), torch.randn(8, 5, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=0.3)
    point = problem.point(problem.forward_state(X), X, Y)
    curvature = float(torch.linalg.svdvals(model[2].weight.detach())[0]) ** 2
    solution = minimise_block(problem, point, VariableBlock(1), tolerance=1e-9, iterations=20_000)
    needed = 2.0 * math.log(solution.initial_residual / 1e-9 * curvature / 0.3) / math.sqrt(0.3 / (curvature + 0.3))
    assert solution.converged and 10 < solution.iterations <= needed


def test_float32_ends_with_rounding_and_not_with_the_limit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    X, Y = torch.randn(20, 6), torch.randn(20, 3)
    weights = {l: penalties.SquaredL2(0.1) for l in (1, 2, 3)}
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties=weights)
    point = problem.point(problem.forward_state(X), X, Y)
    for block in [b for b in all_blocks(3) if isinstance(b, ParameterBlock)]:
        solution = minimise_block(problem, point, block, tolerance=0.0, iterations=5000)
        assert solution.iterations < 5000 and solution.residual < 1e-5
    for layer in (2, 1):
        solution = minimise_block(problem, point, VariableBlock(layer), tolerance=0.0, iterations=5000)
        assert solution.iterations < 5000 and solution.residual < 1e-5


def test_a_frozen_layer_is_left_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    X, Y = torch.randn(6, 3, dtype=F64), torch.randn(6, 2, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError())
    point = problem.point(problem.forward_state(X), X, Y)
    kept, bias = model[0].weight.clone(), model[2].bias.clone()
    assert minimise_block(problem, point, ParameterBlock(1)).iterations == 0
    assert minimise_block(problem, point, ParameterBlock(2), **TIGHT).converged
    assert torch.equal(model[0].weight, kept) and torch.equal(model[2].bias, bias)
    expected = np.linalg.lstsq(point.x[1].numpy(), (Y - bias.detach()).numpy(), rcond=None)[0].T
    with torch.no_grad():
        residual = (point.x[1] @ model[2].weight.T + bias - Y).T @ point.x[1]
        assert float(residual.abs().max()) <= 1e-9
        best = np.square(point.x[1].numpy() @ expected.T + bias.numpy() - Y.numpy()).sum()
        ours = np.square((point.x[1] @ model[2].weight.T + bias - Y).numpy()).sum()
    assert ours == pytest.approx(best, abs=1e-12)


def test_counters_of_a_parameter_block():
    """Every iteration needs z, σ(z) and one parameter gradient; the energy at both ends needs nothing more."""
    case = CASES["tanh soft relu sigmoid"]()
    problem, point = start(case)
    solution = minimise_block(problem, point, ParameterBlock(2), tolerance=1e-3)
    work = problem.work
    assert solution.iterations > 2
    assert work.parameter_gradients == solution.iterations and work.adjoints == 0
    assert work.forward_maps == work.prox_maps == solution.iterations


def test_settings_that_are_refused():
    case = CASES["no bias"]()
    problem, point = start(case)
    with pytest.raises(errors.SettingError, match="iterations is 0"):
        minimise_block(problem, point, ParameterBlock(1), iterations=0)
    with pytest.raises(errors.SettingError, match="prox_weight"):
        minimise_block(problem, point, ParameterBlock(1), prox_weight=-1.0)
    with pytest.raises(errors.SettingError, match="belongs to parameter blocks"):
        minimise_block(problem, point, VariableBlock(1), prox_weight=1.0)
