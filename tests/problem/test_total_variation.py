"""Total variation and sums of penalties: values by definition, proximal maps against quadratic programmes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear, minimize
from torch import Tensor

from lifted_bregman.errors import CompatibilityError, SettingError, TensorError
from lifted_bregman.penalties import (
    L1,
    Bounds,
    GroupL2,
    NonNegative,
    Penalty,
    SquaredL2,
    Sum,
    TotalVariation,
    total_variation,
)
from lifted_bregman.penalties.plane import differences, differences_adjoint, plane_prox
from lifted_bregman.penalties.scalar import Scalar

DIFFERENCES = {n: np.diff(np.eye(n), axis=0) for n in range(2, 33)}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plane_matrix(height: int, width: int) -> np.ndarray:
    """All differences of neighbours of a picture whose rows are written one after another."""
    along = np.kron(np.eye(height), DIFFERENCES[width])
    return np.concatenate([along, np.kron(DIFFERENCES[height], np.eye(width))])


def by_quadratic_programme(D: np.ndarray, x: np.ndarray, weight: float) -> np.ndarray:
    """argmin ½‖u - x‖² + weight ‖Du‖₁ = x - Dᵀq, with q the solution of a box-constrained least-squares problem."""
    q = lsq_linear(D.T, x, bounds=(-weight, weight), tol=1e-15, method="bvls").x
    return x - D.T @ q


def test_values_by_definition() -> None:
    x = torch.tensor([[0.0, 3.0, 3.0], [4.0, 3.0, 1.0]], dtype=torch.float64)
    assert float(TotalVariation(1.0).value(x)) == pytest.approx(5.0 + 0.0 + 2.0 + 1.0 + 2.0)
    assert float(TotalVariation(2.0, isotropic=False).value(x)) == pytest.approx(2.0 * (7.0 + 0.0 + 2.0 + 1.0 + 2.0))
    assert TotalVariation(0.5, dims=1).value(x).tolist() == [1.5, 1.5]


@pytest.mark.parametrize("dims", [1, 2])
def test_the_adjoint_of_the_differences(dims: int) -> None:
    u, q = draw(3, 5, 7), draw(dims, 3, 5, 7, seed=1)
    left, right = float((differences(u, dims) * q).sum()), float((u * differences_adjoint(q)).sum())
    assert left == pytest.approx(right, abs=1e-12)
    if dims == 2:
        norm = np.linalg.norm(plane_matrix(9, 8), 2) ** 2
        assert 7.0 < norm < 8.0  # the constant of the dual's gradient


numbers = st.floats(-5, 5) | st.sampled_from([0.0, 1.0, 2.0])


@settings(deadline=None, max_examples=60)
@given(st.lists(numbers, min_size=2, max_size=32), st.floats(0.001, 10.0))
def test_signals_against_a_quadratic_programme(values: list[float], weight: float) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    expected = by_quadratic_programme(DIFFERENCES[len(values)], x.numpy(), weight)
    found = TotalVariation(weight, dims=1).prox(x, 1.0)
    np.testing.assert_allclose(found, expected, atol=1e-11)


def test_signals_of_a_batch_do_not_depend_on_each_other() -> None:
    x = draw(6, 50).cumsum(1)
    tv = TotalVariation(0.7, dims=1)
    together = tv.prox(x, 1.3)
    for row in range(6):
        assert torch.equal(together[row], tv.prox(x[row], 1.3))


def test_a_long_signal_satisfies_the_optimality_conditions() -> None:
    x, weight = draw(1, 5000).cumsum(1), 3.0
    u = TotalVariation(weight, dims=1).prox(x, 1.0)
    q = (x - u).cumsum(1).neg()[0]  # u_i = x_i - q_{i-1} + q_i
    rises = u[0].diff()
    assert float(q[-1].abs()) < 1e-9 and float(q.abs().max()) < weight + 1e-9
    np.testing.assert_allclose(q[:-1][rises != 0.0], weight * rises[rises != 0.0].sign(), atol=1e-8)


@pytest.mark.parametrize("dims", [1, 2])
def test_the_prox_commutes_with_shifts_signs_scales_and_reflections(dims: int) -> None:
    x, tv = draw(6, 7), TotalVariation(0.4, dims=dims, tolerance=1e-6)
    u = tv.prox(x, 0.8)
    same = {"rtol": 0.0, "atol": 1e-12 if dims == 1 else 4e-6 * float(x.norm() + 3.0 * 42**0.5)}
    torch.testing.assert_close(tv.prox(x + 3.0, 0.8), u + 3.0, **same)
    torch.testing.assert_close(tv.prox(-x, 0.8), -u, **same)
    torch.testing.assert_close(tv.prox(2.0 * x, 1.6), 2.0 * u, **same)
    torch.testing.assert_close(u.mean(-1).mean(), x.mean(-1).mean(), **same)
    if dims == 1:
        torch.testing.assert_close(tv.prox(x.flip(-1), 0.8).flip(-1), u, **same)
    else:
        other = TotalVariation(0.4, isotropic=False, tolerance=1e-6)
        torch.testing.assert_close(other.prox(x.mT, 0.8).mT, other.prox(x, 0.8), **same)


def test_pictures_against_a_quadratic_programme() -> None:
    x = draw(5, 4)
    for weight in (0.05, 0.4, 3.0):
        expected = by_quadratic_programme(plane_matrix(5, 4), x.flatten().numpy(), weight)
        found = TotalVariation(weight, isotropic=False, tolerance=1e-7).prox(x, 1.0)
        assert float((found.flatten() - torch.from_numpy(expected)).norm()) <= 1.01e-7 * float(x.norm())


def test_isotropic_pictures_against_a_smooth_minimum() -> None:
    """The dual min ½‖Dᵀq - x‖² over discs |q_ij| <= w, by SciPy."""
    x, weight = draw(3, 4), 0.3

    def dual(q: np.ndarray) -> tuple[float, np.ndarray]:
        pair = torch.from_numpy(q.reshape(2, 3, 4))
        u = x - differences_adjoint(pair)
        return 0.5 * float(u.square().sum()), -differences(u, 2).numpy().ravel()

    discs = {"type": "ineq", "fun": lambda q: weight**2 - (q.reshape(2, -1) ** 2).sum(0)}
    solved = minimize(
        dual, np.zeros(24), jac=True, method="SLSQP", constraints=[discs], options={"ftol": 1e-16, "maxiter": 500}
    )
    expected = x - differences_adjoint(torch.from_numpy(solved.x.reshape(2, 3, 4)))
    found = TotalVariation(weight, tolerance=1e-8).prox(x, 1.0)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("isotropic", [True, False])
def test_the_gap_bounds_the_error_of_every_dual_point(isotropic: bool) -> None:
    x = draw(2, 6, 5)
    exact = plane_prox(x, 0.3, isotropic, None, 1e-6, 100_000).u
    for steps in (1, 5, 20):
        found = plane_prox(x, 0.3, isotropic, None, 0.0, steps, dual=torch.zeros(2, 2, 6, 5, dtype=torch.float64))
        errors = (found.u - exact).flatten(1).norm(dim=1)
        assert bool((errors <= (2.0 * found.gap).sqrt() + 1e-5).all()) and bool((errors > 1e-4).any() or steps > 5)


def test_a_large_weight_leaves_the_mean_and_costs_one_evaluation() -> None:
    x = draw(3, 16, 11)
    found = plane_prox(x, 1e3, True, None, 1e-9, 1)
    torch.testing.assert_close(found.u, x.mean((1, 2), keepdim=True).expand_as(x), rtol=0.0, atol=1e-10)


SUMS = [
    L1(0.3) + SquaredL2(0.5),
    L1(0.2) + Bounds(-0.3, 0.8),
    SquaredL2(0.4) + NonNegative() + L1(0.1),
    TotalVariation(0.3, dims=1) + L1(0.2),
    TotalVariation(0.3, dims=1) + Bounds(-0.2, 0.5),
    TotalVariation(0.3, dims=1) + NonNegative() + SquaredL2(0.3),
    GroupL2(0.4, 2) + SquaredL2(0.6),
]


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(SUMS), st.lists(numbers, min_size=4, max_size=4), st.floats(0.05, 5.0), st.data())
def test_the_prox_of_a_sum_is_the_argmin(penalty: Penalty, values: list[float], scale: float, data: st.DataObject):
    """½‖u - x‖² + t R(u) is 1-strongly convex: u is its argmin exactly if it is below f(w) - ½‖w - u‖² for all w."""
    x = torch.tensor(values, dtype=torch.float64)
    u = penalty.prox(x, scale)
    other = penalty.prox(torch.tensor(data.draw(st.lists(numbers, min_size=4, max_size=4)), dtype=torch.float64), 0.1)

    def objective(point: Tensor) -> float:
        return float(0.5 * (point - x).square().sum() + scale * penalty.value(point))

    for fraction in (1.0, 0.1, 1e-3):
        w = u + fraction * (other - u)
        distance = 0.5 * float((w - u).square().sum())
        assert objective(w) >= objective(u) + distance - 1e-12 * (1 + abs(objective(u)) + abs(objective(w)))


@pytest.mark.parametrize("g", [L1(0.2), Bounds(-0.3, 0.4), SquaredL2(0.7)], ids=repr)
def test_isotropic_sums_are_solved_together_and_not_one_after_the_other(g: Penalty) -> None:
    """Moreau: x - prox_R(x) is a subgradient of R at prox_R(x), tried at many points."""
    x, tv = draw(5, 6), TotalVariation(0.3, tolerance=1e-8)
    penalty = tv + g
    u = penalty.prox(x, 1.0)
    slope, value = x - u, float(penalty.value(u))
    for seed in range(30):
        w = penalty.prox(u + 0.1 * draw(5, 6, seed=seed), 1e-3)
        assert float(penalty.value(w)) >= value + float((slope * (w - u)).sum()) - 1e-5
    composed = g.prox(tv.prox(x, 1.0), 1.0)
    smaller = 0.5 * float((u - x).square().sum()) + value
    assert 0.5 * float((composed - x).square().sum()) + float(penalty.value(composed)) >= smaller - 1e-7


def test_the_conjugate_of_a_scalar_against_brute_force() -> None:
    grid = torch.linspace(-40.0, 40.0, 160_001, dtype=torch.float64).round(decimals=4)
    bounded = Scalar(0.3, 0.0, -1.0, 2.0)
    for g in (Scalar(l1=0.5), Scalar(0.2, 0.7), bounded, Scalar(0.1, 0.0, 0.0), Scalar(0.0, 0.4, 0.5)):
        for r in (-3.0, -0.4, 0.0, 0.3, 2.5):
            inside, rest = g.split_slope(torch.tensor([r], dtype=torch.float64))
            least = float((inside * grid + g.value(grid)).min())
            assert float(g.least_value(inside)) == pytest.approx(least, abs=1e-7)
            assert float(inside + rest) == pytest.approx(r)
            if float(rest) != 0.0:  # then r itself has no minimum
                assert float((r * grid + g.value(grid)).min()) < -1.0


def test_sums_without_a_known_proximal_map_are_refused() -> None:
    for left, right in [
        (GroupL2(1.0), L1(0.1)),
        (TotalVariation(1.0), GroupL2(1.0)),
        (TotalVariation(1.0), TotalVariation(0.5)),
    ]:
        with pytest.raises(CompatibilityError, match=r"is not known"):
            _ = left + right
    with pytest.raises(SettingError, match="no point in common"):
        _ = NonNegative() + Bounds(-2.0, -1.0)
    with pytest.raises(SettingError, match="two or more"):
        Sum(L1(0.1))
    with pytest.raises(SettingError, match="must be a penalty"):
        Sum(L1(0.1), 3)  # type: ignore[arg-type]


def test_sums_are_taken_apart_and_added_up() -> None:
    total = L1(0.5) + SquaredL2(1.0) + TotalVariation(2.0)
    assert isinstance(total, Sum) and len(total.parts) == 3 and total.of_matrices and not total.constraint
    x = draw(2, 4, 5)
    expected = sum(float(part.value(x[0]).sum()) for part in total.parts)
    assert float(total.value(x)[0]) == pytest.approx(expected)
    assert (NonNegative() + Bounds(-1.0, 1.0)).constraint


def test_bad_settings_and_tensors_are_refused() -> None:
    for bad in (
        {"weight": -0.1},
        {"weight": 1, "dims": 3},
        {"weight": 1, "isotropic": 2},
        {"weight": 1, "tolerance": 0},
    ):
        with pytest.raises(SettingError, match=r"weight|dims|isotropic|tolerance"):
            TotalVariation(**bad)  # type: ignore[arg-type]
    with pytest.raises(TensorError, match="pictures"):
        TotalVariation(1.0).prox(torch.zeros(5), 1.0)
    with pytest.raises(TensorError, match="NaN"):
        TotalVariation(1.0, dims=1).prox(torch.tensor([0.0, math.nan]), 1.0)


def test_an_unreachable_tolerance_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(total_variation, "_MAX_STEPS", 20)
    with pytest.warns(RuntimeWarning, match="certified to"):
        TotalVariation(0.3, tolerance=1e-300).prox(draw(2, 2), 1.0)
