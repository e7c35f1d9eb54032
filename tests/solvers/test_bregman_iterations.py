"""Bregman iterations on (Θ, X): proximal maps split in two, steps by brute force, the energy alone in the limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.penalties import L1, GroupL2, NonNegative, Nuclear, SquaredL2
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.solvers import Batch, ProximalGradient, run
from lifted_bregman.solvers.bregman_iterations import BregmanIterations, split_prox
from tests.solvers.linbreg_cases import randn
from tests.solvers.regularisation_cases import continued, deep
from tests.solvers.subdifferentials import in_subdifferential

# Splitting a proximal map into the subgradients of its two parts.

PAIRS = [
    *[(a, L1(0.4)) for a in (act.Identity(), act.ReLU(), act.Tanh(), act.ELU(0.6), act.Box(-0.3, 0.8), act.Asinh())],
    *[(a, L1(0.4)) for a in (act.SoftThreshold(0.2), act.GroupSoftThreshold(0.5), act.BallProjection(1.1))],
    *[(a, GroupL2(0.7)) for a in (act.Identity(), act.ReLU(), act.NonNegativeSoftThreshold(0.3))],
    *[(a, GroupL2(0.7)) for a in (act.GroupSoftThreshold(0.5), act.BallProjection(1.1))],
    (act.ReLU(), GroupL2(0.7, group_size=3)),
    *[(a, SquaredL2(0.7)) for a in (act.Sigmoid(), act.Softmax(), act.Tanh())],
]


@pytest.mark.parametrize(("activation", "penalty"), PAIRS, ids=repr)
@pytest.mark.parametrize(("a", "b"), [(0.6, 0.4), (0.9, 2.5)])
def test_the_parts_of_a_proximal_map_are_subgradients(activation, penalty, a, b):
    v = 1.5 * randn(30, 6, seed=1)
    v[:5] *= 0.05
    u, q = split_prox(activation, penalty, v, a, b)
    torch.testing.assert_close(u, composite_prox(activation, penalty, v, a, b), rtol=0, atol=1e-14)
    groups = u.view(-1, 3) if getattr(penalty, "group_size", None) else u
    assert in_subdifferential(penalty, groups, q.reshape(groups.shape), 1e-9)
    psi = (v - u - b * q) / a  # in ∂Ψ(u) exactly when σ(u + ψ) = u
    torch.testing.assert_close(activation(u + psi), u, rtol=0, atol=1e-9)
    if not isinstance(penalty, SquaredL2):
        assert bool((u == 0).any()) and bool((u != 0).any())


@pytest.mark.parametrize(
    ("activation", "penalty"),
    [(act.Sigmoid(), L1(0.1)), (act.Softmax(), L1(0.1)), (act.Tanh(), GroupL2(0.1)), (act.ReLU(), NonNegative())],
    ids=repr,
)
def test_pairs_without_a_rule_are_refused(activation, penalty):
    with pytest.raises(CompatibilityError, match="cannot be separated"):
        split_prox(activation, penalty, randn(3, 4), 0.5, 0.5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), activation.as_module(), nn.Linear(4, 2)).double()
    with pytest.raises(CompatibilityError, match=r"BregmanIterations requires on variables.*missing: a rule for"):
        BregmanIterations(penalties={1: penalty}).require(lb.lift(model, loss=lb.SquaredError()))


# Bregman iterations.

SETTINGS = {
    "parameters": {"parameter_penalties": {1: L1(0.4), 2: GroupL2(0.5), 3: Nuclear(0.3), 4: L1(0.2)}},
    "variables": {"penalties": {1: L1(0.2), 2: GroupL2(0.3), 3: L1(0.1)}},
    "both": {"parameter_penalties": {2: L1(0.3)}, "penalties": {1: SquaredL2(0.4), 3: L1(0.2)}, "scale": 0.6},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("factor", [1.0, 1.9])
def test_energy_never_increases_and_subgradients_stay_subgradients(settings, factor):
    problem, X, Y = deep()
    solver = BregmanIterations(**SETTINGS[settings], factor=factor)
    solver.require(problem)
    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    energy = float(problem.energy(state.variables, X, Y))
    for _ in range(80):
        state = solver.step(problem, state, batch)
        last, energy = energy, float(problem.energy(state.variables, X, Y))
        assert energy <= last * (1 + 1e-12) + 1e-15
        for layer, penalty in solver.penalties.items():
            assert in_subdifferential(penalty, state.variables[layer], state.variable_subgradients[layer])
        for layer, penalty in solver.parameter_penalties.items():
            for name, p in problem.network[layer].map.parameters.items():
                q = state.subgradients[layer][name] - p.detach() / solver.scale
                if p.ndim > 1:
                    assert in_subdifferential(penalty, p.detach(), q)
                else:
                    assert float(q.abs().max()) < 1e-13


def test_a_step_minimises_the_linearised_energy_plus_the_bregman_distance():
    """Eq. 16 for one variable, by brute force: L(x) + G(x) + (R(x) - R(x⁰) - <q, x - x⁰> + ½‖x - x⁰‖²)/t."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double().requires_grad_(False)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.7])
    X, Y = randn(5, 4, seed=5), randn(5, 2, seed=6)
    solver, batch = BregmanIterations(penalties={1: L1(0.25)}, factor=1.0), Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    W1, b1, W2, b2 = (p.numpy() for p in model.parameters())
    z1 = X.numpy() @ W1.T + b1
    for _ in range(4):
        x0, q0 = state.variables[1].numpy().copy(), state.variable_subgradients[1].numpy().copy()
        state.power.clear()  # so that the bound of the norm is the one below
        t = 1.0 / problem.network[2].map.input_curvature(state.variables[1], upper=True)
        assert t == pytest.approx(1.0 / np.linalg.norm(W2, 2) ** 2, rel=0.02)
        solver.step(problem, state, batch)
        g = (x0 @ W2.T + b2 - Y.numpy()) @ W2 - 0.7 * z1
        for i in range(5):

            def value(x, g=g[i], q=q0[i], x0=x0[i], t=t):  # x >= 0, where |x| = x
                distance = 0.25 * x.sum() - q @ x + 0.5 * ((x - x0) ** 2).sum()
                return g @ x + 0.7 * 0.5 * (x**2).sum() + distance / t

            found = minimize(value, np.full(3, 0.1), bounds=[(0, None)] * 3, method="L-BFGS-B", tol=1e-16)
            np.testing.assert_allclose(state.variables[1][i].numpy(), found.x, atol=1e-6)


