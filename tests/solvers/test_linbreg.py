"""LinBreg and AdaBreg: the subgradient at every step, formulas by hand, state, work, refusals."""

from __future__ import annotations

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.penalties import L1, Bounds, GroupL2, NonNegative, Nuclear, SquaredL2
from lifted_bregman.solvers import Batch, Outcome, run
from lifted_bregman.solvers.adabreg import AdaBreg
from lifted_bregman.solvers.batches import InMemory
from lifted_bregman.solvers.directions import LiftedDirection
from lifted_bregman.solvers.linbreg import LinBreg
from lifted_bregman.solvers.sparsity import TargetSparsity
from tests.solvers.linbreg_cases import converge, deep, one_layer, randn
from tests.solvers.subdifferentials import in_subdifferential

# The iteration itself.

REGULARISERS = {
    "l1": L1(0.05),
    "group": GroupL2(0.1),
    "nuclear": Nuclear(0.1),
    "square": SquaredL2(0.5),
    "box": Bounds(-0.3, 0.4),
    "by layer": {1: L1(0.04), 2: GroupL2(0.2), 3: Nuclear(0.1)},
    "target": TargetSparsity(0.6, rate=1.3),
    "targets": {1: TargetSparsity(0.5, rate=1.3), 3: TargetSparsity(0.4, GroupL2, tolerance=0.2)},
}
ALGORITHMS = {
    "plain": partial(LinBreg, 0.05),
    "momentum": partial(LinBreg, 0.05, momentum=0.8),
    "adam": partial(AdaBreg, 5e-3),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("regulariser", REGULARISERS)
def test_v_minus_theta_over_delta_is_a_subgradient_after_every_step(algorithm, regulariser):
    problem, X, Y = deep()
    with torch.no_grad():
        for module in (0, 2, 4):
            problem.model[module].weight.clamp_(-0.25, 0.35)
            problem.model[module].weight[1] = 0.0
    solver = ALGORITHMS[algorithm](penalties=REGULARISERS[regulariser], scale=1.7)
    whole = Batch.whole(problem, X, Y)
    state = solver.init(problem, whole)
    sparse_seen = False
    for epoch in range(1, 9):
        for batch in InMemory(whole, 8, 0).epoch(epoch):
            state = solver.step(problem, state, batch)
            current = solver.current_penalties(problem, state)
            for layer, own in enumerate(problem.network, start=1):
                for name, parameter in own.map.parameters.items():
                    theta, v = parameter.detach(), state.subgradients[layer][name]
                    if layer in current and theta.ndim > 1:
                        assert in_subdifferential(current[layer], theta, v - theta / 1.7)
                        sparse_seen |= bool((theta == 0).any())
                    else:
                        torch.testing.assert_close(theta, 1.7 * v, rtol=1e-15, atol=0)
    assert sparse_seen or regulariser in ("nuclear", "square", "box")


@pytest.mark.parametrize("penalty", [L1(0.3), GroupL2(0.3), Nuclear(0.3), SquaredL2(0.3), NonNegative()], ids=repr)
def test_the_start_is_where_the_parameters_are(penalty):
    problem, X, Y = deep()
    with torch.no_grad():
        problem.model[0].weight[2] = 0.0
        for parameter in problem.model.parameters():
            parameter.abs_()
    before = copy.deepcopy(problem.model.state_dict())
    solver = LinBreg(1e-300, penalty, scale=0.8)
    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    assert all(torch.equal(a, b) for a, b in zip(problem.model.state_dict().values(), before.values(), strict=True))
    solver.step(problem, state, batch)  # the step does nothing, so that only Θ = prox_{δR}(δv) is seen
    for key, value in problem.model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_formulas_by_hand(momentum):
    problem, X, Y = one_layer(4, 3, 6, bias=True)
    with torch.no_grad():
        problem.model[0].weight.copy_(randn(3, 4, seed=5))
    tau, scale, weight = 0.2, 1.4, 0.3
    W, b = problem.model[0].weight.detach().numpy().copy(), np.zeros(3)
    v, u, mW, mb = W / scale + weight * np.sign(W), b / scale, 0.0, 0.0
    solver, batch = LinBreg(tau, L1(weight), scale, momentum=momentum), Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(30):
        d = X.numpy() @ W.T + b - Y.numpy()
        mW = momentum * mW + (1 - momentum) * tau * d.T @ X.numpy() / 6
        mb = momentum * mb + (1 - momentum) * tau * d.mean(0)
        v, u = v - mW, u - mb
        W, b = scale * np.sign(v) * np.maximum(np.abs(v) - weight, 0), scale * u
        solver.step(problem, state, batch)
        np.testing.assert_allclose(problem.model[0].weight.detach().numpy(), W, rtol=0, atol=1e-14)
        np.testing.assert_allclose(problem.model[0].bias.detach().numpy(), b, rtol=0, atol=1e-14)
    assert np.isclose(W, scale * (v - weight)).any() and np.isclose(W, scale * (v + weight)).any()


def test_adabreg_without_penalties_is_adam():
    problem, X, Y = one_layer(5, 3, 7, bias=True)
    twin = copy.deepcopy(problem.model)
    adam = torch.optim.Adam(twin.parameters(), lr=0.02, betas=(0.8, 0.95), eps=1e-6)
    solver, batch = AdaBreg(0.01, scale=2.0, betas=(0.8, 0.95), epsilon=1e-6), Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(40):
        adam.zero_grad()
        (0.5 * (twin(X) - Y).square().sum(1).mean()).backward()
        adam.step()
        solver.step(problem, state, batch)
        for ours, theirs in zip(problem.model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_batches_average_over_their_own_samples():
    problem, X, Y = one_layer(4, 2, 6)
    whole = Batch.whole(problem, X, Y)
    solver = LinBreg(0.1)
    state = solver.init(problem, whole)
    solver.step(problem, state, whole.select(torch.tensor([1, 4])))
    expected = 0.1 * Y[[1, 4]].T @ X[[1, 4]] / 2  # from Θ = 0
    torch.testing.assert_close(problem.model[0].weight.detach(), expected)


def test_work_is_what_the_docstring_says():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    batch = Batch.whole(problem, randn(5, 4), randn(5, 2))
    for sweeps, forward, adjoints, prox in ((1, 2, 1, 3), (3, 4, 3, 7)):
        solver = LinBreg(0.1, direction=LiftedDirection(sweeps))
        state = solver.init(problem, batch)
        problem.work.reset()
        solver.step(problem, state, batch)
        assert problem.work.as_dict() == {
            "forward_maps": forward, "adjoints": adjoints, "parameter_gradients": 2, "prox_maps": prox
        }  # fmt: skip


# Around it.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_saved_state_continues_bitwise(algorithm):
    def fresh():
        problem, X, Y = deep()
        solver = ALGORITHMS[algorithm](penalties=TargetSparsity(0.5, rate=1.2), scale=1.3)
        return problem, solver, Batch.whole(problem, X, Y)

    problem, solver, whole = fresh()
    state = solver.init(problem, whole)
    batches = [b for epoch in (1, 2, 3) for b in InMemory(whole, 8, 3).epoch(epoch)]
    for batch in batches[:4]:
        state = solver.step(problem, state, batch)
    saved, parameters = copy.deepcopy(state.state_dict()), copy.deepcopy(problem.model.state_dict())
    for batch in batches[4:]:
        state = solver.step(problem, state, batch)

    again, solver, whole = fresh()
    other = solver.init(again, whole)
    again.model.load_state_dict(parameters)
    other.load_state_dict(saved)
    for batch in batches[4:]:
        other = solver.step(again, other, batch)
    for a, b in zip(problem.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert state.metrics == other.metrics and state.weights == other.weights and state.steps == other.steps


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: LinBreg(0.0), "step_size"),
        (lambda: LinBreg(0.1, scale=-1.0), "scale"),
        (lambda: LinBreg(0.1, momentum=1.0), "momentum"),
        (lambda: LinBreg(0.1, 0.3), "penalties"),
        (lambda: LinBreg(0.1, {1: "l1"}), "penalties"),
        (lambda: AdaBreg(betas=(0.9, 1.0)), "betas"),
        (lambda: AdaBreg(epsilon=0.0), "epsilon"),
        (lambda: LiftedDirection(sweeps=0), "sweeps"),
        (lambda: LiftedDirection(sweeps=2, factor=2.0), "factor"),
        (lambda: LiftedDirection(factor=-1.0), "factor"),
    ],
)
def test_settings_out_of_range_are_refused(make, word):
    with pytest.raises(SettingError, match=word):
        make()


