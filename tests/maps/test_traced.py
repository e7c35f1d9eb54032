"""`TracedMap`: several inputs, one forward pass for both pull-backs, dropout and batch normalisation in a step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.graph import read_network
from lifted_bregman.maps import TracedMap
from lifted_bregman.maps.traced import samples_back, samples_first, trace_chain

F64 = torch.float64


class Mixed(nn.Module):
    """tanh(fc(x)) and its input meet in a product with parameters."""

    def __init__(self):
        super().__init__()
        self.fc, self.gain = nn.Linear(3, 3), nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        h = torch.relu(self.out(self.fc(x).tanh() * self.fc(x) + self.gain))
        return h


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return F.relu(torch.cat([self.a(x), self.b(x)], 1) + 1.0) @ torch.eye(6, dtype=x.dtype)


def term(model, number, example):
    return read_network(model, example)[number].map


def normalised(momentum=0.1, **settings):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum, **settings), nn.ReLU(), nn.Linear(4, 2))
    return model.double()


def dropped(p=0.5):
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 40), nn.Dropout(p), nn.ReLU(), nn.Linear(40, 2)).double()


X = torch.randn(6, 3, dtype=F64, generator=torch.Generator().manual_seed(1))


def test_several_inputs_are_pulled_back_in_the_form_they_came():
    torch.manual_seed(2)
    f = term(Mixed().double(), 3, X)
    assert isinstance(f, TracedMap)
    x = (torch.randn(4, 3, dtype=F64), torch.randn(4, 3, dtype=F64))
    leaves = tuple(t.clone().requires_grad_() for t in x)
    z = f.evaluate(leaves)
    d = torch.randn_like(z)
    parameters = f.parameters
    expected = torch.autograd.grad(z, [*leaves, *parameters.values()], d)
    value, pull = f.linearise(x)
    back, pulled = pull(d, scale=-0.3)
    torch.testing.assert_close(value, z.detach())
    assert isinstance(back, tuple)
    for given in (back, f.pull_back_input(x, d)):
        for g, e in zip(given, expected, strict=False):
            torch.testing.assert_close(g, e, rtol=1e-12, atol=1e-12)
    for given in (pulled, f.pull_back_parameters(x, d, -0.3)):
        for (name, g), e in zip(given.items(), expected[2:], strict=True):
            torch.testing.assert_close(g, -0.3 * e, rtol=1e-12, atol=1e-12, msg=name)
    assert pull(d, inputs=False)[0] is None


def test_curvature_in_each_of_several_inputs():
    torch.manual_seed(2)
    f = term(Mixed().double(), 3, X)
    x = (torch.randn(4, 3, dtype=F64), torch.randn(4, 3, dtype=F64))
    for which in (0, 1):
        jacobians = torch.autograd.functional.jacobian(lambda *t: f.evaluate(t), x)[which]
        exact = max(float(torch.linalg.matrix_norm(jacobians[i, :, i], 2)) ** 2 for i in range(4))
        assert 0.97 * exact <= f.input_curvature(x, which=which) <= exact * (1.0 + 1e-12)
    with pytest.raises(lb.errors.CompatibilityError, match="upper=False"):
        f.input_curvature(x, upper=True)


def test_bounds_of_an_affine_map_with_two_inputs():
    """[a, b] + 1, whose Jacobian in each input has norm 1."""
    torch.manual_seed(2)
    f = term(Sum().double(), 3, torch.randn(3, 4, dtype=F64))
    x = (torch.randn(4, 3, dtype=F64), torch.randn(4, 3, dtype=F64))
    assert f.affine
    for which in (0, 1):
        assert 1.0 <= f.input_curvature(x, upper=True, which=which) <= 1.02


def test_frozen_parameters_belong_to_no_block():
    torch.manual_seed(2)
    model = Mixed().double()
    f = term(model, 3, X)
    assert list(f.parameters) == ["gain"]
    model.gain.requires_grad_(False)
    assert f.parameters == {} == f.pull_back_parameters((X, X), X)


def test_batch_normalisation_in_training_mode_is_torchs_and_updates_its_statistics_once():
    model, reference = normalised(), normalised()
    network = read_network(model)
    f = network[2].map
    h = model[0](X).detach()
    assert network.couples_samples
    z, pull = f.linearise(h)
    leaf = h.clone().requires_grad_()
    expected = reference[1](leaf)
    torch.testing.assert_close(z, expected.detach(), rtol=1e-12, atol=1e-12)
    for name, buffer in reference[1].named_buffers():
        torch.testing.assert_close(getattr(model[1], name), buffer, rtol=1e-12, atol=1e-12)
    d = torch.randn_like(z)
    back, pulled = pull(d)
    gradients = torch.autograd.grad(expected, [leaf, *reference[1].parameters()], d)
    torch.testing.assert_close(back, gradients[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(pulled["weight"], gradients[1], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(pulled["bias"], gradients[2], rtol=1e-10, atol=1e-10)
    model.eval()
    assert not network.couples_samples
    reference.eval()
    torch.testing.assert_close(f.apply(h), reference[1](h).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"momentum": None}, {"track_running_stats": False}])
def test_running_statistics_follow_torch_over_several_calls(settings):
    model, reference = normalised(**settings), normalised(**settings)
    f = read_network(model)[2].map
    for scale in (1.0, 3.0, 0.5):
        h = scale * model[0](X).detach()
        torch.testing.assert_close(f.apply(h), reference[1](h).detach(), rtol=1e-12, atol=1e-12)
    for name, buffer in reference[1].named_buffers():
        torch.testing.assert_close(getattr(model[1], name), buffer, rtol=1e-12, atol=1e-12)


def test_batch_normalisation_without_parameters_is_part_of_the_map_before_it():
    model, reference = normalised(affine=False), normalised(affine=False)
    f = read_network(model)[1].map
    torch.testing.assert_close(f.apply(X), reference[:2](X).detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model[1].running_var, reference[1].running_var, rtol=1e-12, atol=1e-12)


def test_frozen_batch_normalisation_is_the_affine_map_of_the_last_statistics():
    model = normalised()
    f = read_network(model)[2].map
    h = model[0](X).detach()
    f.apply(h)
    kept = {name: buffer.clone() for name, buffer in model[1].named_buffers()}
    mean, variance = h.mean(0), h.var(0, unbiased=False)
    other = 2.0 * h + 1.0
    with f.frozen():
        z = f.apply(other)
        zeros = torch.zeros_like(other)
    expected = (other - mean) / (variance + model[1].eps).sqrt() * model[1].weight + model[1].bias
    torch.testing.assert_close(z, expected.detach(), rtol=1e-12, atol=1e-12)
    d = torch.randn_like(z)
    slope = (model[1].weight / (variance + model[1].eps).sqrt()).detach()
    torch.testing.assert_close(f.pull_back_input(zeros, d), d * slope, rtol=1e-12, atol=1e-12)
    assert f.input_curvature(h) == pytest.approx(float(slope.square().max()), rel=1e-2)
    for name, buffer in model[1].named_buffers():
        assert torch.equal(buffer, kept[name])


def test_dropout_draws_a_mask_for_each_call_and_keeps_it_while_frozen():
    model = dropped()
    network = read_network(model)
    f = network[1].map
    assert network.random
    first, second = f.apply(X), f.apply(X)
    assert not torch.equal(first, second)
    with f.frozen():
        assert torch.equal(f.apply(X), second)
        z, pull = f.linearise(X)
        assert torch.equal(z, second)
    assert not torch.equal(f.apply(X), second)
    z, pull = f.linearise(X)
    mask = (z != 0.0) * 2.0
    d = torch.randn_like(z)
    torch.testing.assert_close(pull(d)[0], (d * mask) @ model[0].weight.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(f.pull_back_input(X, d), (d * mask) @ model[0].weight.detach(), rtol=1e-12, atol=1e-12)
    with f.frozen(), pytest.raises(lb.errors.TensorError, match="keeps its random numbers"):
        f.apply(X[:2])
    model.eval()
    assert not network.random
    torch.testing.assert_close(f.apply(X), model[0](X).detach())


def test_dropout_has_the_law_of_torchs():
    """With the same seed the mask is the same."""
    model = dropped(0.3)
    f = read_network(model)[1].map
    torch.manual_seed(9)
    found = f.apply(X)
    torch.manual_seed(9)
    torch.testing.assert_close(found, model[1](model[0](X)).detach(), rtol=1e-12, atol=1e-12)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 30), nn.Linear(30, 2)

    def forward(self, x):
        return self.b(F.dropout(F.relu(self.a(x)), 0.5, training=self.training))


def test_functional_dropout_follows_its_modules_mode():
    model = Functional().double()
    network = read_network(model)
    h = network[1].activate(network[1].map.apply(X))
    assert network.random and not torch.equal(network[2].map.apply(h), network[2].map.apply(h))
    model.eval()
    assert not network.random
    torch.testing.assert_close(network[2].map.apply(h), model(X).detach())


def test_dropout_that_was_the_identity_is_left_out_and_remembered():
    model = dropped().eval()
    network = read_network(model)
    assert isinstance(network[1].map, lb.maps.Dense)
    assert [dropout.path for dropout in network.skipped] == ["model.1"]
    assert network.skipped_active is None
    model.train()
    assert network.skipped_active == "dropout"  # so that solvers can ask for the model to be read again


def test_samples_first_and_back():
    z = torch.arange(24.0).view(2, 6, 2)  # dimension 1: three samples with two rows each
    x = samples_first(z, 1, 2, 3)
    assert x.shape == (3, 2, 2, 2)
    assert torch.equal(x[1], z[:, 2:4])
    assert torch.equal(samples_back(x, 1, 2), z)


def test_buffers_are_read_when_the_map_is_used():
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x):
            return self.fc(x) - self.shift[:3]

    model = Shift().double()
    network = read_network(model)
    model.shift = torch.full((3,), 5.0, dtype=F64)
    (layer,) = network
    torch.testing.assert_close(layer.map.apply(X), model(X).detach())


def test_a_whole_number_input_has_no_derivative():
    f = trace_chain(nn.Embedding(5, 3))
    x = torch.tensor([[0, 2], [4, 2]])
    z, pull = f.linearise(x)
    back, pulled = pull(torch.ones_like(z))
    assert not back.any()
    assert torch.equal(pulled["weight"][:, 0], torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0]))
