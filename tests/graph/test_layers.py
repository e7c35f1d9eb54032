"""Layers: sums over all features, and the dimension along which joint activations act."""

import pytest
import torch
from torch import nn

from lifted_bregman import activations as act
from lifted_bregman.graph import Layer
from lifted_bregman.maps import Dense

F64 = torch.float64


def layer(activation, dim=-1):
    return Layer(Dense(nn.Linear(2, 2)), activation, "model.0 (Linear)", dim)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2, 5), (3, 4, 6)])
@pytest.mark.parametrize("dim", [-1, 1])
def test_separable_activations_sum_over_all_features_of_any_shape(shape, dim):
    torch.manual_seed(0)
    x, z = torch.randn(shape, dtype=F64), torch.randn(shape, dtype=F64)
    own, alpha = layer(act.SoftThreshold(0.4), dim), 0.4
    flat_x, flat_z = x.reshape(3, -1), z.reshape(3, -1)
    psi = alpha * flat_x.abs().sum(1)
    phi = 0.5 * flat_x.square().sum(1) + psi
    phi_star = 0.5 * (flat_z.abs() - alpha).clamp(min=0).square().sum(1)
    torch.testing.assert_close(own.psi(x), psi)
    torch.testing.assert_close(own.phi(x), phi)
    torch.testing.assert_close(own.phi_star(z), phi_star)
    torch.testing.assert_close(own.bregman(x, z), phi + phi_star - (flat_x * flat_z).sum(1))
    torch.testing.assert_close(own.activate(z), nn.functional.softshrink(z, alpha))
    torch.testing.assert_close(own.prox(z, 0.5), nn.functional.softshrink(z, 0.5 * alpha))


@pytest.mark.parametrize(
    ("shape", "dim"), [((3, 4), -1), ((3, 4), 1), ((3, 5, 4), -1), ((3, 4, 2, 5), 1), ((3, 2, 4, 5), -2)]
)
def test_joint_activations_act_along_their_dimension(shape, dim):
    torch.manual_seed(0)
    z = torch.randn(shape, dtype=F64)
    x = torch.softmax(torch.randn(shape, dtype=F64), dim)
    own = layer(act.Softmax(), dim)
    torch.testing.assert_close(own.activate(z), torch.softmax(z, dim))
    phi, phi_star = (x * x.log()).reshape(3, -1).sum(1), torch.logsumexp(z, dim).reshape(3, -1).sum(1)
    torch.testing.assert_close(own.phi(x), phi)
    torch.testing.assert_close(own.phi_star(z), phi_star)
    torch.testing.assert_close(own.bregman(x, z), phi + phi_star - (x * z).reshape(3, -1).sum(1))
    u = own.prox(z, 0.3)
    assert u.shape == z.shape
    torch.testing.assert_close(u.sum(dim), torch.ones_like(u.sum(dim)))
    # Optimality on the simplex: u - z + 0.3 (log u - u) is constant along dim (Ψ = Σ u log u - ½u²).
    g = u - z + 0.3 * (u.log() - u)
    torch.testing.assert_close(g, g.mean(dim, keepdim=True).expand_as(g), rtol=1e-9, atol=1e-9)


def test_contains_is_one_bool_per_sample():
    x = torch.ones(3, 2, 4, 4, dtype=F64)
    x[1, 0, 2, 3] = -1.0
    assert layer(act.ReLU(), 1).contains(x).tolist() == [True, False, True]
    assert layer(act.ReLU()).contains(x.flatten(1)).tolist() == [True, False, True]
    assert layer(act.ReLU(), 1).bregman(x, torch.zeros_like(x)).isinf().tolist() == [False, True, False]
