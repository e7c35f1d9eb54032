"""(σ(z) - σ(z - tG))/t keeps all its digits: the oracle is the plain difference in float64."""

import pytest
import torch

from lifted_bregman import activations as act
from lifted_bregman.activations.differences import quotient
from tests.cases import ACTIVATIONS, name


def inputs(dtype=torch.float64, samples=4, features=6):
    generator = torch.Generator().manual_seed(5)
    z = 2.0 * torch.randn(samples, features, generator=generator, dtype=torch.float64)
    G = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    steps = torch.tensor([1e-3, 0.1, 1.0, 7.0], dtype=torch.float64)[:samples, None]
    return z.to(dtype), G.to(dtype), steps.to(dtype)


def plain(activation, z, G, steps):
    return (activation(z) - activation(z - steps * G)) / steps


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name)
def test_it_is_the_difference_of_two_values(activation):
    z, G, steps = inputs()
    torch.testing.assert_close(quotient(activation, z, G, steps), plain(activation, z, G, steps), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name)
def test_float32_keeps_small_signals(activation):
    # t G is 1e-6 of z: the plain difference in float32 has errors of 10 % there
    z, G, _ = inputs(torch.float32)
    steps = torch.full((4, 1), 1e-6)
    expected = plain(activation, z.double(), G.double(), steps.double())
    found = quotient(activation, z, G, steps)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name)
def test_it_is_never_longer_than_the_gradient(activation):
    z, G, steps = inputs()
    assert (quotient(activation, z, G, steps).norm(dim=-1) <= G.norm(dim=-1) * (1 + 1e-12)).all()


@pytest.mark.parametrize("activation", [act.Softmax(), act.Sparsemax(), act.GroupSoftThreshold(0.7)], ids=name)
def test_a_joint_activation_acts_along_its_dimension(activation):
    z, G, steps = inputs(features=15)
    z, G = z.view(4, 5, 3), G.view(4, 5, 3)
    found = quotient(activation, z, G, steps[:, None], dim=1)
    expected = quotient(activation, z.mT.contiguous(), G.mT.contiguous(), steps[:, None]).mT
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_where_the_slope_is_one_the_gradient_comes_out_as_it_was():
    G = torch.tensor([[1e-9, -3e-12, 2e-20]])
    z = torch.tensor([[1.0, 0.3, 0.7]])
    steps = torch.tensor([[0.01]])
    for activation in (act.ReLU(), act.Box(0.0, 6.0), act.SoftThreshold(0.1), act.Identity()):
        assert torch.equal(quotient(activation, z, G, steps), G)


def test_softmax_with_masked_places_and_large_shifts():
    z = torch.tensor([[1.0, -torch.inf, 0.5, 2.0], [40.0, -30.0, 0.0, 1.0]], dtype=torch.float64)
    G = torch.tensor([[30.0, 1.0, -30.0, 2.0], [90.0, -80.0, 3.0, 0.0]], dtype=torch.float64)
    steps = torch.ones(2, 1, dtype=torch.float64)
    expected = z.softmax(-1) - (z - G).softmax(-1)
    torch.testing.assert_close(quotient(act.Softmax(), z, G, steps), expected, rtol=1e-10, atol=1e-12)
    z, G = 0.5 * z, 0.3 * G  # in float32 a shift moves log x by 80 at most
    expected = z.softmax(-1) - (z - G).softmax(-1)
    found = quotient(act.Softmax(), z.float(), G.float(), steps.float())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
