"""Proximal gradient: descent, stationarity, and iterates against eq. 17 written out in the test."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.graph import Links
from lifted_bregman.problem.blocks import ParameterBlock, VariableBlock
from tests.sampling import over
from tests.solvers.problems import NAMES, make

GAUSS_SEIDEL = [solvers.TopDown(), solvers.BottomUp(), solvers.OddEven()]


def energies(case, solver, steps):
    batch = solvers.Batch.whole(case.problem, *case.data)
    state = solver.init(case.problem, batch)
    values = [float(case.problem.energy(state.variables, *case.data))]
    for _ in range(steps):
        state = solver.step(case.problem, state, batch)
        values.append(float(case.problem.energy(state.variables, *case.data)))
    return values


def never_increases(values):
    return all(after <= before * (1 + 1e-13) + 1e-14 for before, after in itertools.pairwise(values))


@over(str, 2, name=NAMES, sweep=GAUSS_SEIDEL, smooth_quadratic=[False, True])
def test_curvature_steps_never_increase_the_energy(name, sweep, smooth_quadratic):
    solver = solvers.ProximalGradient(sweep=sweep, smooth_quadratic=smooth_quadratic)
    values = energies(make(name), solver, 25)
    assert never_increases(values) and values[-1] < 0.9 * values[0]


@pytest.mark.parametrize("smooth_quadratic", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_default_steps_of_simultaneous_sweeps_never_increase_the_energy(name, smooth_quadratic):
    solver = solvers.ProximalGradient(sweep=solvers.Jacobi(), smooth_quadratic=smooth_quadratic)
    values = energies(make(name), solver, 40)
    assert never_increases(values) and values[-1] < 0.9 * values[0]


@pytest.mark.parametrize("hidden", [(32,), (32, 32)], ids=["two layers", "three layers"])
def test_simultaneous_sweeps_never_increase_the_energy_of_a_digits_classifier(hidden):
    from sklearn.datasets import load_digits

    digits = load_digits()
    torch.manual_seed(0)
    widths = [64, *hidden, 10]
    modules = [module for pair in itertools.pairwise(widths) for module in (nn.Linear(*pair), nn.ReLU())]
    problem = lb.lift(nn.Sequential(*modules[:-1]).double(), loss=lb.SquaredError())
    X, Y = torch.tensor(digits.data[:600] / 16), torch.eye(10, dtype=torch.float64)[digits.target[:600]]
    start = float(problem.objective(X, Y))
    result = solvers.run(problem, (X, Y), solvers.ProximalGradient(sweep=solvers.Jacobi()), epochs=40)
    assert never_increases([start, *(row["energy"] for row in result.history)])
    assert result.history[-1]["objective"] < 0.75 * start


def test_the_coupling_of_a_sweep_counts_what_moves_at_once():
    """By hand: n of Θ_l and x_{l-1} in a group, twice that if x_l is in it; the largest of them."""
    counted = {
        sweep: [sweep.coupling(Links.chain(depth)) for depth in (1, 2, 3, 4)]
        for sweep in (solvers.Jacobi(), *GAUSS_SEIDEL)
    }
    assert counted == {solvers.Jacobi(): [1, 2, 4, 4]} | {sweep: [1, 1, 1, 1] for sweep in GAUSS_SEIDEL}


@pytest.mark.parametrize("sweep", [solvers.Jacobi(), solvers.TopDown()], ids=repr)
@pytest.mark.parametrize("name", NAMES)
def test_backtracking_never_increases_the_energy(name, sweep):
    solver = solvers.ProximalGradient(sweep=sweep, step_rule=solvers.Backtracking())
    values = energies(make(name), solver, 25)
    assert never_increases(values) and values[-1] < 0.9 * values[0]


def test_backtracking_moves_a_block_whose_smooth_gradient_vanishes():
    """Y = XWᵀ makes the gradient 0 at the start, but not the subgradient of the penalty; the problem is convex."""
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(4, 2, bias=False)).double()
    X = torch.randn(10, 4, dtype=torch.float64)
    Y = start(X).detach()
    ends = []
    for rule in (solvers.Backtracking(), solvers.CurvatureStep()):
        model = copy.deepcopy(start)
        problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: lb.penalties.L1(0.1)})
        result = lb.fit(problem, (X, Y), solver=solvers.ProximalGradient(step_rule=rule), epochs=500, tolerance=1e-9)
        assert result.outcome is solvers.Outcome.CONVERGED
        ends.append(model[0].weight.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-7)


def test_backtracking_moves_a_variable_whose_smooth_gradient_vanishes():
    """With W_2 = 0, b_2 = y and z_1 = 0 the gradient of x_1 is 0, and its minimiser σ_1(0) = 0 is elsewhere."""
    problem = lb.lift(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double(), loss=lb.SquaredError())
    X, Y = torch.randn(4, 3, dtype=torch.float64), torch.zeros(4, 1, dtype=torch.float64)
    for p in problem.model.parameters():
        torch.nn.init.zeros_(p)
    point = problem.point(lb.LiftedState([torch.full((4, 2), 0.5, dtype=torch.float64)]), X, Y)
    solvers.Backtracking().update(problem, point, [VariableBlock(1)], {})
    assert float(point.x[1].abs().max()) < 0.4


def test_a_penalised_block_that_cannot_move_keeps_a_finite_step():
    """At 0, within the penalty's subdifferential, no step moves the weight; t must not double without end."""
    problem = lb.lift(
        nn.Sequential(nn.Linear(3, 2)), loss=lb.SquaredError(), parameter_penalties={1: lb.penalties.L1(9.0)}
    )
    X, Y, memory = torch.randn(5, 3), torch.zeros(5, 2), {}
    for p in problem.model.parameters():
        torch.nn.init.zeros_(p)
    point = problem.point(lb.LiftedState([]), X, Y)
    for _ in range(50):
        solvers.Backtracking().update(problem, point, [ParameterBlock(1)], memory)
    assert set(memory.values()) == {1.0} and not problem.model[0].weight.any()