def test_variables_tend_to_the_minimiser_of_the_energy_without_the_regulariser():
    """With fixed parameters and one hidden layer E is strictly convex in x_1: SciPy finds its only minimiser."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double().requires_grad_(False)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.7])
    X, Y = randn(6, 4, seed=5), randn(6, 2, seed=6)
    solver, batch = BregmanIterations(penalties={1: L1(0.5)}, factor=1.0), Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    first = int((state.variables[1] == 0).sum())
    for _ in range(400):
        solver.step(problem, state, batch)
    W1, b1, W2, b2 = (p.numpy() for p in model.parameters())
    z1 = X.numpy() @ W1.T + b1
    for i in range(6):

        def value(x, i=i):
            return 0.7 * (0.5 * x @ x - z1[i] @ x) + 0.5 * ((W2 @ x + b2 - Y[i].numpy()) ** 2).sum()

        found = minimize(value, np.full(5, 0.1), bounds=[(0, None)] * 5, method="L-BFGS-B", tol=1e-15)
        np.testing.assert_allclose(state.variables[1][i].numpy(), found.x, atol=1e-5)
    assert first > int((state.variables[1] == 0).sum())  # sparse at first, as a regularised code is
    assert max(problem.certificates(state.variables, X, Y).variables) < 1e-10


@pytest.mark.parametrize(
    "settings",
    [
        {"parameter_penalties": {1: L1(0.4), 2: Nuclear(0.3)}},
        {"penalties": {1: L1(0.3)}},
        {"parameter_penalties": {1: GroupL2(0.4)}, "penalties": {1: L1(0.2)}, "scale": 1.5},
    ],
)
def test_stationary_points_are_those_of_the_energy_alone(settings):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 2)).double()
    problem, X, Y = lb.lift(model, loss=lb.SquaredError()), randn(5, 8, seed=3), randn(5, 2, seed=4)
    result = run(problem, (X, Y), BregmanIterations(**settings, factor=1.9), epochs=500, record_every=500)
    state = result.state
    assert problem.certificates(state.variables, X, Y).largest < 1e-4
    assert max(problem.consistency(state.variables, X)) < 1e-3


def test_regularisation_shows_on_the_way():
    """Stopped early, the code is sparser with the iteration than without, at the same number of steps."""
    fractions = []
    for penalties in ({}, {2: L1(0.3)}):
        problem, X, Y = deep(samples=40)
        solver, batch = BregmanIterations(penalties=penalties), Batch.whole(*((problem, X, Y)))
        state = solver.init(problem, batch)
        for _ in range(20):
            state = solver.step(problem, state, batch)
        fractions.append(problem.sparsity(state.variables, 2))
    assert fractions[1] > fractions[0] + 0.05


def test_without_regularisers_it_is_proximal_gradient_descent():
    from lifted_bregman.solvers import CurvatureStep

    problem, X, Y = deep()
    other, _, _ = deep()
    ours, theirs = BregmanIterations(factor=1.5), ProximalGradient(step_rule=CurvatureStep(1.5))
    batch, twin = Batch.whole(problem, X, Y), Batch.whole(other, X, Y)
    a, b = ours.init(problem, batch), theirs.init(other, twin)
    for _ in range(10):
        a, b = ours.step(problem, a, batch), theirs.step(other, b, twin)
    for p, q in zip(problem.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11)
    for layer in (1, 2, 3):
        torch.testing.assert_close(a.variables[layer], b.variables[layer], rtol=1e-9, atol=1e-11)


def test_the_scale_alone_changes_nothing():
    """Without R, Θ = δv, and the step in v is divided by δ."""
    plain, X, Y = deep()
    scaled, _, _ = deep()
    runs = ((plain, BregmanIterations()), (scaled, BregmanIterations({l: L1(0.0) for l in (1, 2, 3, 4)}, scale=2.5)))
    for problem, solver in runs:
        batch = Batch.whole(problem, X, Y)
        state = solver.init(problem, batch)
        for _ in range(5):
            state = solver.step(problem, state, batch)
    for p, q in zip(plain.model.parameters(), scaled.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-13)


def test_work_is_what_the_docstring_says():
    problem, X, Y = deep()
    batch = Batch.whole(problem, X, Y)
    for settings in SETTINGS.values():
        solver = BregmanIterations(**settings)
        state = solver.init(problem, batch)
        problem.work.reset()
        solver.step(problem, state, batch)
        assert problem.work.as_dict() == {
            "forward_maps": 7, "adjoints": 3, "parameter_gradients": 4, "prox_maps": 10
        }  # fmt: skip


def test_the_energys_own_penalties_stay_in_force_elsewhere():
    problem, X, Y = deep(penalties={1: L1(0.3)}, parameter_penalties={4: L1(0.2)})
    solver = BregmanIterations(parameter_penalties={2: L1(0.1)}, penalties={3: L1(0.1)}, factor=1.9)
    run(problem, (X, Y), solver, epochs=150, record_every=150)
    assert bool((problem.model[6].weight == 0).any())
    with pytest.raises(CompatibilityError, match=r"layers \[1, 4\] have a penalty in the energy too"):
        BregmanIterations(parameter_penalties={4: L1(0.1)}, penalties={1: L1(0.1)}).require(problem)


def test_bregman_settings_are_checked():
    problem, _, _ = deep()
    with pytest.raises(SettingError, match="factor"):
        BregmanIterations(factor=2.0)
    with pytest.raises(SettingError, match="scale"):
        BregmanIterations(scale=0.0)
    with pytest.raises(SettingError, match="layers count from 1 to 4"):
        BregmanIterations(parameter_penalties={5: L1(0.1)}).require(problem)
    with pytest.raises(SettingError, match="hidden layers count from 1 to 3"):
        BregmanIterations(penalties={4: L1(0.1)}).require(problem)
    with pytest.raises(CompatibilityError, match="groups of 5"):
        BregmanIterations(parameter_penalties={1: GroupL2(0.1, group_size=5)}).require(problem)


def test_a_map_that_is_not_known_to_be_affine_gets_half_the_step_of_its_estimate():
    """The same numbers as `nn.Linear` and as `lb.Map`: the first step of Θ_1 is half as long, up to the margin."""
    torch.manual_seed(2)
    X, Y = torch.randn(20, 3, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    moves = []
    for wrap in (lambda module: module, lb.Map):
        torch.manual_seed(3)
        linear = nn.Linear(3, 2).double()
        problem = lb.lift(nn.Sequential(wrap(linear)), loss=lb.SquaredError())
        before = linear.weight.detach().clone()
        batch = Batch.whole(problem, X, Y)
        BregmanIterations().step(problem, BregmanIterations().init(problem, batch), batch)
        moves.append(linear.weight.detach() - before)
    ratio = (moves[1] / moves[0]).flatten()
    assert ratio.max() - ratio.min() < 1e-9 and 0.47 < float(ratio[0]) < 0.52


def test_bregman_iterations_continue_bitwise():
    def make():
        problem, X, Y = deep()
        return problem, BregmanIterations(**SETTINGS["both"]), Batch.whole(problem, X, Y)

    (problem, state), (again, other) = continued(make)
    assert all(torch.equal(p, q) for p, q in zip(problem.model.parameters(), again.model.parameters(), strict=True))
    assert all(torch.equal(x, y) for x, y in zip(state.variables, other.variables, strict=True))
    assert state.steps == other.steps == 9
