"""Penalties: values by definition, proximal maps against a brute-force argmin, and every digit at the kink."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

from lifted_bregman.errors import CompatibilityError, SettingError, TensorError
from lifted_bregman.penalties import L1, Bounds, GroupL2, NonNegative, Penalty, SquaredL2
from lifted_bregman.penalties.vectors import split_product
from tests import cases

X = torch.tensor([[0.5, -2.0, 0.0, 1.5], [0.25, 0.125, 3.0, 4.0]], dtype=torch.float64)
PENALTIES = [*cases.PENALTIES, GroupL2(0.4, group_size=2), Bounds(-math.inf, 0.5), Bounds(0.25, 0.25), L1(0.0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_by_definition(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    expected = {
        L1(0.5): [2.0, 3.6875],
        SquaredL2(2.0): [6.5, 25.078125],
        NonNegative(): [math.inf, 0.0],
        Bounds(-2.0, 1.5): [0.0, math.inf],
        GroupL2(2.0): [2 * math.sqrt(6.5), 2 * math.sqrt(25.078125)],
        GroupL2(1.0, group_size=2): [math.sqrt(4.25) + 1.5, math.sqrt(0.078125) + 5.0],
        GroupL2(1.0, group_size=1): [4.0, 7.375],
    }
    for penalty, values in expected.items():
        found = penalty.value(x)
        assert found.dtype == dtype
        torch.testing.assert_close(found, torch.tensor(values, dtype=dtype))


@pytest.mark.parametrize("penalty", [NonNegative(), Bounds(-1.0, 1.0)], ids=cases.name)
def test_nan_violates_a_constraint(penalty: Penalty) -> None:
    assert float(penalty.value(torch.tensor([0.5, math.nan]))) == math.inf


numbers = st.floats(-5, 5) | st.sampled_from([0.0, 0.3, -0.3, 0.25, 0.6, -0.2])


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(PENALTIES), st.lists(numbers, min_size=4, max_size=4), st.floats(0.01, 10.0), st.data())
def test_prox_is_the_argmin(penalty: Penalty, values: list[float], scale: float, data: st.DataObject) -> None:
    """½‖u - x‖² + t R(u) is 1-strongly convex: u is its argmin exactly if it is below f(w) - ½‖w - u‖² for all w."""
    x = torch.tensor(values, dtype=torch.float64)
    u = penalty.prox(x, scale)
    other = penalty.prox(torch.tensor(data.draw(st.lists(numbers, min_size=4, max_size=4)), dtype=torch.float64), 0.1)

    def objective(point: Tensor) -> float:
        return float(0.5 * (point - x).square().sum() + scale * penalty.value(point))

    assert objective(u) < math.inf
    for fraction in (1.0, 0.1, 1e-3):
        w = u + fraction * (other - u)
        distance = 0.5 * float((w - u).square().sum())
        assert objective(w) >= objective(u) + distance - 1e-13 * (1 + abs(objective(u)) + abs(objective(w)))


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("x", [-3.0, -0.3, -0.1, 0.0, 0.29, 0.3, 0.31, 0.6, 2.0])
@pytest.mark.parametrize("penalty", PENALTIES[:5], ids=cases.name)
def test_prox_of_one_number_against_scipy(penalty: Penalty, x: float, scale: float) -> None:
    low, high = max(getattr(penalty, "low", -5.0), -5.0), min(getattr(penalty, "high", 5.0), 5.0)

    def objective(u: float) -> float:
        return 0.5 * (u - x) ** 2 + scale * float(penalty.value(torch.tensor([u], dtype=torch.float64)))

    best = minimize_scalar(objective, bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x
    assert float(penalty.prox(torch.tensor([x], dtype=torch.float64), scale)) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("weight", "scale"), [(0.09, 1.0), (0.3, 0.7), (1.1, 1.7), (1e-3, 333.3)])
def test_no_digit_is_lost_at_the_kink(weight: float, scale: float, dtype: torch.dtype) -> None:
    threshold = Fraction(weight) * Fraction(scale)
    x = torch.tensor(float(threshold), dtype=dtype)
    for _ in range(4):
        x = torch.nextafter(x, torch.tensor(-math.inf, dtype=dtype))
    for _ in range(9):
        exact = max(Fraction(float(x)) - threshold, Fraction(0))
        for point, sign in ((x, 1), (-x, -1)):
            found = Fraction(float(L1(weight).prox(point.reshape(1), scale)))
            assert abs(found - sign * exact) <= torch.finfo(dtype).eps * exact
        x = torch.nextafter(x, torch.tensor(math.inf, dtype=dtype))


def test_group_threshold_in_float32_is_that_of_float64() -> None:
    direction = torch.tensor([3.0, -4.0]) / 5.0
    for length in (0.09, 0.0900001, 0.09001, 0.1, 7.0):
        x = direction * length
        exact = GroupL2(0.3).prox(x.double(), 0.3)
        torch.testing.assert_close(GroupL2(0.3).prox(x, 0.3).double(), exact, rtol=1.2e-7, atol=0.0)


def test_group_of_zeros_stays_zero_and_groups_vanish_alone() -> None:
    x = torch.tensor([0.0, 0.0, 0.3, -0.4, 3.0, 4.0], dtype=torch.float64)
    found = GroupL2(1.0, group_size=2).prox(x, 0.5)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 0.0, 0.0, 2.7, 3.6], dtype=torch.float64))
    assert (found[:4] == 0.0).all()


@pytest.mark.parametrize("penalty", PENALTIES, ids=cases.name)
def test_shapes_dtypes_and_inputs_are_kept(penalty: Penalty) -> None:
    for dtype in (torch.float32, torch.float64):
        for shape in [(4,), (3, 4), (2, 3, 4), (0, 4), (2, 0)]:
            x = torch.linspace(-1, 1, max(math.prod(shape), 1), dtype=dtype)[: math.prod(shape)].reshape(shape)
            before = x.clone()
            assert penalty.prox(x, 0.3).shape == shape
            assert penalty.prox(x, 0.3).dtype == penalty.value(x).dtype == dtype
            assert penalty.value(x).shape == shape[:-1]
            assert torch.equal(x, before)
    strided = torch.arange(24.0).reshape(4, 6).T - 12.0
    assert torch.equal(penalty.prox(strided, 0.3), penalty.prox(strided.contiguous(), 0.3))


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan, "much", None])
@pytest.mark.parametrize("kind", [L1, SquaredL2, GroupL2])
def test_bad_weights_are_refused(kind: type[L1], weight: float) -> None:
    with pytest.raises(SettingError, match="weight"):
        kind(weight)


@pytest.mark.parametrize("ends", [(1.0, 0.0), (math.nan, 1.0), (0.0, math.nan), (math.inf, math.inf)])
def test_bad_boxes_are_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(SettingError, match="low <= high"):
        Bounds(*ends)


@pytest.mark.parametrize("size", [0, -1, 2.0, "2"])
def test_bad_group_sizes_are_refused(size: int) -> None:
    with pytest.raises(SettingError, match="group_size"):
        GroupL2(1.0, group_size=size)


def test_groups_must_divide_the_features() -> None:
    for method in (GroupL2(1.0, group_size=3).value, GroupL2(1.0, group_size=3).prox):
        with pytest.raises(CompatibilityError, match=r"groups of 3 .* 4 features.*\[1, 2, 4\]"):
            method(X)


def test_bad_tensors_and_scales_are_refused() -> None:
    for bad in (torch.tensor(1.0), torch.tensor([1]), [1.0]):
        with pytest.raises(TensorError, match="L1"):
            L1(1.0).value(bad)  # type: ignore[arg-type]
        with pytest.raises(TensorError, match="L1"):
            L1(1.0).prox(bad)  # type: ignore[arg-type]
    for scale in (0.0, -1.0, math.nan):
        with pytest.raises(SettingError, match="scale"):
            L1(1.0).prox(X, scale)


def test_settings_make_penalties_equal() -> None:
    assert L1(0.1) == L1(0.1) != L1(0.2)
    assert hash(GroupL2(0.1, 2)) == hash(GroupL2(0.1, 2))
    assert NonNegative() == NonNegative()


def test_products_are_split_without_a_remainder() -> None:
    for dtype in (torch.float32, torch.float64):
        coarse, rest = split_product(0.3, 0.7, dtype)
        exact = Fraction(0.3) * Fraction(0.7)
        assert abs(Fraction(coarse) + Fraction(rest) - exact) <= exact * Fraction(1, 2**70)
        assert float(torch.tensor(coarse, dtype=dtype)) == coarse
    assert split_product(1e200, 1e200, torch.float64) == (math.inf, 0.0)
    assert split_product(1e30, 1e30, torch.float32) == (math.inf, 0.0)