ACCELERATIONS = [solvers.Nesterov(), solvers.HeavyBall(0.6), solvers.Anderson(4)]


@over(str, acceleration=ACCELERATIONS, name=NAMES)
def test_monotone_acceleration_never_increases_the_energy(name, acceleration):
    solver = solvers.ProximalGradient(
        acceleration=acceleration, monotone=True, step_rule=solvers.CurvatureStep(factor=1.0)
    )
    values = energies(make(name), solver, 40)
    plain = energies(make(name), solvers.ProximalGradient(step_rule=solvers.CurvatureStep(factor=1.0)), 40)
    assert never_increases(values) and values[-1] < 1.05 * plain[-1]


FISTA = {"acceleration": solvers.Nesterov(restart_on_increase=False), "monotone": False}


@pytest.mark.parametrize("settings", [FISTA, {"acceleration": solvers.Nesterov()}], ids=["FISTA", "default"])
def test_nesterov_keeps_the_rate_of_fista(settings):
    """E(x_k) - E* <= 2L‖x_0 - x*‖²/(k + 1)² with L = ‖X‖²/s = 1/60, for 200 steps; x* by NumPy."""
    generator = np.random.default_rng(0)
    U, V = (np.linalg.qr(generator.normal(size=(rows, 20)))[0] for rows in (60, 20))
    X, Y = U * np.geomspace(1.0, 0.01, 20) @ V.T, generator.normal(size=(60, 3))
    W = np.linalg.lstsq(X, Y, rcond=None)[0]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 3, bias=False)).double()
    distance = np.square(model[0].weight.detach().numpy() - W.T).sum()
    problem = lb.lift(model, loss=lb.SquaredError())
    solver = solvers.ProximalGradient(**settings)
    result = solvers.run(problem, (torch.tensor(X), torch.tensor(Y)), solver, epochs=200)
    gap = np.array([row["energy"] for row in result.history]) - 0.5 * np.square(X @ W - Y).sum() / 60
    assert (gap <= 1.02 * 2.0 / 60.0 * distance / np.arange(2, 202) ** 2).all()  # the bound on L has room for rounding


