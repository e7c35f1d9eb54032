"""LinBreg and AdaBreg: the subgradient at every step, minimal solutions, sparse networks on digits."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, linprog, minimize
from torch import nn

import lifted_bregman as lb
from lifted_bregman.data import Centre, load
from lifted_bregman.errors import CompatibilityError, DataError, SettingError
from lifted_bregman.networks.prune import prune
from lifted_bregman.problem.penalties import L1, Box, GroupL2, NonNegative, Nuclear, SquaredL2
from lifted_bregman.solvers import Batch, Outcome, run
from lifted_bregman.solvers._batches import epoch_batches
from lifted_bregman.solvers.adabreg import AdaBreg
from lifted_bregman.solvers.directions import LiftedDirection, forward_point
from lifted_bregman.solvers.linbreg import LinBreg
from lifted_bregman.solvers.sparsity import TargetSparsity, sparse_start

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def one_layer(inputs, outputs, samples, bias=False):
    """Underdetermined least squares, from Θ = 0."""
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=bias, dtype=F64))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return lb.lift(model, loss=lb.SquaredError()), randn(samples, inputs, seed=1), randn(samples, outputs, seed=2)


def deep(weights=(0.7, 1.6), seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    return lb.lift(model, loss=lb.SquaredError(), weights=weights), randn(20, 6, seed=3), randn(20, 3, seed=4)


def converge(solver, problem, X, Y, steps):
    batch = Batch.whole(problem, X, Y)
    solver.require(problem)
    state = solver.init(problem, batch)
    for _ in range(steps):
        state = solver.step(problem, state, batch)
    return state


def safe_step(X, scale, factor=1.9, bias=False):
    A = torch.cat([X, torch.ones(len(X), 1, dtype=F64)], 1) if bias else X
    return factor * len(X) / float(torch.linalg.matrix_norm(A, 2)) ** 2 / scale


def in_subdifferential(penalty, theta, p, tolerance=1e-10):
    """Whether p is in ∂R(Θ), from the definitions, written out for each R."""
    theta, p = theta.flatten(1), p.flatten(1)
    if isinstance(penalty, L1):
        active = theta != 0
        return bool(
            ((p - penalty.weight * theta.sign())[active].abs() <= tolerance).all()
            and (p.abs() <= penalty.weight + tolerance).all()
        )
    if isinstance(penalty, SquaredL2):
        return bool(((p - penalty.weight * theta).abs() <= tolerance).all())
    if isinstance(penalty, GroupL2):
        for row, q in zip(theta, p, strict=True):
            if row.any():
                if not torch.allclose(q, penalty.weight * row / row.norm(), atol=tolerance):
                    return False
            elif not float(q.norm()) <= penalty.weight + tolerance:
                return False
        return True
    if isinstance(penalty, Nuclear):
        # p = w (U Vᵀ + M) with UᵀM = 0, MV = 0, ‖M‖₂ <= 1
        U, sigma, Vt = torch.linalg.svd(theta)
        r = int((sigma > 1e-9 * max(float(sigma[0]), 1e-300)).sum())
        U, V = U[:, :r], Vt[:r].T
        M = p - penalty.weight * U @ V.T
        largest = float(torch.linalg.matrix_norm(M, 2))
        return (
            bool((U.T @ M).abs().max() <= 1e-7 and (M @ V).abs().max() <= 1e-7 and largest <= penalty.weight + 1e-7)
            if r
            else largest <= penalty.weight + 1e-7
        )
    if isinstance(penalty, NonNegative | Box):
        low, high = penalty.low, penalty.high
        inside = (theta > low) & (theta < high)
        return bool(
            (p[inside].abs() <= tolerance).all()
            and (p[theta == low] <= tolerance).all()
            and (p[theta == high] >= -tolerance).all()
            and ((theta >= low) & (theta <= high)).all()
        )
    raise AssertionError(penalty)


# Minimal solutions of one layer.


def test_l1_has_the_smallest_regulariser_among_all_solutions():
    scale, weight = 2.0, 1.0
    problem, X, Y = one_layer(7, 2, 4)
    converge(LinBreg(safe_step(X, scale), L1(weight), scale=scale), problem, X, Y, 4000)
    W = problem.model[0].weight.detach().numpy()
    np.testing.assert_allclose(X.numpy() @ W.T, Y.numpy(), atol=1e-9)
    for row, y in zip(W, Y.numpy().T, strict=True):  # outputs do not couple
        # w = p - n with p, n >= 0 makes the problem smooth
        def value(u):
            w = u[:7] - u[7:]
            return weight * u.sum() + w @ w / (2 * scale)

        def slope(u):
            w = (u[:7] - u[7:]) / scale
            return weight + np.concatenate([w, -w])

        equal = LinearConstraint(np.hstack([X.numpy(), -X.numpy()]), y, y)
        start = np.linalg.lstsq(X.numpy(), y, rcond=None)[0]
        found = minimize(
            value,
            np.concatenate([np.maximum(start, 0), np.maximum(-start, 0)]),
            jac=slope,
            bounds=[(0, None)] * 14,
            constraints=[equal],
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert found.success
        np.testing.assert_allclose(row, found.x[:7] - found.x[7:], atol=2e-6)
    assert (W == 0).any()


def test_a_large_scale_gives_basis_pursuit():
    scale = 60.0
    problem, X, Y = one_layer(9, 1, 4)
    converge(LinBreg(safe_step(X, scale), L1(1.0), scale=scale), problem, X, Y, 6000)
    w = problem.model[0].weight.detach().numpy()[0]
    found = linprog(np.ones(18), A_eq=np.hstack([X.numpy(), -X.numpy()]), b_eq=Y.numpy()[:, 0], bounds=(0, None))
    np.testing.assert_allclose(w, found.x[:9] - found.x[9:], atol=1e-8)
    assert (w == 0).sum() == 5  # a vertex: as many non-zeros as equations


def test_biases_are_plain_and_count_in_the_square_only():
    scale, weight = 1.5, 0.4
    problem, X, Y = one_layer(6, 1, 3, bias=True)
    converge(LinBreg(safe_step(X, scale, bias=True), L1(weight), scale=scale), problem, X, Y, 4000)
    w = problem.model[0].weight.detach().numpy()[0]
    b = float(problem.model[0].bias.detach())

    def value(u):
        w = u[:6] - u[6:12]
        return weight * u[:12].sum() + (w @ w + u[12] ** 2) / (2 * scale)

    A = np.hstack([X.numpy(), -X.numpy(), np.ones((3, 1))])
    found = minimize(
        value,
        np.full(13, 0.5),
        bounds=[(0, None)] * 12 + [(None, None)],
        constraints=[LinearConstraint(A, Y.numpy()[:, 0], Y.numpy()[:, 0])],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.success
    np.testing.assert_allclose([*w, b], [*(found.x[:6] - found.x[6:12]), found.x[12]], atol=2e-6)


@pytest.mark.parametrize("penalty", [GroupL2(1.0), Nuclear(1.0), L1(0.5)], ids=repr)
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_the_limit_satisfies_the_optimality_conditions(penalty, momentum):
    """Θ solves XΘᵀ = Y, and v = XᵀU is in ∂(R + ‖·‖²/2δ)(Θ): then no other solution has a smaller value."""
    scale = 3.0
    problem, X, Y = one_layer(8, 5, 3)
    solver = LinBreg(safe_step(X, scale, 1.5 if momentum else 1.9), penalty, scale, momentum=momentum)
    state = converge(solver, problem, X, Y, 2000)
    theta, v = problem.model[0].weight.detach(), state.subgradients[1]["weight"]
    torch.testing.assert_close(X @ theta.T, Y, rtol=0, atol=1e-8)
    multipliers = torch.linalg.lstsq(X.T, v.T).solution
    torch.testing.assert_close(X.T @ multipliers, v.T, rtol=0, atol=1e-9)
    assert in_subdifferential(penalty, theta, v - theta / scale)


def test_the_nuclear_norm_finds_the_rank_of_the_data():
    torch.manual_seed(5)
    rank = 2
    teacher = randn(9, rank, seed=6) @ randn(rank, 12, seed=7)
    model = nn.Sequential(nn.Linear(12, 9, bias=False, dtype=F64))
    with torch.no_grad():
        model[0].weight.zero_()
    problem = lb.lift(model, loss=lb.SquaredError())
    X = randn(8, 12, seed=8)  # fewer samples than inputs: full-rank matrices fit too
    Y = X @ teacher.T
    converge(LinBreg(safe_step(X, 5.0), Nuclear(1.0), scale=5.0), problem, X, Y, 1500)
    W = model[0].weight.detach()
    torch.testing.assert_close(X @ W.T, Y, rtol=0, atol=1e-6)
    assert int(torch.linalg.matrix_rank(W, rtol=1e-9)) == rank
    least_norm = torch.linalg.lstsq(X, Y).solution.T
    assert float(Nuclear(1.0).value(W)) <= float(Nuclear(1.0).value(least_norm)) + 1e-9


@pytest.mark.parametrize("rank", [1, 4])
def test_a_target_gives_the_asked_rank(rank):
    problem, X, Y = deep()
    target = TargetSparsity(1.0 - rank / 7, Nuclear)  # the second weight is 7 x 9
    solver = AdaBreg(1e-2, {2: target})
    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(300):
        state = solver.step(problem, state, batch)
    assert int(torch.linalg.matrix_rank(problem.model[2].weight.detach(), rtol=1e-9)) == rank


def test_energy_falls_for_steps_below_the_bound():
    """E(Θ⁺) <= E(Θ) - (1/δτ - L/2)‖Θ⁺ - Θ‖², with equality impossible by less than the Bregman distances."""
    scale = 2.0
    problem, X, Y = one_layer(10, 3, 6, bias=True)
    A = torch.cat([X, torch.ones(6, 1, dtype=F64)], 1)
    L = float(torch.linalg.matrix_norm(A, 2)) ** 2 / 6
    tau = 1.99 / L / scale
    solver, batch = LinBreg(tau, L1(0.3), scale), Batch.whole(problem, X, Y)
    with torch.no_grad():
        problem.model[0].weight.copy_(randn(3, 10, seed=8))
    state = solver.init(problem, batch)
    empty = problem.forward_state(X)
    for _ in range(200):
        before, old = float(problem.energy(empty, X, Y)), [p.detach().clone() for p in problem.model.parameters()]
        solver.step(problem, state, batch)
        moved = sum(
            float((p.detach() - q).square().sum()) for p, q in zip(problem.model.parameters(), old, strict=True)
        )
        after = float(problem.energy(empty, X, Y))
        assert after <= before - (1 / (scale * tau) - L / 2) * moved + 1e-13


# The iteration itself.

REGULARISERS = {
    "l1": L1(0.05),
    "group": GroupL2(0.1),
    "nuclear": Nuclear(0.1),
    "square": SquaredL2(0.5),
    "box": Box(-0.3, 0.4),
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
        for batch in epoch_batches(whole, 8, 0, epoch):
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


# The lifted direction.


def direction_gradients(problem, X, Y, direction):
    batch = Batch.whole(problem, X, Y)
    return {layer: problem.parameter_gradient(point, layer) for layer, point in direction.visit(problem, batch, {})}


def test_long_steps_give_the_activation_of_a_shifted_preactivation():
    """factor → ∞: x_l = σ(z_l - λ_{l+1} d_{l+1} W_{l+1} / λ_l), and λ_l d_lᵀ x_{l-1} / s with x_{l-1} not yet moved."""
    problem, X, Y = deep()
    found = direction_gradients(problem, X, Y, LiftedDirection(factor=1e12))
    (W1, b1), (W2, b2), (W3, b3) = [(m.weight.detach(), m.bias.detach()) for m in problem.model if hasattr(m, "weight")]
    l1, l2, l3, s = 0.7, 1.6, 1.0, 20
    z1 = X @ W1.T + b1
    z2 = z1.tanh() @ W2.T + b2
    d3 = z2.relu() @ W3.T + b3 - Y
    x2 = (z2 - l3 * d3 @ W3 / l2).relu()
    d2 = z2.relu() - x2
    x1 = (z1 - l2 * d2 @ W2 / l1).tanh()
    d1 = z1.tanh() - x1
    for layer, lam, d, x in ((3, l3, d3, z2.relu()), (2, l2, d2, z1.tanh()), (1, l1, d1, X)):
        torch.testing.assert_close(found[layer]["weight"], lam * d.T @ x / s, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(found[layer]["bias"], lam * d.mean(0), rtol=1e-8, atol=1e-9)


def test_with_large_weights_it_tends_to_the_backpropagated_gradient():
    problem, X, Y = deep()
    model = problem.model
    model[3] = nn.Sigmoid()  # smooth everywhere, so that the rate is clean
    loss = 0.5 * (model(X) - Y).square().sum(1).mean()
    exact = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    errors = []
    for weight in (1e2, 1e3, 1e4):
        lifted = lb.lift(model, loss=lb.SquaredError(), weights=weight)
        found = direction_gradients(lifted, X, Y, LiftedDirection(factor=1e12))
        flat = torch.cat([found[l][name].flatten() for l in (1, 2, 3) for name in ("weight", "bias")])
        errors.append(float((flat - exact).norm() / exact.norm()))
    assert errors[0] < 0.05
    assert errors[0] / errors[1] == pytest.approx(10.0, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(10.0, rel=0.1)


def test_many_sweeps_give_the_gradient_of_the_minimum_over_x():
    problem, X, Y = deep()
    many = LiftedDirection(sweeps=120, factor=1.9)
    found = direction_gradients(problem, X, Y, many)

    def reduced():
        batch = Batch.whole(problem, X, Y)
        *_, (_, point) = many.visit(problem, batch, {})
        assert max(problem.certificates(point.state, X, Y).variables) < 1e-8
        return float(problem.energy(point.state, X, Y))

    for module, layer in ((0, 1), (2, 2), (4, 3)):
        for name in ("weight", "bias"):
            parameter = getattr(problem.model[module], name).detach()
            change, h = randn(*parameter.shape, seed=layer), 1e-5
            kept = parameter.clone()
            ahead, behind = (parameter.copy_(kept + sign * h * change) is None or reduced() for sign in (1, -1))
            parameter.copy_(kept)
            slope = float((found[layer][name] * change).sum())
            assert (ahead - behind) / (2 * h) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_short_steps_lower_the_energy_and_stay_in_the_domain():
    problem, X, Y = deep()
    batch = Batch.whole(problem, X, Y)
    start = float(problem.energy(forward_point(problem, batch).state, X, Y))
    energies = []
    for sweeps in (1, 2, 5):
        *_, (_, point) = LiftedDirection(sweeps, factor=1.9).visit(problem, batch, {})
        energies.append(float(problem.energy(point.state, X, Y)))
    assert start > energies[0] > energies[1] > energies[2]


def test_a_dead_layer_above_does_not_disturb():
    problem, X, Y = deep()
    with torch.no_grad():
        problem.model[4].weight.zero_()
    found = direction_gradients(problem, X, Y, LiftedDirection())
    for layer in (1, 2):  # nothing comes through
        assert float(found[layer]["weight"].abs().max()) < 1e-15
    assert float(found[3]["weight"].abs().max()) > 0.01


# Around it.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_saved_state_continues_bitwise(algorithm):
    def fresh():
        problem, X, Y = deep()
        solver = ALGORITHMS[algorithm](penalties=TargetSparsity(0.5, rate=1.2), scale=1.3)
        return problem, solver, Batch.whole(problem, X, Y)

    problem, solver, whole = fresh()
    state = solver.init(problem, whole)
    batches = [b for epoch in (1, 2, 3) for b in epoch_batches(whole, 8, 3, epoch)]
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


# Sparse networks on data.


def digits():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    X, y = torch.tensor(images[order] / 16.0, dtype=torch.float32), torch.tensor(labels[order])
    X = X - X[:1300].mean(0)
    return (X[:1300], y[:1300]), (X[1300:], y[1300:])


def classifier(widths, seed):
    torch.manual_seed(seed)
    a, b, c, d = widths
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))


def accuracy(model, X, y):
    with torch.no_grad():
        return 100.0 * float((model(X).argmax(1) == y).double().mean())


def zeros(model):
    weights = [p for p in model.parameters() if p.ndim > 1]
    return sum(int((W == 0).sum()) for W in weights) / sum(W.numel() for W in weights)


def trained(solver, data, widths, seed, epochs, batch_size, density=1.0, rows=False):
    model = classifier(widths, seed)
    problem = lb.lift(model, loss=lb.CrossEntropy())
    if density < 1.0:
        sparse_start(problem, density, seed, rows)
    result = run(problem, data, solver, epochs=epochs, batch_size=batch_size, seed=seed, record_every=epochs)
    assert result.outcome is Outcome.FINISHED
    return model


def test_nine_of_ten_weights_are_zero_at_little_loss_of_accuracy_on_digits():
    train, test = digits()
    widths, budget = (64, 128, 64, 10), {"epochs": 30, "batch_size": 32}
    dense_scores, sparse_scores = [], []
    for seed in range(2):
        dense = trained(LinBreg(0.5, momentum=0.9), train, widths, seed, **budget)
        target = TargetSparsity(0.91)
        sparse = trained(LinBreg(0.5, target, momentum=0.9), train, widths, seed, **budget, density=0.02)
        assert zeros(sparse) >= 0.9 and zeros(dense) == 0.0
        dense_scores.append(accuracy(dense, *test))
        sparse_scores.append(accuracy(sparse, *test))
    assert np.mean(dense_scores) > 97.0
    assert np.mean(dense_scores) - np.mean(sparse_scores) < 1.5


def test_a_fixed_weight_and_a_sparse_start_do_it_too():
    train, test = digits()
    sparse = trained(LinBreg(0.5, L1(0.2), momentum=0.9), train, (64, 128, 64, 10), 0, 30, 32, density=0.02)
    assert zeros(sparse) >= 0.9
    assert accuracy(sparse, *test) > 95.0


@pytest.mark.parametrize("solver", [LinBreg, AdaBreg])
@pytest.mark.parametrize("fraction", [0.5, 0.8, 0.95])
def test_a_target_sparsity_is_reached_within_one_point(solver, fraction):
    train, _ = digits()
    settings = {"momentum": 0.9, "step_size": 0.5} if solver is LinBreg else {"step_size": 3e-3}
    for density in (0.1, 1.0):  # from sparser and from denser
        model = trained(
            solver(penalties=TargetSparsity(fraction), **settings), train, (64, 40, 30, 10), 0, 4, 64, density
        )
        assert abs(zeros(model) - fraction) < 0.01


def test_a_run_that_is_too_short_still_ends_on_target():
    train, _ = digits()
    model = trained(LinBreg(0.1, TargetSparsity(0.7, rate=1.0001)), train, (64, 40, 30, 10), 0, 1, 650)
    assert abs(zeros(model) - 0.7) < 0.01


def test_group_sparsity_makes_a_smaller_network():
    train, test = digits()
    target = {1: TargetSparsity(0.75, GroupL2), 2: TargetSparsity(0.5, GroupL2)}
    solver = LinBreg(0.5, target, momentum=0.9)
    model = trained(solver, train, (64, 128, 64, 10), 0, 20, 32, density=0.25, rows=True)
    pruned = prune(model.double())
    assert pruned.report.widths_after[0] <= 33 and pruned.report.widths_after[1] <= 33
    assert pruned.report.parameters_after < 0.3 * pruned.report.parameters_before
    X, y = test[0].double(), test[1]
    with torch.no_grad():
        torch.testing.assert_close(pruned(X), model(X), rtol=0, atol=1e-12)
    assert accuracy(pruned, X, y) > 95.0


@pytest.mark.long
def test_nine_of_ten_weights_are_zero_on_fashion_mnist():
    try:
        fashion = load("fashion-mnist").apply(Centre())
    except DataError as error:
        pytest.skip(str(error))
    train, test = fashion.pairs("classify")
    widths, budget = (784, 400, 100, 10), {"seed": 0, "epochs": 12, "batch_size": 128}
    dense = trained(LinBreg(1.0, momentum=0.9), train, widths, **budget)
    solver = LinBreg(1.0, TargetSparsity(0.91), scale=3.0, momentum=0.9)
    sparse = trained(solver, train, widths, **budget, density=0.02)
    assert zeros(sparse) >= 0.9
    assert accuracy(dense, *test) > 87.0
    assert accuracy(dense, *test) - accuracy(sparse, *test) < 1.5


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
