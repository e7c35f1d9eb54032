"""The signals of the default solver as functions of tensors: the limit of the nudge, what is left after a change."""

from __future__ import annotations

import math

import pytest
import torch

from lifted_bregman import activations as act
from lifted_bregman.solvers.gram.signal import (
    joined,
    lifted_signal,
    limit_nudge,
    linear_signal,
    output_signal,
    penalised_signal,
    sample_norms,
)
from tests import cases

F64 = torch.float64
TIGHT = {"rtol": 1e-11, "atol": 1e-12}


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(5, 3), (5, 2, 3), (5,)])
def test_the_nudge_of_a_sample_is_limited_by_its_own_norms(shape):
    """ν_i ‖g_i‖ is 0.3 ‖z_i‖, or ν_i is ν; what the other samples are changes nothing."""
    z, g = drawn(*shape), drawn(*shape, seed=1)
    g[0] *= 100.0
    nudges = limit_nudge(sample_norms(z), g, 0.4)
    assert nudges.shape == (5, *[1] * (len(shape) - 1))
    for i in range(5):
        norms = float(z[i].norm()), float(g[i].norm())
        assert float(nudges[i]) == pytest.approx(min(0.4, 0.3 * norms[0] / norms[1]), rel=1e-14)
        assert torch.equal(limit_nudge(sample_norms(z[i : i + 1]), g[i : i + 1], 0.4)[0], nudges[i])
    assert float(nudges[0].max()) < 0.4 == float(nudges[1:].max())


def test_a_sample_of_zeros_has_the_size_of_small_numbers():
    """So that it gets the signal σ'(0) g = g/4 of the logistic function, up to √eps."""
    z, g = torch.zeros(2, 6, dtype=F64), drawn(2, 6)
    g[1] = 0.0
    nudges = limit_nudge(sample_norms(z), g, 0.4)
    assert float(nudges[0]) == pytest.approx(0.3 * math.sqrt(6 * torch.finfo(F64).eps) / float(g[0].norm()))
    assert float(nudges[1]) == 0.4
    E = lifted_signal(act.Sigmoid(), torch.sigmoid, -1, z, g, nudges).E
    torch.testing.assert_close(E, g / 4.0, rtol=1e-6, atol=0)


@pytest.mark.parametrize("sigma", [a for a in cases.ACTIVATIONS if not isinstance(a, act.FromScalar)], ids=cases.name)
def test_what_is_left_of_a_lifted_signal(sigma):
    """E = (σ(z) - σ(z - νg))/ν, and E(H) = (σ(z - νH) - σ(z - νg))/ν, by the plain differences in float64."""
    z, g, H = drawn(4, 5), drawn(4, 5, seed=1), drawn(4, 5, seed=2)
    nu = torch.tensor([[0.5], [0.2], [0.1], [1.3]], dtype=F64)
    signal = lifted_signal(sigma, sigma, -1, z, g, nu)
    torch.testing.assert_close(signal.E, (sigma(z) - sigma(z - nu * g)) / nu, **TIGHT)
    torch.testing.assert_close(signal.left(H), (sigma(z - nu * H) - sigma(z - nu * g)) / nu, **TIGHT)
    torch.testing.assert_close(signal.left(g), torch.zeros_like(g), rtol=0, atol=1e-12)


def test_what_is_left_of_the_other_signals():
    z, g, H, y = (drawn(4, 5, seed=seed) for seed in range(4))

    def prox(v):
        return torch.sign(v) * (v.abs() - 0.05).clamp(min=0.0)

    output = output_signal(torch.tanh(z), z, y, 1.7, torch.tanh)
    torch.testing.assert_close(output.E, 1.7 * (torch.tanh(z) - y), **TIGHT)
    torch.testing.assert_close(output.left(H), 1.7 * (torch.tanh(z - H / 1.7) - y), **TIGHT)
    penalised = penalised_signal(z, z, g, 0.2, lambda v: v.clone(), prox)
    torch.testing.assert_close(penalised.E, (z - prox(z - 0.2 * g)) / 0.2, **TIGHT)
    torch.testing.assert_close(penalised.left(H), (z - 0.2 * H - prox(z - 0.2 * g)) / 0.2, **TIGHT)
    linear = linear_signal(g)
    assert torch.equal(linear.E, g) and torch.equal(linear.left(H), g - H)


def test_parts_of_a_batch_are_joined_in_order():
    z, g, H = (drawn(5, 3, seed=seed) for seed in range(3))
    nu = torch.linspace(0.1, 0.5, 5, dtype=F64)[:, None]
    whole = lifted_signal(act.Tanh(), torch.tanh, -1, z, g, nu)
    parts = [lifted_signal(act.Tanh(), torch.tanh, -1, z[p], g[p], nu[p]) for p in (slice(0, 2), slice(2, 5))]
    assert torch.equal(joined(parts).E, whole.E) and torch.equal(joined(parts).left(H), whole.left(H))
    assert joined(parts[:1]) is parts[0]