@over(str, acceleration=[solvers.HeavyBall(), solvers.HeavyBall(0.9), solvers.Nesterov()], monotone=[True, False])
def test_an_acceleration_with_its_default_step_ends_below_the_plain_sweep_with_the_same_step(acceleration, monotone):
    """On a network of 20, 15 and 3 units; with the step of the plain sweep the energy exceeds 1e20."""

    def end(**settings):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 15), nn.ReLU(), nn.Linear(15, 3)).double()
        X, Y = torch.randn(100, 20, dtype=torch.float64), torch.randn(100, 3, dtype=torch.float64)
        problem = lb.lift(model, loss=lb.SquaredError())
        return solvers.run(problem, (X, Y), solvers.ProximalGradient(**settings), epochs=200).history[-1]["energy"]

    plain = end(step_rule=solvers.CurvatureStep(acceleration.factor))
    assert end(acceleration=acceleration, monotone=monotone) < plain


@pytest.mark.parametrize("acceleration", ACCELERATIONS, ids=repr)
def test_acceleration_accelerates(acceleration):
    """On an ill-conditioned convex problem (one layer), each needs far fewer sweeps than the plain method."""

    def steps_to_converge(chosen):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 2)).double()
        problem = lb.lift(model, loss=lb.SquaredError())
        X = torch.randn(40, 8, dtype=torch.float64) * torch.logspace(0, -0.9, 8, dtype=torch.float64)
        Y = torch.randn(40, 2, dtype=torch.float64)
        solver = solvers.ProximalGradient(acceleration=chosen, step_rule=solvers.CurvatureStep(factor=1.0))
        result = solvers.run(problem, (X, Y), solver, epochs=8000, tolerance=1e-8)
        assert result.outcome is solvers.Outcome.CONVERGED
        return result.state.steps

    assert 2 * steps_to_converge(acceleration) < steps_to_converge(solvers.NoAcceleration())


@pytest.mark.parametrize("name", ["relu", "sparse code", "classes"])
def test_reaches_a_stationary_point(name):
    """At convergence every block's prox-gradient residual is below the tolerance; a ridge makes the minimum finite."""
    case = make(name)
    ridge = {layer: lb.penalties.SquaredL2(0.05) for layer in range(1, case.problem.depth + 1)}
    problem = lb.lift(
        case.problem.model,
        loss=case.problem.loss,
        weights=case.problem.weights,
        penalties=case.problem.penalties,
        parameter_penalties=ridge,
    )
    solver = solvers.ProximalGradient(acceleration=solvers.Anderson(8))
    result = solvers.run(problem, case.data, solver, epochs=3000, tolerance=1e-6, record_every=20)
    assert result.outcome is solvers.Outcome.CONVERGED, result.history[-1]
    assert problem.certificates(result.state.variables, *case.data).largest <= 1e-6


def test_iterates_are_those_of_the_paper():
    """Example 3 (ReLU), corrected, for a simultaneous step: written out with the paper's transposed weights."""
    case = make("relu")
    problem, t_parameter, t_variable = case.problem, 0.03, 0.2
    W = [layer.weight.detach().T.clone() for layer in problem.model if hasattr(layer, "weight")]
    b = [layer.bias.detach().clone() for layer in problem.model if hasattr(layer, "bias")]
    x = [case.X]
    for weight, bias in zip(W[:-1], b[:-1], strict=True):
        x.append((x[-1] @ weight + bias).clamp(min=0))
    x.append(case.Y)
    for _ in range(3):
        z = [None] + [x[k] @ W[k] + b[k] for k in range(3)]
        d = [None] + [(z[k].clamp(min=0) if k < 3 else z[k]) - x[k] for k in (1, 2, 3)]
        new_x = list(x)
        for j in (1, 2):
            new_x[j] = ((x[j] - t_variable * (d[j + 1] @ W[j].T - z[j])) / (1 + t_variable)).clamp(min=0)
        W = [W[k] - t_parameter * x[k].T @ d[k + 1] / len(case.X) for k in range(3)]
        b = [b[k] - t_parameter * d[k + 1].mean(0) for k in range(3)]
        x = new_x
    rule = solvers.FixedStep(parameter=t_parameter, variable=t_variable)
    solver = solvers.ProximalGradient(sweep=solvers.Jacobi(), step_rule=rule)
    state = solver.init(problem, solvers.Batch.whole(problem, *case.data))
    for _ in range(3):
        state = solver.step(problem, state, solvers.Batch.whole(problem, *case.data))
    for layer, expected in zip((0, 2, 4), W, strict=True):
        torch.testing.assert_close(problem.model[layer].weight.detach().T, expected, rtol=1e-13, atol=1e-14)
    for j in (1, 2):
        torch.testing.assert_close(state.variables[j], x[j], rtol=1e-13, atol=1e-14)


