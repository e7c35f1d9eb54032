"""Targets of sparsity, their rules and where they end in the energy; sparse starts."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.penalties import L1, Nuclear, SquaredL2
from lifted_bregman.solvers import Batch, ProximalGradient, run
from lifted_bregman.solvers.linbreg import LinBreg
from lifted_bregman.solvers.sparsity import TargetSparsity, sparse_start
from lifted_bregman.solvers.targeted import TargetedPenalties
from tests.solvers.linbreg_cases import F64, randn
from tests.solvers.regularisation_cases import continued, deep

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
    assert abs(result.state.metrics["sparsity_parameters"][1] - fraction) < 0.01
    weight = problem.parameter_penalties[1].weight
    lasso = Lasso(alpha=weight, fit_intercept=False, tol=1e-12, max_iter=100000).fit(X.numpy(), Y.numpy())
    np.testing.assert_allclose(W.numpy(), lasso.coef_, atol=5e-3)


def test_a_target_for_codes_in_the_energy():
    problem, X, Y = deep(samples=40)
    solver = TargetedPenalties(ProximalGradient(), variables={2: TargetSparsity(0.8, rate=1.05, start=1e-2)})
    result = run(problem, (X, Y), solver, epochs=400, record_every=400)
    assert abs(problem.sparsity(result.state.variables, 2) - 0.8) < 0.02
    assert result.state.metrics["weight_variables"][2] > 0.0


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
