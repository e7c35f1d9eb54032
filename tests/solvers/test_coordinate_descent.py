"""Coordinate descent: descent in every order, certificates, and the explicit variant against its definition."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, penalties, solvers
from lifted_bregman.activations import Asinh, SoftThreshold
from lifted_bregman.problem.blocks import ParameterBlock, VariableBlock
from lifted_bregman.solvers.coordinate_descent import BregmanCoordinateDescent, CoordinateDescent
from tests.problem import oracle
from tests.problem.networks import dense_case
from tests.sampling import over
from tests.solvers.problems import NAMES, Case, make

ORDER = (VariableBlock(1), ParameterBlock(3), ParameterBlock(1), VariableBlock(2), ParameterBlock(2))
SWEEPS = [solvers.OddEven(), solvers.TopDown(), solvers.BottomUp()]


def deep(samples=10, seed=0):
    """Six layers, a different activation and width in each."""
    torch.manual_seed(seed)
    widths = (4, 7, 5, 6, 3, 8, 2)
    activations = [nn.Tanh(), nn.ReLU(), SoftThreshold(0.1).as_module(), nn.Softplus(), nn.ELU(0.6)]
    modules = []
    for place, activation in enumerate(activations):
        modules += [nn.Linear(widths[place], widths[place + 1]), activation]
    model = nn.Sequential(*modules, nn.Linear(widths[-2], widths[-1])).double()
    X, Y = torch.randn(samples, 4, dtype=torch.float64), torch.randn(samples, 2, dtype=torch.float64)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.6, 1.4, 1.0, 2.0, 0.8])
    return Case("deep", problem, X, Y)


def regularised(case, weight=0.05):
    """The same with a ridge on all weights, so that the minimum is attained."""
    problem = case.problem
    trained = [l for l in range(1, problem.depth + 1) if "weight" in problem.network[l].map.parameters]
    ridge = {layer: penalties.SquaredL2(weight) for layer in trained}
    lifted = lb.lift(
        problem.model,
        loss=problem.loss,
        weights=problem.weights,
        penalties=problem.penalties,
        parameter_penalties=ridge,
    )
    return Case(case.name, lifted, case.X, case.Y)


def walk(case, solver, steps):
    """Energies of all steps, and the last state."""
    solver.require(case.problem)
    batch = solvers.Batch.whole(case.problem, *case.data)
    state = solver.init(case.problem, batch)
    values = [float(case.problem.energy(state.variables, *case.data))]
    for _ in range(steps):
        state = solver.step(case.problem, state, batch)
        values.append(float(case.problem.energy(state.variables, *case.data)))
    return values, state


def never_increases(values):
    return all(after <= before * (1 + 1e-13) + 1e-14 for before, after in pairwise(values))


@over(str, name=[*NAMES, "deep"], sweep=SWEEPS)
def test_no_sweep_increases_the_energy(name, sweep):
    case = deep() if name == "deep" else make(name)
    values, state = walk(case, CoordinateDescent(sweep=sweep, block_iterations=100), 3)
    assert never_increases(values) and values[-1] < 0.5 * values[0]
    assert state.steps == 3 and set(state.metrics) == {"block_residual", "sweep_residual", "block_iterations"}


def test_any_permutation_descends():
    values, _ = walk(make("relu"), CoordinateDescent(sweep=solvers.Permutation(ORDER), block_iterations=200), 3)
    assert never_increases(values) and values[-1] < 0.5 * values[0]


@pytest.mark.parametrize("name", [*NAMES, "deep"])
def test_every_block_is_solved_to_the_tolerance(name):
    """Right after a sweep, the certificates of the blocks of the last group are below it: they have not moved since."""
    case = regularised(deep() if name == "deep" else make(name))
    solver = CoordinateDescent(tolerance=1e-8, block_iterations=20_000)
    _, state = walk(case, solver, 2)
    assert max(state.residuals.values()) == state.metrics["block_residual"] <= 1e-8
    assert sum(state.iterations.values()) == state.metrics["block_iterations"]
    depth = case.problem.depth
    expected = {f"parameters_{l}" for l in range(1, depth + 1)} | {f"variables_{l}" for l in range(1, depth)}
    assert set(state.residuals) == expected
    found = case.problem.certificates(state.variables, *case.data)
    last = [l for l in range(1, depth) if l % 2 == 0] or [1]
    assert all(found.variables[l - 1] <= 1.01e-8 for l in last)


def two_layers(activation, weight):
    """Small enough for coordinate descent to converge, at a point where no weight vanishes."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2)).double()
    X = torch.randn(12, 3, dtype=torch.float64)
    Y = 2.0 * torch.randn(12, 2, dtype=torch.float64) + X[:, :2]
    problem = lb.lift(model, loss=lb.SquaredError(), weights=weight)
    return regularised(Case("two layers", problem, X, Y), weight=0.2)


