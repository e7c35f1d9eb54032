"""Potentials and conjugates against closed forms in 50 digits, and against numerical suprema."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar

from lifted_bregman import activations as act
from tests import cases
from tests.activations import oracles
from tests.sampling import pairwise

ZS = [
    0.0,
    1e-8,
    -1e-8,
    1e-4,
    -1e-3,
    0.05,
    0.3,
    -0.5,
    0.7,
    1.0,
    -1.0,
    1.7,
    -2.5,
    5.0,
    -8.0,
    19.0,
    -19.0,
    30.0,
    41.0,
    -60.0,
    1e3,
]
XS = [
    0.0,
    1e-9,
    -1e-9,
    1e-4,
    -1e-4,
    0.03,
    0.25,
    -0.25,
    0.5,
    -0.39,
    0.69,
    0.7,
    -0.9,
    0.99,
    0.999999,
    1.0,
    -1.0,
    1.5,
    3.0,
    20.0,
]
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


@pytest.mark.parametrize("activation", cases.SCALAR_ACTIVATIONS, ids=cases.name)
def test_the_closed_forms_of_the_oracle_belong_together(activation):
    """φ*' = σ, and φ(σ(z)) + φ*(z) = z σ(z), for the closed forms of the oracle."""
    sigma, phi, phi_star = oracles.sigma(activation), oracles.phi(activation), oracles.phi_star(activation)
    for z in (-1.37, -0.41, 0.23, 0.93, 2.2):
        z = mp.mpf(z)
        assert abs(mp.diff(phi_star, z, h=mp.mpf(10) ** -12) - sigma(z)) < 1e-10
        assert abs(phi(sigma(z)) + phi_star(z) - z * sigma(z)) < 1e-30


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("activation", cases.SCALAR_ACTIVATIONS, ids=cases.name)
def test_conjugate_is_accurate(activation, dtype):
    exact = oracles.phi_star(activation)
    z = torch.tensor(ZS, dtype=dtype).unsqueeze(-1)
    for zi, got in zip(z[:, 0].tolist(), activation.conjugate(z).tolist(), strict=True):
        want = exact(mp.mpf(zi))
        assert abs(got - want) <= 16 * EPS[dtype] * abs(want) + 1e-300, (
            f"φ*({zi!r}) = {got!r}, exact {mp.nstr(want, 20)}"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("activation", cases.SCALAR_ACTIVATIONS, ids=cases.name)
def test_potential_is_accurate(activation, dtype):
    """Ψ = φ - ½x² to rounding in φ, everywhere in the domain; infinity outside; contains agrees."""
    exact = oracles.phi(activation)
    x = torch.tensor(XS, dtype=dtype).unsqueeze(-1)
    inside = activation.contains(x)
    assert bool(inside.any())
    for xi, belongs, got in zip(x[:, 0].tolist(), inside.tolist(), activation.potential(x).tolist(), strict=True):
        if not belongs:
            assert got == math.inf
            continue
        want = exact(mp.mpf(xi)) - mp.mpf(xi) ** 2 / 2
        bound = 16 * EPS[dtype] * (abs(want) + mp.mpf(xi) ** 2)
        assert abs(got - want) <= bound + 1e-300, f"Ψ({xi!r}) = {got!r}, exact {mp.nstr(want, 20)}"


DOMAINS = {
    act.ReLU(): (0.0, math.inf, True),
    act.Box(): (-1.0, 1.0, True),
    act.Box(0.0, 6.0): (0.0, 6.0, True),
    act.NonNegativeSoftThreshold(0.3): (0.0, math.inf, True),
    act.Tanh(): (-1.0, 1.0, True),
    act.Sigmoid(): (0.0, 1.0, True),
    act.Softsign(): (-1.0, 1.0, False),
    act.ISRU(): (-1.0, 1.0, True),
    act.Asinh(): (-math.inf, math.inf, True),
    act.ELU(1.0): (-1.0, math.inf, True),
    act.Softplus(): (0.0, math.inf, True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("activation", DOMAINS, ids=cases.name)
def test_domains_are_closed_where_the_potential_is_finite_at_their_ends(activation, dtype):
    """Closed where φ is finite at the end, open where it is not; nothing is NaN at or beyond an end."""
    for end, outward in zip(DOMAINS[activation][:2], (-math.inf, math.inf), strict=True):
        if math.isinf(end):
            continue
        at = torch.tensor([[end]], dtype=dtype)
        beyond = torch.nextafter(at, torch.full_like(at, outward))
        closed = DOMAINS[activation][2]
        assert bool(activation.contains(at)) is closed
        assert math.isfinite(float(activation.potential(at))) is closed
        assert not bool(activation.contains(beyond)) and float(activation.potential(beyond)) == math.inf
        for z in (-1e6, -30.0, 0.0, 0.5, 30.0, 1e6):
            value = float(activation.bregman(at, torch.full_like(at, z)))
            assert not math.isnan(value) and value >= 0.0 and math.isfinite(value) is closed
            assert float(activation.bregman(beyond, torch.full_like(at, z))) == math.inf


@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_saturation_stays_in_the_domain(activation):
    """σ(z) lies in the domain in the working precision, however large z, and B(σ(z), z) is 0 there, not NaN."""
    for dtype in (torch.float32, torch.float64):
        for size in (20.0, 1e4, 2e7, 1e10):
            for row in ([size, -size, 0.0], [-size, -size, -size], [size, size, size]):
                z = torch.tensor([row], dtype=dtype)
                for scale in (1.0, 1e-3, 1e3):
                    assert bool(activation.contains(activation.prox(z, scale))), (dtype, row, scale)
                assert float(activation.bregman(activation(z), z)) == 0.0
                assert bool(activation.conjugate(z).isfinite())


@pytest.mark.parametrize("activation", cases.SCALAR_ACTIVATIONS + cases.CUSTOM_ACTIVATIONS, ids=cases.name)
@pytest.mark.parametrize("z", [-2.3, -0.4, 0.0, 0.31, 1.9])
def test_conjugate_is_the_numerical_supremum(activation, z):
    """φ*(z) = sup_x x z - ½x² - Ψ(x), by SciPy on the library's own potential."""

    def negative(x: float) -> float:
        value = float(activation.potential(torch.tensor([x], dtype=torch.float64)))
        return min(0.5 * x * x + value - x * z, 1e9)

    intervals = ((-4.0, 0.0), (0.0, 4.0), (-1.0, 1.0), (0.0, 1.0))
    best = min(
        min(
            minimize_scalar(negative, bounds=ends, method="bounded", options={"xatol": 1e-10}).fun, *map(negative, ends)
        )
        for ends in intervals
    )
    assert float(activation.conjugate(torch.tensor([z], dtype=torch.float64))) == pytest.approx(-best, abs=1e-8)


@pytest.mark.parametrize(
    ("activation", "z"),
    pairwise(cases.JOINT_ACTIVATIONS, [(0.3, -0.2, 0.9), (2.0, 1.9, -3.0), (0.1, 0.1, 0.1), (-4.0, 3.0, 3.5)]),
    ids=cases.name,
)
def test_joint_conjugate_is_the_numerical_supremum(activation, z):
    """The same for joint activations, by SLSQP over a parametrisation of the domain."""
    target = torch.tensor(z, dtype=torch.float64)

    def point(w) -> torch.Tensor:
        free = torch.tensor(w, dtype=torch.float64)
        if isinstance(activation, act.Softmax | act.Sparsemax):
            return free.square() / free.square().sum()
        if isinstance(activation, act.BallProjection):
            return free * activation.radius / torch.sqrt(1.0 + free.square().sum())
        return free

    def negative(w) -> float:
        x = point(w)
        if isinstance(activation, act.GroupSoftThreshold):
            potential = activation.threshold * math.sqrt(float(x.square().sum()))
        else:
            potential = (
                float(torch.special.xlogy(x, x).sum() - 0.5 * x.square().sum())
                if isinstance(activation, act.Softmax)
                else 0.0
            )
        return 0.5 * float(x.square().sum()) + potential - float((x * target).sum())

    starts = ([0.5, 0.4, 0.6], [1.0, 0.1, 0.1], [0.1, 0.1, 1.0], [-0.5, 0.8, 0.9], [0.01, 0.01, 0.01])
    best = min(
        minimize(negative, start, method="Nelder-Mead", options={"xatol": 1e-12, "fatol": 1e-15, "maxiter": 8000}).fun
        for start in starts
    )
    assert float(activation.conjugate(target)) == pytest.approx(-best, abs=1e-9)