def test_problems_that_do_not_fit_are_refused_before_any_work():
    problem, _, _ = deep()
    with pytest.raises(CompatibilityError, match=r"LinBreg requires a trained weight.*missing: that of layer 4"):
        LinBreg(0.1, {4: L1(0.1)}).require(problem)
    problem.model[2].weight.requires_grad_(False)
    with pytest.raises(CompatibilityError, match="that of layer 2"):
        LinBreg(0.1, {2: L1(0.1)}).require(problem)
    LinBreg(0.1, L1(0.1)).require(problem)  # all weights that are trained
    with pytest.raises(CompatibilityError, match="SquaredL2 has no weight that decides"):
        AdaBreg(penalties=TargetSparsity(0.5, SquaredL2)).require(problem)
    with pytest.raises(CompatibilityError, match="groups of 4"):
        LinBreg(0.1, TargetSparsity(0.5, partial(GroupL2, group_size=4))).require(problem)
    LinBreg(0.1, {1: TargetSparsity(0.5, partial(GroupL2, group_size=3))}).require(problem)
    penalised = lb.lift(problem.model, loss=lb.SquaredError(), parameter_penalties={1: L1(0.1)})
    with pytest.raises(CompatibilityError, match=r"layers \[1\] have one"):
        LinBreg(0.1, L1(0.1)).require(penalised)


