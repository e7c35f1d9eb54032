"""Eigenvalues and singular values against LAPACK: estimates never above, guaranteed bounds never below."""

import numpy as np
import pytest
import torch

from lifted_bregman._linalg import (
    FollowedPower,
    PowerIteration,
    RememberedPower,
    certified_bound,
    joint_norm,
    least_squares,
    map_singular_values,
    norm,
    positive_bound,
    singular_values,
)
from tests.linalg.matrices import F64, nasty, top


@pytest.mark.parametrize("name", nasty())
def test_the_certified_bound_holds_and_is_a_few_per_cent_above(name):
    A = nasty()[name]
    exact = top(A)
    for estimate in (exact, 0.999 * exact, 0.5 * exact, 1e-9 * exact, 0.0):
        assert certified_bound(A, estimate) >= exact
    assert certified_bound(A, exact) <= 1.02 * exact


def test_the_certified_bound_of_a_zero_matrix_is_zero():
    assert certified_bound(torch.zeros(4, 3, dtype=F64), 0.0) == 0.0


def test_positive_bound_holds_with_empty_rows():
    torch.manual_seed(5)
    for _ in range(20):
        A = torch.rand(8, 6, dtype=F64) * (torch.rand(8, 6) < 0.3)
        exact = top(A)
        bound = positive_bound(lambda v, A=A: (A.t() @ (A @ v[0]),), (A[0],))
        assert exact <= bound


def test_positive_bound_is_tight_also_with_a_column_that_is_not_used():
    torch.manual_seed(6)
    A = torch.rand(8, 6, dtype=F64)
    A[:, 2] = 0.0
    bound = positive_bound(lambda v: (A.t() @ (A @ v[0]),), (A[0],))
    assert top(A) <= bound <= 1.001 * top(A)


def test_a_warm_start_saves_products_and_follows_the_matrix():
    torch.manual_seed(1)
    A = torch.randn(50, 40, dtype=F64)
    products = 0

    def normal(v):
        nonlocal products
        products += 1
        return (A.t() @ (A @ v[0]),)

    power = PowerIteration()
    power.estimate(normal, (A[0],))
    cold, products = products, 0
    A = A + 1e-4 * torch.randn_like(A)
    warm = power.estimate(normal, (A[0],))
    assert products <= 3 < cold
    assert 0.97 * top(A) <= warm <= top(A) * (1.0 + 1e-12)


def test_a_vector_of_another_shape_is_not_reused():
    power = PowerIteration()
    for n in (3, 5):
        A = torch.diag(torch.arange(1.0, n + 1.0, dtype=F64))
        assert power.estimate(lambda v, A=A: (A @ (A @ v[0]),), (A[0],)) == pytest.approx(n**2, rel=1e-2)


def test_a_followed_power_takes_one_product_and_more_if_the_vector_turns():
    torch.manual_seed(0)
    Q = torch.linalg.qr(torch.randn(30, 30, dtype=F64))[0]
    spectrum = torch.linspace(0.1, 1.0, 30, dtype=F64)
    spectrum[0] = 3.0
    counts = []

    def estimate(memory, N):
        counts.append(0)

        def normal(v):
            counts[-1] += 1
            return (N @ v[0],)

        return FollowedPower(memory, "a").estimate(normal, (N[0],))

    memory, N = {}, Q * spectrum @ Q.T
    assert estimate(memory, N) == pytest.approx(3.0, rel=1e-3) and counts[-1] > 2
    for step in range(1, 4):  # the same vectors, a larger norm
        assert estimate(memory, N * (1 + step)) == pytest.approx(3.0 * (1 + step), rel=1e-3) and counts[-1] == 1
    other = N + 9.0 * torch.outer(Q[:, 5], Q[:, 5]) + 0.5 * torch.outer(Q[:, 0] + Q[:, 5], Q[:, 0] + Q[:, 5])
    assert estimate(memory, other) == pytest.approx(float(torch.linalg.eigvalsh(other)[-1]), rel=1e-2)
    assert counts[-1] > 2
    assert estimate(dict(memory), other) > 0.0 and counts[-1] == 1, "the next batch starts from the last"
    assert estimate({}, 0.0 * N) == 0.0
    memory["a"] = [torch.linalg.eigh(other)[1][:, -1]]
    assert estimate(memory, 0.0 * N) == 0.0 and counts[-1] == 1 and "a" not in memory, "nothing to follow"
    assert estimate(memory, other) > 0.0 and counts[-1] > 2 and "a" in memory
    small = N[:9, :9]
    assert estimate(memory, small) == pytest.approx(float(torch.linalg.eigvalsh(small)[-1]), rel=1e-2)
    assert counts[-1] > 2, "a vector of another size is no start"


def test_a_remembered_vector_is_the_start_of_the_next_iteration_and_is_forgotten_where_there_is_none():
    A, memory = torch.diag(torch.tensor([3.0, 1.0], dtype=F64)), {}
    for _ in range(2):
        RememberedPower(memory, "a").estimate(lambda v: (A @ (A @ v[0]),), (A[0],))
    np.testing.assert_allclose(memory["a"][0].abs().numpy(), [1.0, 0.0], atol=1e-3)
    assert RememberedPower(memory, "a").estimate(lambda v: (0.0 * v[0],), (A[0],)) == 0.0
    assert memory == {}


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 4, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_functions_of_singular_values_are_those_of_numpy(shape, dtype):
    x = torch.tensor(np.random.default_rng(2).normal(size=shape), dtype=dtype)
    U, s, Vt = np.linalg.svd(x.double().numpy(), full_matrices=False)
    rounding = 1e-12 if dtype is F64 else 1e-6
    found = singular_values(x)
    assert found.dtype is F64
    np.testing.assert_allclose(found.numpy(), s, rtol=0, atol=rounding * s.max())
    shrunk = map_singular_values(x, lambda sigma: (sigma - 1.0).clamp(min=0.0))
    assert shrunk.dtype is dtype and shrunk.shape == x.shape
    expected = (U * np.maximum(s - 1.0, 0.0)[..., None, :]) @ Vt
    np.testing.assert_allclose(shrunk.double().numpy(), expected, rtol=0, atol=rounding * s.max())


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (5, 5)])
@pytest.mark.parametrize("ridge", [0.0, 0.7])
def test_least_squares_are_those_of_numpy(shape, ridge):
    """The second column repeats the first, so that without a ridge only the shortest solution is unique."""
    rng = np.random.default_rng(shape[0])
    A, D = rng.normal(size=shape), rng.normal(size=(shape[0], 2))
    A[:, 1] = A[:, 0]
    stacked = np.vstack((A, np.sqrt(ridge) * np.eye(shape[1])))
    expected = np.linalg.lstsq(stacked, np.vstack((D, np.zeros((shape[1], 2)))), rcond=1e-7)[0]
    found = least_squares(torch.tensor(A), torch.tensor(D), ridge)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)


def test_norms_are_those_of_all_entries():
    parts = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([12.0])
    assert norm(parts[0]) == 5.0 and joint_norm(parts) == 13.0
    assert joint_norm([torch.tensor([3e200], dtype=F64), torch.tensor([4e200], dtype=F64)]) == pytest.approx(5e200)