@pytest.mark.parametrize(
    ("activation", "weight", "sweep"),
    [(nn.ReLU(), 0.2, solvers.OddEven()), (nn.Tanh(), 1.0, solvers.TopDown()), (nn.ReLU(), 0.2, solvers.BottomUp())],
    ids=str,
)
def test_certificates_vanish_at_convergence(activation, weight, sweep):
    case = two_layers(activation, weight)
    solver = CoordinateDescent(sweep=sweep)
    result = solvers.run(case.problem, case.data, solver, epochs=300, tolerance=1e-5, record_every=5)
    assert result.outcome is solvers.Outcome.CONVERGED, result.history[-1]
    assert case.problem.certificates(result.state.variables, *case.data).largest <= 1e-5
    assert result.history[-1]["sweep_residual"] < 1e-4 < result.history[0]["sweep_residual"]
    assert all(float(case.problem.model[place].weight.detach().norm()) > 0.3 for place in (0, 2))


def test_odd_blocks_may_be_solved_in_any_order():
    """What the appendix says of its three groups: nothing inside one is coupled."""

    class Reversed(solvers.OddEven):
        def groups(self, links):
            return tuple(tuple(reversed(group)) for group in super().groups(links))

    one, state = walk(deep(), CoordinateDescent(block_iterations=50), 2)
    other, again = walk(deep(), CoordinateDescent(sweep=Reversed(), block_iterations=50), 2)
    assert one == other
    assert all(torch.equal(x, y) for x, y in zip(state.variables, again.variables, strict=True))


def test_the_proximal_term_shortens_the_step_and_keeps_the_fixed_point():
    moved = []
    for tau in (0.0, 0.5, 5.0):
        case = regularised(make("smooth"))
        before = case.problem.model[0].weight.detach().clone()
        values, _ = walk(case, CoordinateDescent(sweep=solvers.TopDown(), prox_weight=tau), 1)
        assert never_increases(values)
        moved.append(float((case.problem.model[0].weight.detach() - before).norm()))
    assert moved[0] > moved[1] > moved[2]
    case = two_layers(nn.ReLU(), 0.2)
    _, state = walk(case, CoordinateDescent(), 170)  # a fixed point, as the test above shows
    kept = case.problem.model[0].weight.detach().clone()
    solver = CoordinateDescent(prox_weight=0.05)
    solver.step(case.problem, state, solvers.Batch.whole(case.problem, *case.data))
    torch.testing.assert_close(case.problem.model[0].weight.detach(), kept, rtol=0, atol=1e-6)


def test_frozen_layers_and_a_single_layer():
    case = make("relu")
    case.problem.model[2].requires_grad_(False)
    kept = case.problem.model[2].weight.detach().clone()
    values, _ = walk(case, CoordinateDescent(block_iterations=300), 2)
    assert never_increases(values) and torch.equal(case.problem.model[2].weight.detach(), kept)
    torch.manual_seed(0)
    one = lb.lift(nn.Sequential(nn.Linear(3, 2)).double(), loss=lb.SquaredError())
    X, Y = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    result = solvers.run(one, (X, Y), CoordinateDescent(sweep=solvers.Jacobi()), epochs=1, tolerance=1e-9)
    assert result.outcome is solvers.Outcome.CONVERGED