def test_frozen_weights_stay():
    problem, X, Y = deep()
    problem.model[2].weight.requires_grad_(False)
    kept = problem.model[2].weight.clone()
    converge(LinBreg(0.05, L1(0.1)), problem, X, Y, 5)
    assert torch.equal(problem.model[2].weight, kept)


def test_divergence_is_an_outcome():
    problem, X, Y = deep()
    result = run(problem, (X, Y), LinBreg(1e6), epochs=300, batch_size=5)
    assert result.outcome is Outcome.DIVERGED
    assert all(bool(p.isfinite().all()) for p in problem.model.parameters())


def test_the_mean_size_of_the_weights_is_the_first_weight_of_a_target():
    problem, X, Y = deep()
    state = LinBreg(0.1, {1: TargetSparsity(0.5)}, scale=0.5).init(problem, Batch.whole(problem, X, Y))
    W = problem.model[0].weight.detach()
    assert math.isclose(state.weights[1], float(W.abs().mean()) / 0.5, rel_tol=1e-12)
    grouped = LinBreg(0.1, {1: TargetSparsity(0.5, GroupL2)}).init(problem, Batch.whole(problem, X, Y))
    assert math.isclose(grouped.weights[1], float(W.norm(dim=1).mean()), rel_tol=1e-12)
    given = LinBreg(0.1, {1: TargetSparsity(0.5, start=0.07)}).init(problem, Batch.whole(problem, X, Y))
    assert given.weights == {1: 0.07}
    with torch.no_grad():
        W.zero_()
    with pytest.raises(CompatibilityError, match="give `start`"):
        LinBreg(0.1, {1: TargetSparsity(0.5)}).init(problem, Batch.whole(problem, X, Y))
