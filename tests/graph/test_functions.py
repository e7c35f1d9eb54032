"""Activations as functions and methods are read as the proximal maps that they are, whatever their form."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lifted_bregman import activations as act
from lifted_bregman.errors import UnsupportedModuleError
from lifted_bregman.graph import read_network
from lifted_bregman.graph.decompose import normal_cdf

Z = torch.linspace(-9.0, 9.0, 301, dtype=torch.float64).reshape(-1, 1)


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.first, self.last = function, nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.function(self.first(x)))


FORMS = {
    "F.relu": (F.relu, act.ReLU()),
    "F.relu in place": (lambda x: F.relu(x, inplace=True), act.ReLU()),
    "F.relu in place, by position": (lambda x: F.relu(x, True), act.ReLU()),
    "torch.relu": (torch.relu, act.ReLU()),
    "torch.relu_": (torch.relu_, act.ReLU()),
    "x.relu()": (lambda x: x.relu(), act.ReLU()),
    "x.relu_()": (lambda x: x.relu_(), act.ReLU()),
    "clamp(min=0)": (lambda x: x.clamp(min=0), act.ReLU()),
    "clamp_min": (lambda x: x.clamp_min(0.0), act.ReLU()),
    "clamp_max": (lambda x: torch.clamp_max(x, 1.5), None),
    "clamp(min=-1)": (lambda x: x.clamp(min=-1.0), None),
    "clamp": (lambda x: torch.clamp(x, -1.0, 2.0), act.Box(-1.0, 2.0)),
    "clip in place": (lambda x: x.clip_(-1, 2), act.Box(-1.0, 2.0)),
    "relu6": (F.relu6, act.Box(0.0, 6.0)),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, max_val=2.0), act.Box(-0.5, 2.0)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), act.LeakyReLU(0.2)),
    "leaky_relu by name": (lambda x: F.leaky_relu(x, negative_slope=0.3, inplace=True), act.LeakyReLU(0.3)),
    "threshold": (lambda x: F.threshold(x, 0.0, 0.0), act.ReLU()),
    "softshrink": (lambda x: F.softshrink(x, 0.7), act.SoftThreshold(0.7)),
    "tanh": (torch.tanh, act.Tanh()),
    "x.tanh_()": (lambda x: x.tanh_(), act.Tanh()),
    "F.tanh": (F.tanh, act.Tanh()),
    "sigmoid": (torch.sigmoid, act.Sigmoid()),
    "F.sigmoid": (F.sigmoid, act.Sigmoid()),
    "expit": (torch.special.expit, act.Sigmoid()),
    "softsign": (F.softsign, act.Softsign()),
    "elu": (lambda x: F.elu(x, 0.6), act.ELU(0.6)),
    "celu": (F.celu, act.ELU(1.0)),
    "softplus": (F.softplus, act.Softplus()),
    "softplus, beta": (lambda x: F.softplus(x, beta=3.0), None),
    "logsigmoid": (F.logsigmoid, None),
    "hardsigmoid": (F.hardsigmoid, None),
    "tanhshrink": (F.tanhshrink, None),
    "atan": (torch.atan, act.Arctan()),
    "arctan": (lambda x: x.arctan(), act.Arctan()),
    "asinh": (torch.asinh, act.Asinh()),
    "normal_cdf": (normal_cdf, None),
    "softmax": (lambda x: torch.softmax(x, -1), act.Softmax()),
    "F.softmax": (lambda x: F.softmax(x, dim=1), act.Softmax()),
    "x.softmax": (lambda x: x.softmax(dim=-1), act.Softmax()),
}


@pytest.mark.parametrize("name", FORMS)
def test_an_activation_is_read_in_each_of_its_forms(name):
    function, expected = FORMS[name]
    network = read_network(Applied(function))
    assert len(network) == 2
    found = network[1].activation
    if expected is not None:
        assert found == expected
    torch.testing.assert_close(found(Z), function(Z.clone()), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dim", [1, 2, 3, -1, -2])
def test_softmax_acts_along_the_dimension_that_is_named(dim):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.last = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 1, 1)

        def forward(self, x):
            return self.last(F.softmax(self.conv(x), dim=dim))

    model, x = Model().double(), torch.randn(3, 2, 4, 5, dtype=torch.float64)
    first = read_network(model, x)[1]
    u = first.activate(first.map.apply(x))
    torch.testing.assert_close(u, F.softmax(model.conv(x), dim=dim).detach())


MAPS = {
    "maximum": lambda x: torch.maximum(x, -x),
    "exp and log": lambda x: torch.log1p(torch.exp(-x.square())),
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "F.normalize": lambda x: F.normalize(x, dim=-1),
    "var": lambda x: (x - x.mean(1, keepdim=True)) / (x.var(-1, keepdim=True) + 1.0),
    "stack and unbind": lambda x: torch.stack(x.unbind(1)[::-1], dim=1),
    "where": lambda x: torch.where(torch.tensor([True, False, True]), x, 2.0 * x),
    "constants": lambda x: x @ torch.full((3, 3), 0.5) + torch.arange(3),
    "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
    "log_softmax inside": lambda x: F.log_softmax(x, -1),
    "amax": lambda x: x - x.amax(1, keepdim=True),
    "max": lambda x: x - x.max(dim=1, keepdim=True)[0],
    "max, by name": lambda x: x - x.max(dim=1, keepdim=True).values,
    "topk": lambda x: torch.topk(x, 3).values,
    "sort": lambda x: x.sort(dim=-1, descending=True).values,
    "median": lambda x: x - torch.median(x, 1, keepdim=True)[0],
    "indices": lambda x: torch.gather(x, 1, x.topk(3, 1).indices),
    "in place": lambda x: x.mul_(2.0).add_(1.0),
    "chunk": lambda x: torch.cat(torch.chunk(x, 3, dim=1)[1:] + torch.chunk(x, 3, dim=1)[:1], dim=1),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_differentiable_function_is_a_map(name):
    torch.manual_seed(0)
    model, x = Applied(MAPS[name]), torch.randn(4, 4)
    network = read_network(model, x[:2])
    values = {0: x}
    for number, layer in enumerate(network, 1):
        values[number] = layer.activate(layer.map.apply(network.read(values, number)))
        assert layer.activation == act.Identity()
    torch.testing.assert_close(values[len(network)], model(x).detach())


@pytest.mark.parametrize("example", [None, torch.randn(2, 4)])
def test_values_of_a_pair_need_no_example(example):
    model = Applied(lambda x: x.relu().max(1, keepdim=True).values + x)
    network = read_network(model, example)
    x = torch.randn(5, 4)
    values = {0: x}
    for number, layer in enumerate(network, 1):
        values[number] = layer.activate(layer.map.apply(network.read(values, number)))
    torch.testing.assert_close(values[len(network)], model(x).detach())


OVER_SAMPLES = {
    "sort": lambda x: x.sort(0).values,
    "topk": lambda x: x.topk(2, 0).values,
    "median": lambda x: x - x.median(),
}


@pytest.mark.parametrize("name", OVER_SAMPLES)
def test_sorting_the_samples_is_refused(name):
    with pytest.raises(UnsupportedModuleError, match="dimension of the samples"):
        read_network(Applied(OVER_SAMPLES[name]), torch.randn(5, 4))
