"""The signals of the default solver as functions of tensors: the limit of the nudge, and the differences."""

from __future__ import annotations

import math

import pytest
import torch

from lifted_bregman import activations as act
from lifted_bregman.solvers.gram.signal import lifted_signal, limit_nudge, output_signal, penalised_signal, sample_norms
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
    E = lifted_signal(act.Sigmoid(), torch.sigmoid, -1, z, g, nudges)
    torch.testing.assert_close(E, g / 4.0, rtol=1e-6, atol=0)


@pytest.mark.parametrize("sigma", [a for a in cases.ACTIVATIONS if not isinstance(a, act.FromScalar)], ids=cases.name)
def test_a_lifted_signal_is_a_difference_of_proximal_maps(sigma):
    """E = (σ(z) - σ(z - νg))/ν, by the plain difference in float64."""
    z, g = drawn(4, 5), drawn(4, 5, seed=1)
    nu = torch.tensor([[0.5], [0.2], [0.1], [1.3]], dtype=F64)
    E = lifted_signal(sigma, sigma, -1, z, g, nu)
    torch.testing.assert_close(E, (sigma(z) - sigma(z - nu * g)) / nu, **TIGHT)


def test_the_signals_of_the_output_and_of_a_penalty():
    z, g, y = (drawn(4, 5, seed=seed) for seed in range(3))

    def prox(v):
        return torch.sign(v) * (v.abs() - 0.05).clamp(min=0.0)

    torch.testing.assert_close(output_signal(torch.tanh(z), y, 1.7), 1.7 * (torch.tanh(z) - y), **TIGHT)
    torch.testing.assert_close(penalised_signal(z, z, g, 0.2, prox), (z - prox(z - 0.2 * g)) / 0.2, **TIGHT)
