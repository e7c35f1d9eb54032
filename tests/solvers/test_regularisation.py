"""Section 4's regularisation: iterative on (Θ, X), targets of sparsity, sparse starts, and consistency."""

import copy
import importlib.util
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.problem.penalties import L1, GroupL2, NonNegative, Nuclear, SquaredL2
from lifted_bregman.solvers import Batch, ProximalGradient, run
from lifted_bregman.solvers.bregman_iterations import BregmanIterations, split_prox
from lifted_bregman.solvers.linbreg import LinBreg
from lifted_bregman.solvers.sparsity import TargetSparsity, sparse_start
from lifted_bregman.solvers.targeted import TargetedPenalties

from .test_linbreg import in_subdifferential

F64 = torch.float64
DOCS = Path(__file__).parents[2] / "docs"


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def deep(samples=6, trained=True, **settings):
    """No more samples than width + 1 in any layer."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 6), nn.Softshrink(0.05), nn.Linear(6, 2)
    ).double()
    model.requires_grad_(trained)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.8, 1.5, 1.1], **settings)
    return problem, randn(samples, 8, seed=3), randn(samples, 2, seed=4)


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
    with pytest.raises(CompatibilityError, match="told apart"):
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
    model = nn.Sequential(lb.Map(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 2)).double()
    with pytest.raises(CompatibilityError, match="affine maps"):
        BregmanIterations().require(lb.lift(model, loss=lb.SquaredError()))


def continued(make, steps_before=4, steps_after=5):
    """Parameters after going on, and after a save, a fresh start, a load, and the same steps."""
    problem, solver, batch = make()
    state = solver.init(problem, batch)
    for _ in range(steps_before):
        state = solver.step(problem, state, batch)
    saved, parameters = copy.deepcopy(state.state_dict()), copy.deepcopy(problem.model.state_dict())
    for _ in range(steps_after):
        state = solver.step(problem, state, batch)
    again, solver, batch = make()
    other = solver.init(again, batch)
    again.model.load_state_dict(parameters)
    other.load_state_dict(saved)
    for _ in range(steps_after):
        other = solver.step(again, other, batch)
    return (problem, state), (again, other)


def test_bregman_iterations_continue_bitwise():
    def make():
        problem, X, Y = deep()
        return problem, BregmanIterations(**SETTINGS["both"]), Batch.whole(problem, X, Y)

    (problem, state), (again, other) = continued(make)
    assert all(torch.equal(p, q) for p, q in zip(problem.model.parameters(), again.model.parameters(), strict=True))
    assert all(torch.equal(x, y) for x, y in zip(state.variables, other.variables, strict=True))
    assert state.steps == other.steps == 9


# Targets.


def test_the_rule_of_a_target_is_monotone_and_never_passes_the_goal():
    critical = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=F64)
    target = TargetSparsity(0.7, rate=1.1)
    for weight in (0.01, 0.3, 0.72, 0.99, 5.0):
        path = [weight]
        for _ in range(100):
            path.append(target.adjusted(path[-1], [critical[:300], critical[300:]]))
        moves = np.sign(np.diff(path))
        assert (moves >= 0).all() or (moves <= 0).all()  # never back and forth
        ratios = np.array(path[1:]) / np.array(path[:-1])
        assert ratios.max() <= 1.1 * (1 + 1e-12) and ratios.min() >= (1 - 1e-12) / 1.1
        assert abs(float((critical <= path[-1]).double().mean()) - 0.7) <= 0.005
        assert path[-1] == path[-2]
        assert target.adjusted(path[-1], [critical - 1e-6]) == path[-1]  # within tolerance nothing moves
    far = target.adjusted(1e-9, [critical], limited=False)
    assert float((critical <= far).double().mean()) == pytest.approx(0.7, abs=1e-12)


def test_a_fraction_that_ties_forbid_does_not_drive_the_weight_to_zero():
    critical = torch.tensor([0.0] * 8 + [1.0, 2.0], dtype=F64)  # 8 of 10 are zero for every weight
    weight = 0.5
    for _ in range(1000):
        weight = TargetSparsity(0.3).adjusted(weight, [critical])
    assert 0.0 < weight < 1e-5 and math.isfinite(1.0 / weight)


def test_the_other_rule_goes_up_when_too_few_are_zero():
    target = TargetSparsity(0.5, tolerance=0.01, rate=1.2)
    assert target.nudged(1.0, 0.5) == 1.0
    assert target.nudged(1.0, 0.45) == pytest.approx(1.2**0.5)
    assert target.nudged(1.0, 0.0) == pytest.approx(1.2)
    assert target.nudged(1.0, 1.0) == pytest.approx(1 / 1.2)


@pytest.mark.parametrize(
    "settings",
    [{"fraction": 0.0}, {"fraction": 1.0}, {"tolerance": 0.0}, {"rate": 1.0}, {"start": 0.0}, {"start": math.inf}],
)
def test_targets_out_of_range_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        TargetSparsity(**{"fraction": 0.5, **settings})


def regression():
    """One layer with 40 inputs and 5 outputs: the lasso."""
    model = nn.Sequential(nn.Linear(40, 5, bias=False, dtype=F64))
    with torch.no_grad():
        model[0].weight.zero_()
    X = randn(60, 40, seed=1)
    Y = X @ (randn(5, 40, seed=2) * torch.linspace(0, 1, 40, dtype=F64)).T + 0.3 * randn(60, 5, seed=3)
    return lb.lift(model, loss=lb.SquaredError()), X, Y


@pytest.mark.parametrize("fraction", [0.35, 0.8])
def test_a_target_in_the_energy_ends_at_the_lasso_that_has_it(fraction):
    from sklearn.linear_model import Lasso

    problem, X, Y = regression()
    solver = TargetedPenalties(ProximalGradient(), {1: TargetSparsity(fraction, rate=1.05, start=1e-2)})
    result = run(problem, (X, Y), solver, epochs=600, record_every=600)
    W = problem.model[0].weight.detach()
    assert abs(float((W == 0).double().mean()) - fraction) < 0.01
    assert abs(result.state.metrics["sparsity_parameters_1"] - fraction) < 0.01
    weight = problem.parameter_penalties[1].weight
    lasso = Lasso(alpha=weight, fit_intercept=False, tol=1e-12, max_iter=100000).fit(X.numpy(), Y.numpy())
    np.testing.assert_allclose(W.numpy(), lasso.coef_, atol=5e-3)


def test_a_target_for_codes_in_the_energy():
    problem, X, Y = deep(samples=40)
    solver = TargetedPenalties(ProximalGradient(), variables={2: TargetSparsity(0.8, rate=1.05, start=1e-2)})
    result = run(problem, (X, Y), solver, epochs=400, record_every=400)
    assert abs(problem.sparsity(result.state.variables, 2) - 0.8) < 0.02
    assert result.state.metrics["weight_variables_2"] > 0.0


def test_targeted_penalties_continue_bitwise():
    def make():
        problem, X, Y = regression()
        solver = TargetedPenalties(ProximalGradient(), {1: TargetSparsity(0.5, rate=1.3)})
        return problem, solver, Batch.whole(problem, X, Y)

    (problem, state), (again, other) = continued(make)
    assert all(torch.equal(p, q) for p, q in zip(problem.model.parameters(), again.model.parameters(), strict=True))
    assert state.parameter_weights == other.parameter_weights and state.metrics == other.metrics


def test_targets_that_do_not_fit_are_refused():
    problem, _, _ = deep()
    target = TargetSparsity(0.5)
    with pytest.raises(CompatibilityError, match="give the target to its own `penalties`"):
        TargetedPenalties(LinBreg(0.1), {1: target}).require(problem)
    with pytest.raises(SettingError, match="is no target"):
        TargetedPenalties(ProximalGradient(), {1: L1(0.1)})
    with pytest.raises(SettingError, match="layers count from 1 to 4"):
        TargetedPenalties(ProximalGradient(), {5: target}).require(problem)
    with pytest.raises(CompatibilityError, match="Nuclear"):
        TargetedPenalties(ProximalGradient(), variables={1: TargetSparsity(0.5, Nuclear)}).require(problem)
    with pytest.raises(CompatibilityError, match="SquaredL2"):
        TargetedPenalties(ProximalGradient(), {1: TargetSparsity(0.5, SquaredL2)}).require(problem)
    problem.model[2].weight.requires_grad_(False)
    with pytest.raises(CompatibilityError, match="that of layer 2"):
        TargetedPenalties(ProximalGradient(), {2: target}).require(problem)


# Sparse starts.


def test_a_sparse_start_keeps_the_variance_and_the_biases():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 7)).double()
    before = copy.deepcopy(model)
    problem = lb.lift(model, loss=lb.SquaredError())
    sparse_start(problem, 0.1, seed=4)
    for new, old in zip(model.parameters(), before.parameters(), strict=True):
        if new.ndim == 1:
            assert torch.equal(new, old)
            continue
        kept = new != 0
        assert int(kept.sum()) == round(0.1 * new.numel())
        torch.testing.assert_close(new[kept], old[kept] / math.sqrt(0.1))
        if new.numel() > 10_000:
            assert float(new.detach().var()) == pytest.approx(float(old.detach().var()), rel=0.05)
    again = copy.deepcopy(before)
    sparse_start(lb.lift(again, loss=lb.SquaredError()), 0.1, seed=4)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))
    other = copy.deepcopy(before)
    sparse_start(lb.lift(other, loss=lb.SquaredError()), 0.1, seed=5)
    assert not torch.equal(other[0].weight, model[0].weight)


def test_a_sparse_start_by_rows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 10, 3), nn.ReLU(), nn.Flatten(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
    last = model[5].weight.detach().clone()
    problem = lb.lift(model.double(), loss=lb.SquaredError())
    sparse_start(problem, 0.3, rows=True)
    assert int(model[0].weight.flatten(1).any(1).sum()) == 3
    assert int(model[3].weight.any(1).sum()) == 2
    assert torch.equal(model[5].weight, last.double())


@pytest.mark.parametrize("density", [0.0, -0.1, 1.1, math.nan])
def test_densities_out_of_range_are_refused(density):
    problem, _, _ = deep()
    with pytest.raises(SettingError, match="density"):
        sparse_start(problem, density)


# The paper's point, on the example of the documentation.


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("consistency", DOCS / "examples" / "consistency.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.found = module.rows()
    return module


def test_variational_regularisation_breaks_consistency_and_iterative_does_not(example):
    variational = [row for row in example.found if row.regularisation == "variational"]
    iterative = [row for row in example.found if row.regularisation == "iterative"]
    assert [row.weight for row in variational] == sorted(row.weight for row in variational)
    gaps = [row.gap for row in variational]
    assert gaps[0] > 0.1 and all(b > 1.5 * a for a, b in pairwise(gaps))
    assert all(row.gap < 1e-6 and row.loss < 1e-10 and row.certificate < 1e-6 for row in iterative)
    assert min(row.zeros for row in iterative) > 0.3  # regularised all the same


def test_the_variational_gap_is_as_large_as_theory_demands(example):
    """At a stationary Θ_1 the gradient is -α sign(W) where W is not zero: ‖d_1‖ >= s (α √nnz - residual) / ‖X‖₂."""
    X, Y = example.data()
    for weight in example.VARIATIONAL:
        problem, variables = example.variational(weight)
        W, b = problem.model[0].weight.detach(), problem.model[0].bias.detach()
        d = torch.tanh(X @ W.T + b) - variables[1]
        residual = problem.certificates(variables, X, Y).parameters[0]
        bound = len(X) * (weight * math.sqrt(int(W.count_nonzero())) - residual)
        assert bound > 0.0
        assert float(d.norm()) >= bound / float(torch.linalg.matrix_norm(X, 2))


def test_the_page_shows_the_numbers_of_the_example(example):
    page = (DOCS / "regularisation.md").read_text(encoding="utf-8")
    printed = re.findall(r"^\| (variational|iterative) \| ([\d.]+) \| (.*?) \| (\d+) % \| (.*?) \|$", page, re.M)
    assert len(printed) == len(example.found)
    for (kind, weight, gap, zeros, loss), row in zip(printed, example.found, strict=True):
        assert (kind, float(weight)) == (row.regularisation, row.weight)
        assert abs(float(zeros) - 100 * row.zeros) <= 2.0
        for shown, value in ((gap, row.gap), (loss, row.loss)):
            if shown == "below 1e-6":
                assert value < 1e-6
            else:
                assert float(shown) == pytest.approx(value, rel=0.01, abs=6e-4)


def test_the_pages_own_lines_run():
    page = (DOCS / "regularisation.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names = {}
    exec(block, names)
    assert abs(names["result"].state.metrics["parameter_sparsity"] - 0.9) < 0.01