def test_sweep_orders():
    """Each visits every block once; a permutation that does not is refused before work."""
    blocks = [*(ParameterBlock(l) for l in (1, 2, 3)), *(VariableBlock(l) for l in (1, 2))]
    for sweep in (solvers.Jacobi(), *GAUSS_SEIDEL, solvers.Permutation(tuple(reversed(blocks)))):
        visited = [block for group in sweep.groups(Links.chain(3)) for block in group]
        assert sorted(map(repr, visited)) == sorted(map(repr, blocks))
    assert solvers.TopDown().groups(Links.chain(3))[0] == (ParameterBlock(3),)
    case = make("relu")
    bad = solvers.ProximalGradient(sweep=solvers.Permutation((ParameterBlock(1),)))
    with pytest.raises(errors.SettingError, match="1 blocks"):
        solvers.run(case.problem, case.data, bad, epochs=1)


def test_permutations_differ_and_all_descend():
    blocks = (VariableBlock(1), ParameterBlock(3), ParameterBlock(1), VariableBlock(2), ParameterBlock(2))
    values = energies(make("relu"), solvers.ProximalGradient(sweep=solvers.Permutation(blocks)), 10)
    other = energies(make("relu"), solvers.ProximalGradient(sweep=solvers.BottomUp()), 10)
    assert never_increases(values) and values[-1] != other[-1]


def test_counters_by_hand():
    """Two layers, one top-down sweep with fixed steps.

    Forward pass: z_1, σ_1.  Sweep: Θ_2 needs z_2, σ_2 and one parameter gradient; x_1 needs z_2 and σ_2 again (Θ_2 has
    changed), z_1, one adjoint and one prox; Θ_1 needs σ_1 and one parameter gradient.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    X, Y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    solver = solvers.ProximalGradient(step_rule=solvers.FixedStep(0.01, 0.1))
    batch = solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    assert problem.work.as_dict() == {"forward_maps": 1, "adjoints": 0, "parameter_gradients": 0, "prox_maps": 1}
    problem.work.reset()
    solver.step(problem, state, batch)
    assert problem.work.as_dict() == {"forward_maps": 3, "adjoints": 1, "parameter_gradients": 2, "prox_maps": 4}


def accelerated(acceleration, factor):
    return solvers.ProximalGradient(acceleration=acceleration, step_rule=solvers.CurvatureStep(factor), monotone=False)


@pytest.mark.parametrize(
    ("make_setting", "says"),
    [
        (lambda: solvers.FixedStep(0.0, 1.0), "parameter"),
        (lambda: solvers.CurvatureStep(2.0), "below 2"),
        (lambda: solvers.Backtracking(shrink=1.0), "shrink"),
        (lambda: solvers.Backtracking(grow=float("inf")), "grow"),
        (lambda: solvers.Anderson(ridge=float("inf")), "ridge"),
        (lambda: solvers.Anderson(ridge=-1.0), "ridge"),
        (lambda: solvers.Backtracking(floor=0.0), "floor"),
        (lambda: solvers.HeavyBall(1.0), "momentum"),
        (lambda: solvers.Anderson(0), "history"),
        (lambda: accelerated(solvers.Nesterov(), 1.01), r"factor .* is 1.01 .* at most 1 .* monotone=True"),
        (lambda: accelerated(solvers.HeavyBall(0.6), 0.8), "at most 0.796"),
    ],
)
def test_settings_that_are_refused(make_setting, says):
    with pytest.raises(errors.SettingError, match=says):
        make_setting()
