"""prox_{cΨ} of every scalar activation against the exact minimiser: 4 units in the last place, in both precisions."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from lifted_bregman.activations import _newton, piecewise
from tests import cases
from tests.activations import oracles
from tests.sampling import over, pairwise

SCALES = [1e-6, 1e-3, 0.1, 0.5, 0.999, 1.0, 1.001, 2.0, 30.0, 1e3, 1e6]


def points(activation, scale: float, generator: random.Random) -> list[float]:
    """|z| from 1e-8 to 1e6, both signs, the tails, and the kinks and edges with their neighbours."""
    spread = [sign * 10.0 ** generator.uniform(-8, 6) for sign in (1.0, -1.0) for _ in range(5)]
    tails = [
        scale * generator.uniform(-740.0, 5.0),
        scale * generator.uniform(-100.0, 5.0),
        generator.uniform(-3.0, 3.0),
    ]
    kinks = [0.0, 1.0, -1.0, math.pi / 2, 1e6, -1e6]
    for setting in ("threshold", "low", "high", "alpha"):
        value = getattr(activation, setting, 0.0)
        kinks += [value * scale, -value * scale, value]
    kinks += [math.nextafter(kink, math.inf) for kink in kinks] + [kink * (1.0 + 1e-6) for kink in kinks]
    return [z for z in spread + tails + kinks if z == 0.0 or 1e-8 <= abs(z) <= 1e6]


@over(cases.name, activation=cases.SCALAR_ACTIVATIONS, dtype=[torch.float32, torch.float64], half=[0, 1])
def test_within_four_units_in_the_last_place(activation, dtype, half):
    """At one half of the scales."""
    generator = random.Random(7)
    function = oracles.sigma(activation)
    for scale in [*SCALES, 10.0 ** generator.uniform(-6, 6)][half::2]:
        z = torch.tensor(points(activation, scale, generator), dtype=dtype)
        got = activation.prox(z, scale)
        assert got.dtype == dtype
        for zi, ui in zip(z.tolist(), got.tolist(), strict=True):
            error = oracles.ulps(ui, oracles.prox(function, zi, scale), dtype)
            assert error <= 4.0, f"prox({zi!r}, {scale!r}) = {ui!r} is {error:.1f} ulp off"


@pytest.mark.parametrize("activation", cases.SCALAR_ACTIVATIONS, ids=cases.name)
def test_subnormal_tails(activation):
    """The exponential tails keep their digits down to the smallest numbers."""
    for dtype, lowest in ((torch.float32, -103.0), (torch.float64, -744.0)):
        z = torch.linspace(lowest, lowest * 0.8, 9, dtype=dtype)
        for zi, ui in zip(z.tolist(), activation(z).tolist(), strict=True):
            assert oracles.ulps(ui, oracles.sigma(activation)(oracles.mp.mpf(zi)), dtype) <= 4.0


@pytest.mark.parametrize("activation", cases.SCALAR_ACTIVATIONS, ids=cases.name)
def test_newton_iterations_are_bounded(activation, monkeypatch):
    """Fewer iterations than the limit over the whole promised range, so that the limit never cuts a solve short."""
    used = []

    def counting(step, root, precision, floor=0.0, limit=_newton.ITERATION_LIMIT):
        calls = []

        def counted(value):
            calls.append(1)
            return step(value)

        root = _newton.newton(counted, root, precision, floor, limit)
        used.append(len(calls))
        return root

    for module in ("smooth", "exponential"):
        monkeypatch.setattr(f"lifted_bregman.activations.{module}.newton", counting)
    magnitudes = 10.0 ** torch.linspace(-8, 6, 400, dtype=torch.float64)
    for scale in [10.0 ** (k / 4) for k in range(-24, 25)]:
        z = torch.cat([magnitudes, -magnitudes, scale * torch.linspace(-745, 745, 400, dtype=torch.float64)])
        activation.prox(z, scale)
    assert max(used, default=0) < _newton.ITERATION_LIMIT


@pytest.mark.parametrize(
    ("activation", "shape"), pairwise(cases.ACTIVATIONS, [(3,), (2, 3), (2, 2, 3), (0, 3)]), ids=cases.name
)
def test_any_batch_shape(activation, shape):
    """A batch is its rows: shape, dtype and device are kept, and each row is treated alone."""
    z = torch.linspace(-2.0, 2.0, math.prod(shape), dtype=torch.float64).reshape(shape)
    for scale in (1.0, 0.4, 7.0):
        got = activation.prox(z, scale)
        assert got.shape == z.shape and got.dtype == z.dtype and not got.requires_grad
        rows = [activation.prox(row.unsqueeze(0), scale)[0] for row in z.reshape(-1, 3)]
        if rows:
            torch.testing.assert_close(got.reshape(-1, 3), torch.stack(rows), rtol=1e-14, atol=1e-15)
    assert activation.potential(activation(z)).shape == shape[:-1]
    assert activation.conjugate(z).shape == shape[:-1]
    assert activation.contains(activation(z)).shape == shape[:-1]


@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_no_autograd_and_input_untouched(activation):
    z = torch.tensor([[0.3, -1.2, 2.0]], requires_grad=True)
    before = z.detach().clone()
    for value in (activation(z), activation.prox(z, 0.5), activation.conjugate(z), activation.potential(activation(z))):
        assert not value.requires_grad
    assert torch.equal(z.detach(), before)
    assert activation(z).data_ptr() != z.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_thresholds_are_split_exactly(dtype):
    """Two numbers of the dtype, rounded down, and the rest of the product in float64; the same when asked again."""
    generator, number = random.Random(3), {torch.float32: np.float32, torch.float64: np.float64}[dtype]
    products = [(10.0 ** generator.uniform(-20, 15), 10.0 ** generator.uniform(-20, 15)) for _ in range(200)]
    for threshold, scale in [(0.09, 1.0), (0.25, 0.5), (1.5e-45, 1.0), *products]:
        exact = Fraction(threshold) * Fraction(scale)
        for _ in range(2):
            coarse, middle, fine = piecewise._split(threshold, scale, dtype)
            for part, whole in ((coarse, exact), (middle, exact - Fraction(coarse))):
                assert float(number(part)) == part and Fraction(part) <= whole
                assert Fraction(float(np.nextafter(number(part), number(np.inf)))) > whole
            rest = exact - Fraction(coarse) - Fraction(middle)
            assert abs(rest - Fraction(fine)) <= rest / 2**53 + Fraction(math.ulp(0.0))
