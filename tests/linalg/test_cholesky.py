"""Cholesky factors, ridge systems and guarded systems against NumPy's solutions, and what they do on any matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lifted_bregman._linalg import Cholesky, GuardedFactor, Ridge, damped_inverse, factorise
from lifted_bregman._linalg.cholesky import inverse_by_triangle

F64 = torch.float64


def definite(n, seed=0, stack=()):
    B = np.random.default_rng(seed).normal(size=(*stack, n, n + 2))
    return B @ np.swapaxes(B, -1, -2)


# One factorisation


@pytest.mark.parametrize("stack", [(), (3,)])
def test_a_factor_solves_and_inverts(stack):
    M, B = definite(5, stack=stack), np.random.default_rng(1).normal(size=(*stack, 5, 2))
    factor = Cholesky(torch.tensor(M))
    assert factor.definite
    np.testing.assert_allclose(factor.lower.numpy(), np.linalg.cholesky(M), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(factor.solve(torch.tensor(B)).numpy(), np.linalg.solve(M, B), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(factor.inverse().numpy(), np.linalg.inv(M), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("entry", [-1.0, 0.0, float("nan")])
def test_a_stack_is_not_definite_if_one_matrix_has_no_factor(entry):
    M = torch.eye(3, dtype=F64).repeat(4, 1, 1)
    M[2, 1, 1] = entry
    assert not Cholesky(M).definite


def test_the_floor_grows_by_a_hundred_until_there_is_a_factor():
    """diag(-5, 1) + tI is definite for t > 5."""
    tried = []

    def system(t):
        tried.append(t)
        return torch.diag(torch.tensor([-5.0, 1.0], dtype=F64)) + t * torch.eye(2, dtype=F64)

    factor, t = factorise(system, 0.01, attempts=4)
    assert tried == pytest.approx([0.01, 1.0, 100.0]) and t == tried[-1] and factor.definite
    np.testing.assert_allclose(factor.lower.diagonal().numpy(), np.sqrt([95.0, 101.0]))
    tried.clear()
    factor, t = factorise(system, 0.01, attempts=2)
    assert tried == pytest.approx([0.01, 1.0]) and t == tried[-1] and not factor.definite


# Ridge systems


@pytest.mark.parametrize(("rows", "columns"), [(3, 8), (8, 3), (5, 5)])
def test_ridge_systems_are_solved_as_by_numpy(rows, columns):
    rng = np.random.default_rng(rows)
    A, d, G = rng.normal(size=(rows, columns)), rng.uniform(0.5, 2.0, columns), rng.normal(size=(4, columns))
    expected = np.linalg.solve(0.3 * A.T @ A + np.diag(d), G.T).T
    found = Ridge(torch.tensor(A), 0.3, torch.tensor(d)).solve(torch.tensor(G))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_ridge_systems_have_a_factor(dtype):
    A = torch.ones(7, 3, dtype=dtype)
    for matrix in (A, A.T.contiguous(), torch.zeros(4, 3, dtype=dtype)):
        G = torch.ones(2, matrix.shape[1], dtype=dtype) @ (matrix.T @ matrix)  # in the range
        assert Ridge(matrix, 0.5, torch.zeros(matrix.shape[1], dtype=dtype)).solve(G).isfinite().all()


# Guarded systems


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
def test_the_factor_solves_the_system_in_either_space(shape):
    torch.manual_seed(0)
    A, G = torch.randn(*shape, dtype=F64), torch.randn(shape[0], 4, dtype=F64)
    c, tau = 0.3, 0.7
    step = GuardedFactor(A @ A.T, c, tau, samples=True)
    expected = torch.linalg.solve(c * A @ A.T + tau * torch.eye(len(A), dtype=F64), G)
    torch.testing.assert_close(step.solve(G), expected, rtol=0, atol=1e-13)
    assert step.added == 0.0 and not step.fallback
    in_weights = GuardedFactor(A.T @ A, c, tau).solve(A.T @ G)
    torch.testing.assert_close(in_weights, A.T @ step.solve(G), rtol=0, atol=1e-13)
    assert step.curvature >= float(torch.linalg.eigvalsh(c * A @ A.T)[-1]) + tau


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("tau", [0.0, 1e-30, 1e-9, 1e-4])
@pytest.mark.parametrize("kind", ["duplicates", "rank one", "zero", "large mean"])
def test_the_factor_is_definite_for_any_rows(kind, tau, dtype):
    """The solution belongs to a matrix between c K + τ and that plus ε, with ε of the size of the rounding."""
    torch.manual_seed(1)
    A = {
        "duplicates": torch.randn(20, 30).repeat(3, 1),
        "rank one": torch.outer(torch.rand(60), torch.rand(30)) * 100.0,
        "zero": torch.zeros(60, 30),
        "large mean": torch.rand(60, 30) + 1e3,
    }[kind].to(dtype)
    step, G = GuardedFactor(A @ A.T, 1 / 60, tau, samples=True), torch.randn(60, 3, dtype=dtype)
    trace = float(A.double().square().sum()) / 60
    assert not step.fallback
    assert 0.0 <= step.added <= 1e-4 * trace if trace else tau + step.added in (tau, 1.0)
    assert tau + step.added >= 100.0 * torch.finfo(dtype).eps * trace
    P = step.solve(G).double()
    descent = float((G.double() * P).sum())
    assert bool(P.isfinite().all()) and descent > 0.0
    # Descent needs <G, P> >= ½<P, HP>, H = c K + τ; rounding of the solution is within ε.
    H = A.double() @ A.double().T / 60 + tau * torch.eye(60, dtype=F64)
    assert descent >= 0.5 * float((P * (H @ P)).sum())


def test_the_guard_raises_its_floor_and_then_takes_a_gradient_step(monkeypatch):
    K, G, seen = torch.eye(3, dtype=F64), torch.ones(3, 2, dtype=F64), []
    real = torch.linalg.cholesky_ex

    def refusing(S, failures):
        seen.append(float(S[0, 0]) - 0.5)
        factor, info = real(S)
        return factor, torch.ones_like(info) if len(seen) <= failures else info

    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda S: refusing(S, 2))
    factor = GuardedFactor(K, 0.5, 1e-6)
    assert seen == pytest.approx([1e-6, 1e-4, 1e-2], rel=1e-6) and factor.added == pytest.approx(1e-2 - 1e-6)
    torch.testing.assert_close(factor.solve(G), G / 0.51, rtol=1e-12, atol=0)
    seen.clear()
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda S: refusing(S, 99))
    factor = GuardedFactor(K, 0.5, 1e-6)
    assert factor.fallback and factor.added == 0.0
    torch.testing.assert_close(factor.solve(G), G / (1.5 + 1e-6), rtol=1e-12, atol=0)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_give_no_step(bad):
    K = torch.eye(3)
    K[1, 1] = bad
    factor = GuardedFactor(K, 1.0, 1.0)
    assert factor.fallback and float(factor.solve(torch.ones(3, 2)).abs().max()) == 0.0


# Stacks of damped inverses


@pytest.mark.parametrize("damping", [0.3, 1e-30])
def test_damped_inverses_are_those_of_numpy(damping):
    """t is damping·tr K/n, or 100 eps tr K where that is more."""
    K = definite(4, stack=(3,)) * np.array([1.0, 1e3, 1e-6])[:, None, None]
    t = np.trace(K, axis1=1, axis2=2)[:, None, None] * max(damping / 4, 100.0 * np.finfo(float).eps)
    inverse, found, fallback = damped_inverse(torch.tensor(K), damping)
    np.testing.assert_allclose(found.numpy(), t, rtol=1e-14)
    expected = np.linalg.inv(K + t * np.eye(4))
    np.testing.assert_allclose((inverse.numpy() @ (K + t * np.eye(4))), np.broadcast_to(np.eye(4), K.shape), atol=1e-9)
    np.testing.assert_allclose(inverse.numpy(), expected, rtol=1e-7, atol=1e-9 * abs(expected).max())
    assert not fallback.any()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_singular_matrices_have_a_damped_inverse_and_zero_moves_nothing(dtype):
    K = torch.stack((torch.ones(50, 50), torch.zeros(50, 50))).to(dtype)
    inverse, _, fallback = damped_inverse(K, 1e-12)
    assert not fallback.any() and bool(inverse[0].isfinite().all())
    assert float(inverse[1].abs().max()) <= 2e-30


def test_a_matrix_that_is_not_finite_gives_a_multiple_of_the_identity_and_disturbs_no_other():
    K = torch.tensor(definite(3, stack=(2,)))
    K[1, 0, 1] = K[1, 1, 0] = float("nan")
    inverse, t, fallback = damped_inverse(K.clone(), 0.5)
    assert fallback.tolist() == [False, True]
    np.testing.assert_allclose(inverse[0].numpy(), np.linalg.inv(K[0].numpy() + float(t[0]) * np.eye(3)), rtol=1e-12)
    np.testing.assert_allclose(inverse[1].numpy(), np.eye(3) / float(K[1].trace() + t[1]), rtol=1e-14)


@pytest.mark.parametrize("n", [7, 9, 33, 129])
def test_the_bits_of_a_damped_inverse_do_not_depend_on_the_stack(n):
    """Also where an odd size makes matrices begin at addresses of different alignment."""
    K = torch.tensor(definite(n, stack=(4,)))
    together, alone = damped_inverse(K.clone(), 0.5)[0], [damped_inverse(own[None].clone(), 0.5)[0] for own in K]
    assert torch.equal(together, torch.cat(alone))


def test_the_inverse_by_triangles_is_that_of_numpy():
    """What other devices than the CPU take, where `cholesky_inverse` would wait for the device."""
    K = definite(5, stack=(3,))
    found = inverse_by_triangle(torch.linalg.cholesky(torch.tensor(K)))
    np.testing.assert_allclose(found.numpy(), np.linalg.inv(K), rtol=1e-9, atol=1e-12)


def test_a_factor_with_a_zero_on_its_diagonal_is_replaced_and_not_refused(monkeypatch):
    real = torch.linalg.cholesky_ex

    def broken(K):
        lower, info = real(K)
        lower[..., 1, 1] = 0.0
        return lower, info.fill_(2)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", broken)
    K = torch.tensor(definite(3, stack=(2,)))
    inverse, t, fallback = damped_inverse(K.clone(), 0.5)
    assert fallback.all()
    np.testing.assert_allclose(inverse[1].numpy(), np.eye(3) / float(K[1].trace() + t[1]), rtol=1e-14)