# The explicit variant


@pytest.mark.parametrize("sweep", [*SWEEPS, solvers.Permutation(ORDER)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("factor", [1.0, 1.9])
def test_explicit_updates_are_proximal_gradient_steps(sweep, factor):
    plain = solvers.ProximalGradient(sweep=sweep, step_rule=solvers.CurvatureStep(factor))
    one, state = walk(make("smooth"), BregmanCoordinateDescent(sweep=sweep, factor=factor), 5)
    other, again = walk(make("smooth"), plain, 5)
    assert one == other
    assert all(torch.equal(x, y) for x, y in zip(state.variables, again.variables, strict=True))


def test_explicit_updates_minimise_the_energy_plus_the_bregman_distance():
    """∇[E + D_J(., Θ^k)] = 0 with J = (1/2t)‖.‖² - E, by autograd through the oracle; t is found from the step."""
    case = dense_case((5, 6, 4, 3), ("tanh", "sigmoid"), samples=12)
    problem = case.problem()
    batch = solvers.Batch.whole(problem, case.X, case.Y)
    solver = BregmanCoordinateDescent(sweep=solvers.BottomUp())
    state = solver.init(problem, batch)
    state.variables = case.state()
    f = case.stages[0][0]  # Θ_1 moves first, from the point we know

    def slope():
        value = sum(term.mean() for term in oracle.sample_terms(case.stages, case.weights, case.xs))
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(f.parameters()))])

    def flat():
        return torch.cat([p.detach().flatten() for p in f.parameters()])

    old, at_old = flat(), slope()
    solver.step(problem, state, batch)
    new, at_new = flat(), slope()
    A = torch.cat((case.X, torch.ones(12, 1, dtype=torch.float64)), 1)
    t = float((old - new).norm() / at_old.norm())
    L = case.weights[0] * float(torch.linalg.svdvals(A)[0]) ** 2 / 12
    assert 0.95 / L <= t <= 1.0 / L  # J is convex
    gradient_of_distance = (new - at_new * t - old + at_old * t) / t  # ∇J(new) - ∇J(old)
    torch.testing.assert_close(at_new + gradient_of_distance, torch.zeros_like(new), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [*NAMES, "deep"])
def test_explicit_parameters_with_exact_variables(name):
    case = deep() if name == "deep" else make(name)
    solver = BregmanCoordinateDescent(explicit_variables=False, block_iterations=5000)
    values, state = walk(case, solver, 5)
    assert never_increases(values) and values[-1] < values[0]
    assert state.metrics["block_residual"] <= 1e-9
    found = case.problem.certificates(state.variables, *case.data)
    last = [l for l in range(1, case.problem.depth) if l % 2 == 0] or [1]
    assert all(found.variables[l - 1] <= 1.01e-9 for l in last)


# State, counters, refusals


