"""Residual streams as variables, or added up in each term: the same function, energy and gradients, other variables."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.activations import Identity
from lifted_bregman.errors import SettingError
from lifted_bregman.graph import Streams, read_network
from lifted_bregman.maps import Borrowing
from lifted_bregman.problem.blocks import hidden_layers, layers
from tests.graph.architectures import MODELS

F64 = torch.float64


class Stream(nn.Module):
    """h + σ(f(h)), a difference, a branch with two maps, and a bias of its own on the stream."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 5), nn.Linear(5, 3)
        self.first, self.second, self.third = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 6)
        self.outer = nn.Linear(6, 5)
        self.shift = nn.Parameter(torch.randn(5))

    def forward(self, x):
        h = self.enter(x)
        h = h + torch.tanh(self.first(h))
        h = h - torch.sigmoid(self.second(h))
        h = h + self.shift
        h = h + self.outer(torch.relu(self.third(h)))
        return self.leave(h)


CASES = {"stream": lambda: (Stream(), (torch.randn(2, 4),))} | {
    name: MODELS[name]
    for name in ("pre-activation residual", "x - relu(f(x))", "post-activation residual", "dense block")
}


def both(name, samples=6):
    torch.manual_seed(2)
    model, (x,) = CASES[name]()
    model = model.double().eval()
    X = torch.randn(samples, *x.shape[1:], dtype=F64)
    Y = torch.randn_like(model(X).detach())
    problems = {cut: lb.lift(model, loss=lb.SquaredError(), example=X[:2], streams=cut) for cut in Streams}
    return problems, model, X, Y


@pytest.mark.parametrize("cut", Streams)
@pytest.mark.parametrize("name", CASES)
def test_each_cut_has_the_function_and_the_energy_of_the_model(name, cut):
    problems, model, X, Y = both(name)
    problem = problems[cut]
    expected = model(X).detach()
    torch.testing.assert_close(problem.network.forward(X)[-1], expected, rtol=1e-12, atol=1e-12)
    loss = 0.5 * (expected - Y).square().flatten(1).sum(1).mean()
    assert float(problem.energy(problem.forward_state(X), X, Y)) == pytest.approx(float(loss), rel=1e-12)


def settled_gradient(problem, X, Y, nudge, seek=4000):
    """λ J_Θᵀ d of every parameter where X minimises the energy with λ = 1/ν, by gradient descent from the forward pass.

    As ν → 0 it is the gradient of the model, with an error of order ν (`gradient_agreement` explains why).
    """
    lifted = problem.with_weights(1.0 / nudge)
    state = lifted.forward_state(X)
    for _ in range(seek):
        point = lifted.evaluate(state, X, Y, check=False)
        moved = 0.0
        for l in reversed(hidden_layers(lifted.depth)):
            t = 1.0 / lifted.variable_curvature(point, l)
            value = lifted.variable_prox(l, point.x[l] - t * lifted.variable_gradient(point, l), t)
            moved = max(moved, float((value - point.x[l]).abs().max()))
            point.set_variable(l, value)
        state = point.state
        if moved <= 1e-13:
            break
    point = lifted.evaluate(state, X, Y, check=False)
    network = lifted.network
    return {
        id(network[l].map.parameters[key]): g
        for l in layers(lifted.depth)
        for key, g in lifted.parameter_gradient(point, l).items()
    }


@pytest.mark.parametrize("cut", [Streams.DERIVED, pytest.param(Streams.VARIABLES, marks=pytest.mark.long)])
def test_gradients_at_the_minimum_in_the_variables_tend_to_those_of_the_model(cut):
    """2 g(ν/2) - g(ν) has an error of order ν², and g(ν) of order ν; activations here are smooth but for one ReLU."""
    problems, model, X, Y = both("stream", samples=3)
    nudge = 1e-3
    whole, half = (settled_gradient(problems[cut], X, Y, nu) for nu in (nudge, nudge / 2))
    (0.5 * (model(X) - Y).square().sum() / len(X)).backward()
    size = max(float(p.grad.abs().max()) for p in model.parameters())
    far = near = 0.0
    for p in model.parameters():
        far = max(far, float((whole[id(p)] - p.grad).abs().max()))
        near = max(near, float((2.0 * half[id(p)] - whole[id(p)] - p.grad).abs().max()))
    assert 1e-6 * size < far < 0.1 * size
    assert near < 0.02 * far


def test_derived_streams_have_only_branches_as_variables():
    torch.manual_seed(0)
    network = read_network(Stream(), streams=Streams.DERIVED)
    # enter, tanh, sigmoid, the sum with the parameter, relu, outer; the output
    assert [type(layer.activation).__name__ for layer in network] == [
        "Identity", "Tanh", "Sigmoid", "Identity", "ReLU", "Identity", "Identity"
    ]  # fmt: skip
    assert network.links.inputs[1:] == ((0,), (1,), (1, 2), (1, 2, 3), (4,), (5,), (4, 6))
    assert not any(isinstance(layer.map, Borrowing) for layer in network)


class Shifted(nn.Module):
    """Two activations of one sum with a parameter."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 5), nn.Linear(5, 3)
        self.shift = nn.Parameter(torch.randn(5))

    def forward(self, x):
        h = self.enter(x) + self.shift
        return self.leave(torch.tanh(h) * torch.sigmoid(h))


def test_a_sum_with_a_parameter_stays_in_one_term():
    network = read_network(Shifted(), streams=Streams.DERIVED)
    assert not network.shared
    assert [type(layer.activation).__name__ for layer in network] == [
        "Identity", "Identity", "Tanh", "Sigmoid", "Identity"
    ]  # fmt: skip


def test_streams_as_variables_are_read_by_the_next_block_alone():
    network = read_network(Stream(), streams=Streams.VARIABLES)
    assert max(map(len, network.links.inputs)) == 2
    assert max(len(readers) for readers in network.links.readers) == 2
    # enter, h_1, the sum with the parameter, outer; the difference is read once, by that sum
    assert sum(isinstance(layer.activation, Identity) for layer in network.layers[:-1]) == 4
    assert read_network(Stream()).links == network.links


@pytest.mark.parametrize("solver", ["ImplicitSGD", "ProximalGradient", "default"])
def test_a_network_with_derived_streams_trains(solver):
    problems, _, X, Y = both("stream", samples=24)
    problem = problems[Streams.DERIVED]
    before = float(problem.objective(X, Y))
    chosen = {"ImplicitSGD": lb.ImplicitSGD(inner_steps=4), "ProximalGradient": lb.ProximalGradient()}.get(solver)
    batch = None if solver == "ProximalGradient" else 8
    with lb.forbid_activation_derivatives():
        result = lb.fit(problem, (X, Y), chosen, epochs=6, batch_size=batch)
    assert result.history[-1]["objective"] < before
    if solver == "ProximalGradient":
        energies = [row["energy"] for row in result.history]
        assert all(after <= earlier for earlier, after in pairwise(energies))


@pytest.mark.parametrize("wrong", ["derived", None])
def test_streams_of_another_type_are_refused(wrong):
    with pytest.raises(SettingError, match=r"it must be Streams\.VARIABLES or Streams\.DERIVED"):
        lb.lift(Stream(), loss=lb.SquaredError(), streams=wrong)
