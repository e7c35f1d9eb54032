"""FromScalar's numbers against closed forms in mpmath, and the roots that give them."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lifted_bregman.activations import FromScalar
from lifted_bregman.activations.roots import ROOT_LIMIT, increasing_root
from tests.activations import oracles
from tests.activations.scalar_functions import (
    CONJUGATE,
    PHI,
    SIGMA,
    constant,
    made,
    naive_tanh,
    name,
    softplus,
    softshrink,
    steps,
    wave,
)
from tests.sampling import over

# Accuracy


def grid(*kinks: float) -> Tensor:
    magnitudes = torch.cat([torch.logspace(-8, 6, 29, dtype=torch.float64), torch.tensor([1e9, 1e20])])
    near = [kink * (1.0 + shift) for kink in (0.3, 0.7, 1.0, 3.0) for shift in (-1e-3, -1e-6, 0.0, 1e-6, 1e-3)]
    points = torch.cat([magnitudes, torch.tensor(near, dtype=torch.float64)])
    return torch.cat([-points, points])


@pytest.mark.parametrize("function", CONJUGATE, ids=name)
def test_conjugate(function: Callable[[Tensor], Tensor]) -> None:
    z = grid()
    z = z[z.abs() <= 1e4] if function is wave else z  # further out it has more waves than the table has cells
    found = made(function).conjugate(z[:, None])
    for point, value in zip(z.tolist(), found.tolist(), strict=True):
        exact = CONJUGATE[function](mp.mpf(point))
        near_kink = function is softshrink and 0 < abs(point) - 0.3 < 1e-4  # σ itself has lost digits there
        assert abs(value - exact) <= (1e-10 if near_kink else 2e-15) * abs(exact), point
    single = made(function).conjugate(z.float()[:, None])
    again = made(function).conjugate(z.float().double()[:, None])
    assert torch.equal(single, again.float())


@pytest.mark.parametrize("function", PHI, ids=name)
def test_potential(function: Callable[[Tensor], Tensor]) -> None:
    activation = made(function)
    magnitudes = torch.logspace(-6, 1, 30, dtype=torch.float64)
    x = activation(torch.cat([-magnitudes, magnitudes])).unique()
    x = x[(x != 0.0) & (x != 1.0)]
    for point, value in zip(x.tolist(), activation.potential(x[:, None]).tolist(), strict=True):
        phi = PHI[function](mp.mpf(point))
        assert abs(value - (phi - mp.mpf(point) ** 2 / 2)) <= 5e-15 * (abs(phi) + mp.mpf(point) ** 2), point


def test_potential_of_relu_does_not_cancel() -> None:
    x = torch.tensor([0.0, 1e-9, 0.1, 1.0, 1e6, 1e12], dtype=torch.float64)
    assert (FromScalar(torch.relu).potential(x[:, None]) == 0.0).all()


@over(name, 2, function=SIGMA, scale=[1e-6, 1e-3, 0.5, 0.999, 2.0, 1e3, 1e6])
def test_prox_against_the_exact_minimiser(function: Callable[[Tensor], Tensor], scale: float) -> None:
    activation = made(function)
    magnitudes = torch.logspace(-6, 6, 7, dtype=torch.float64)
    points = torch.cat([-magnitudes, magnitudes, torch.tensor([0.0, 0.3, -0.5, scale * 0.4, -5 * scale])])
    for dtype in (torch.float32, torch.float64):
        v = points.to(dtype)
        for point, value in zip(v.tolist(), activation.prox(v, scale).tolist(), strict=True):
            exact = oracles.prox(SIGMA[function], point, scale)
            if dtype == torch.float32:
                assert oracles.ulps(value, exact, dtype) <= 1.0, (point, value)
            else:  # one rounding of σ, magnified by the scale where σ has slope 1
                unit = torch.finfo(dtype).eps * max(1.0, scale)
                assert abs(value - exact) <= 2 * unit * (abs(point) + abs(exact)), (point, value)


def test_prox_of_straight_pieces_is_exact() -> None:
    v = torch.tensor([-2.0, -0.1, 0.0, 1e-30, 0.1, 0.3, 7.7, 1e12], dtype=torch.float64)
    for scale in (1e-6, 0.3, 5.0, 1e6):
        assert torch.equal(FromScalar(torch.relu).prox(v, scale), v.relu())


# Roots


def test_evaluations_are_bounded_and_few_for_smooth_functions() -> None:
    calls = 0

    def counting(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def counted(z: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return function(z)

        return counted

    magnitudes = torch.logspace(-300, 300, 301, dtype=torch.float64)
    everything = torch.cat([-magnitudes, magnitudes, torch.linspace(-9, 9, 301, dtype=torch.float64)])
    usual = torch.linspace(-3, 3, 600, dtype=torch.float64)
    for function in (*SIGMA, wave, constant, steps, naive_tanh):
        activation = FromScalar(counting(function))
        for scale in (1e-9, 1e-6, 1e-3, 0.5, 2.0, 1e3, 1e6, 1e9):
            calls = 0
            assert activation.prox(everything, scale).isfinite().all()
            assert calls <= ROOT_LIMIT + 2
        if function in (torch.tanh, torch.sigmoid, F.logsigmoid, softplus):
            calls = 0
            activation.prox(usual, 0.5)
            assert calls <= 25  # about 8 for most numbers; the slowest of 600 decides


FUNCTIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda s, root: s - root,
    lambda s, root: (s - root).sign(),
    lambda s, root: torch.where(s < root, -math.inf, 1.0).double(),
    lambda s, root: (s / root).log(),
    lambda s, root: (s - root).sign() * (s - root).abs() ** 0.1,
    lambda s, root: (s - root) ** 9,
    lambda s, root: torch.where(s < root, 1e-12 * (s - root), 1e12 * (s - root)),
    lambda s, root: (s - root).exp() - 1.0,
]
positive = st.floats(1e-300, 1e300)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(FUNCTIONS), st.lists(st.tuples(positive, positive, positive), min_size=1, max_size=5), st.booleans()
)
def test_increasing_root_finds_neighbours(
    function: Callable[[Tensor, Tensor], Tensor], triples: list[tuple[float, float, float]], mirrored: bool
) -> None:
    low, root, high = torch.tensor([sorted(triple) for triple in triples], dtype=torch.float64).T.contiguous()
    sign = -1.0 if mirrored else 1.0
    if mirrored:
        low, high = -high, -low
    count = 0

    def value(s: Tensor, rows: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return sign * function(sign * s, root[rows])

    left, right, below, above = increasing_root(value, low, high)
    assert count <= ROOT_LIMIT
    assert ((low <= left) & (left <= right) & (right <= high)).all()
    next_after = torch.nextafter(left, torch.full_like(left, math.inf))
    assert ((left == right) | (right == next_after)).all()
    rows = torch.arange(len(root))
    torch.testing.assert_close(below, value(left, rows))
    torch.testing.assert_close(above, value(right, rows))
    assert ((below <= 0.0) | (left == low)).all()
    assert ((above >= 0.0) | (right == high)).all()


def test_increasing_root_at_zero_outside_and_empty() -> None:
    low, high = torch.tensor([0.0, 1.0, 1.0, -3.0]), torch.tensor([5.0, 2.0, 2.0, 0.0])
    root = torch.tensor([0.0, 0.5, 7.0, 0.0], dtype=torch.float64)
    left, right, _, _ = increasing_root(lambda s, rows: s - root[rows], low.double(), high.double())
    assert left.tolist() == right.tolist() == [0.0, 1.0, 2.0, 0.0]
    empty = torch.zeros(0, dtype=torch.float64)
    assert increasing_root(lambda s, rows: s, empty, empty)[0].shape == (0,)