@pytest.mark.parametrize(
    "solver",
    [
        CoordinateDescent(block_iterations=30),
        CoordinateDescent(sweep=solvers.TopDown(), prox_weight=0.3, block_iterations=30),
    ],
    ids=["plain", "proximal"],
)
@pytest.mark.parametrize("name", ["sparse code", "joint"])
def test_state_dict_round_trip_is_bitwise(name, solver):
    case = make(name)
    _, state = walk(case, solver, 2)
    saved = copy.deepcopy((case.problem.model.state_dict(), state.state_dict()))
    fresh = make(name, seed=0)
    fresh.problem.model.load_state_dict(saved[0])
    batch = solvers.Batch.whole(fresh.problem, *fresh.data)
    again = solver.init(fresh.problem, batch)
    again.load_state_dict(saved[1])
    for _ in range(5):
        state = solver.step(case.problem, state, batch)
        again = solver.step(fresh.problem, again, batch)
    assert state.metrics == again.metrics and state.steps == again.steps == 7
    assert all(torch.equal(x, y) for x, y in zip(state.variables, again.variables, strict=True))
    for p, q in zip(case.problem.model.parameters(), fresh.problem.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_counters_by_hand():
    """Two linear layers: every block is solved by its first step, and a second gradient proves it.

    Θ_1: z_1, σ_1 and a parameter gradient, twice.  Θ_2: z_2, σ_2 and a parameter gradient, twice.  x_1: an adjoint
    twice, and z_2, σ_2 once, because they are known where it starts.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    problem = lb.lift(
        model, loss=lb.SquaredError(), parameter_penalties={1: penalties.SquaredL2(0.1), 2: penalties.SquaredL2(0.1)}
    )
    X, Y = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    batch = solvers.Batch.whole(problem, X, Y)
    solver = CoordinateDescent()
    state = solver.init(problem, batch)
    problem.work.reset()
    solver.step(problem, state, batch)
    assert state.iterations == {"parameters_1": 2, "parameters_2": 2, "variables_1": 2}
    assert problem.work.as_dict() == {"forward_maps": 5, "adjoints": 2, "parameter_gradients": 4, "prox_maps": 5}


def test_coupled_sweeps_and_maps_that_are_not_affine_are_refused():
    case = make("relu")
    for solver in (CoordinateDescent(sweep=solvers.Jacobi()), BregmanCoordinateDescent(sweep=solvers.Jacobi())):
        with pytest.raises(errors.CompatibilityError, match=r"requires a sweep .* missing: Jacobi\(\) updates"):
            solvers.run(case.problem, case.data, solver, epochs=1)
    model = nn.Sequential(lb.Map(nn.Linear(5, 4)), Asinh().as_module(), nn.Linear(4, 3)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    for solver in (CoordinateDescent(), BregmanCoordinateDescent()):
        with pytest.raises(errors.CompatibilityError, match=r"requires affine maps .* missing: model.0 .* may not be"):
            solvers.run(problem, case.data, solver, epochs=1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tolerance": -1.0}, "tolerance"),
        ({"block_iterations": 0}, "block_iterations is 0"),
        ({"prox_weight": -0.5}, "prox_weight"),
    ],
)
def test_settings_that_are_refused(settings, says):
    with pytest.raises(errors.SettingError, match=says):
        CoordinateDescent(**settings)
    if "prox_weight" not in settings:
        with pytest.raises(errors.SettingError, match=says):
            BregmanCoordinateDescent(**settings)


def test_the_explicit_factor_is_below_two():
    with pytest.raises(errors.SettingError, match="below 2"):
        BregmanCoordinateDescent(factor=2.0)


@pytest.mark.parametrize("solver", [CoordinateDescent(), lb.ADMM()], ids=["CoordinateDescent", "ADMM"])
@pytest.mark.parametrize("data", ["equal samples", "rank 5 of 10"])
def test_float32_does_not_wander_where_the_inputs_see_nothing(solver, data):
    """At a minimiser the gradient is rounding, which a step would divide by the floor of the ridge, 1e-6: it stays."""
    torch.manual_seed(0)
    X = torch.randn(4, 10).repeat(13, 1) if data == "equal samples" else torch.randn(60, 5) @ torch.randn(5, 10)
    Y = torch.randn(len(X), 3)
    model = nn.Sequential(nn.Linear(10, 3))
    problem = lb.lift(model, loss=lb.SquaredError())
    theta = []
    for epochs in (2, 10):
        lb.fit(problem, (X, Y), solver=solver, epochs=epochs)
        theta.append(torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach().double().numpy())
    A, targets = np.c_[X.double().numpy(), np.ones(len(X))], Y.double().numpy()
    best = np.linalg.lstsq(A, targets, rcond=1e-6)[0]
    assert np.square(A @ theta[1].T - targets).sum() == pytest.approx(np.square(A @ best - targets).sum(), rel=1e-5)
    assert np.linalg.norm(theta[1] - theta[0]) <= 1e-4 * np.linalg.norm(best)
