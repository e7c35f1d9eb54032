"""The lifted direction: shifted pre-activations, the limits of back-propagation and of many sweeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch
from lifted_bregman.solvers.directions import LiftedDirection, forward_point
from tests.solvers.linbreg_cases import deep, randn


def direction_gradients(problem, X, Y, direction):
    batch = Batch.whole(problem, X, Y)
    return {layer: problem.parameter_gradient(point, layer) for layer, point in direction.visit(problem, batch, {})}


def test_long_steps_give_the_activation_of_a_shifted_preactivation():
    """factor → ∞: x_l = σ(z_l - λ_{l+1} d_{l+1} W_{l+1} / λ_l), and λ_l d_lᵀ x_{l-1} / s with x_{l-1} not yet moved."""
    problem, X, Y = deep()
    found = direction_gradients(problem, X, Y, LiftedDirection(factor=1e12))
    (W1, b1), (W2, b2), (W3, b3) = [(m.weight.detach(), m.bias.detach()) for m in problem.model if hasattr(m, "weight")]
    l1, l2, l3, s = 0.7, 1.6, 1.0, 20
    z1 = X @ W1.T + b1
    z2 = z1.tanh() @ W2.T + b2
    d3 = z2.relu() @ W3.T + b3 - Y
    x2 = (z2 - l3 * d3 @ W3 / l2).relu()
    d2 = z2.relu() - x2
    x1 = (z1 - l2 * d2 @ W2 / l1).tanh()
    d1 = z1.tanh() - x1
    for layer, lam, d, x in ((3, l3, d3, z2.relu()), (2, l2, d2, z1.tanh()), (1, l1, d1, X)):
        torch.testing.assert_close(found[layer]["weight"], lam * d.T @ x / s, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(found[layer]["bias"], lam * d.mean(0), rtol=1e-8, atol=1e-9)


def test_with_large_weights_it_tends_to_the_backpropagated_gradient():
    problem, X, Y = deep()
    model = problem.model
    model[3] = nn.Sigmoid()  # smooth everywhere, so that the rate is clean
    loss = 0.5 * (model(X) - Y).square().sum(1).mean()
    exact = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    errors = []
    for weight in (1e2, 1e3, 1e4):
        lifted = lb.lift(model, loss=lb.SquaredError(), weights=weight)
        found = direction_gradients(lifted, X, Y, LiftedDirection(factor=1e12))
        flat = torch.cat([found[l][name].flatten() for l in (1, 2, 3) for name in ("weight", "bias")])
        errors.append(float((flat - exact).norm() / exact.norm()))
    assert errors[0] < 0.05
    assert errors[0] / errors[1] == pytest.approx(10.0, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(10.0, rel=0.1)


def test_many_sweeps_give_the_gradient_of_the_minimum_over_x():
    problem, X, Y = deep()
    many = LiftedDirection(sweeps=120, factor=1.9)
    found = direction_gradients(problem, X, Y, many)

    def reduced():
        batch = Batch.whole(problem, X, Y)
        *_, (_, point) = many.visit(problem, batch, {})
        assert max(problem.certificates(point.state, X, Y).variables) < 1e-8
        return float(problem.energy(point.state, X, Y))

    for module, layer in ((0, 1), (2, 2), (4, 3)):
        for name in ("weight", "bias"):
            parameter = getattr(problem.model[module], name).detach()
            change, h = randn(*parameter.shape, seed=layer), 1e-5
            kept = parameter.clone()
            ahead, behind = (parameter.copy_(kept + sign * h * change) is None or reduced() for sign in (1, -1))
            parameter.copy_(kept)
            slope = float((found[layer][name] * change).sum())
            assert (ahead - behind) / (2 * h) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_short_steps_lower_the_energy_and_stay_in_the_domain():
    problem, X, Y = deep()
    batch = Batch.whole(problem, X, Y)
    start = float(problem.energy(forward_point(problem, batch).state, X, Y))
    energies = []
    for sweeps in (1, 2, 5):
        *_, (_, point) = LiftedDirection(sweeps, factor=1.9).visit(problem, batch, {})
        energies.append(float(problem.energy(point.state, X, Y)))
    assert start > energies[0] > energies[1] > energies[2]


def test_layers_below_zero_weights_have_the_direction_zero():
    problem, X, Y = deep()
    with torch.no_grad():
        problem.model[4].weight.zero_()
    found = direction_gradients(problem, X, Y, LiftedDirection())
    for layer in (1, 2):  # nothing comes through
        assert float(found[layer]["weight"].abs().max()) < 1e-15
    assert float(found[3]["weight"].abs().max()) > 0.01
