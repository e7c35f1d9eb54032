"""LinBreg on one layer ends at the solution with the smallest regulariser: SciPy, optimality conditions, ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, linprog, minimize
from torch import nn

import lifted_bregman as lb
from lifted_bregman.penalties import L1, GroupL2, Nuclear
from lifted_bregman.solvers import Batch
from lifted_bregman.solvers.adabreg import AdaBreg
from lifted_bregman.solvers.linbreg import LinBreg
from lifted_bregman.solvers.sparsity import TargetSparsity
from tests.solvers.linbreg_cases import F64, converge, deep, one_layer, randn, safe_step
from tests.solvers.subdifferentials import in_subdifferential


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
