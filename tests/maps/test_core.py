"""Maps that end with a dense or convolution map, after calls without parameters: both parts, and together."""

import pytest
import torch
from torch import nn

from lifted_bregman.graph import read_network
from lifted_bregman.maps import Convolution, Dense, TracedMap

F64 = torch.float64
MODELS = {
    "pooling, convolution": (
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2)),
        Convolution,
    ),
    "pooling, flattening, linear": (
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(27, 4)),
        Dense,
    ),
    "dropout, linear": (
        nn.Sequential(nn.Flatten(), nn.Linear(128, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)),
        Dense,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_map_is_its_head_and_then_its_dense_or_convolution_map(name):
    torch.manual_seed(0)
    model, kind = MODELS[name]
    model = model.double().train()
    network = read_network(model)
    X = torch.randn(4, 2, 8, 8, dtype=F64)
    x = network[1].activate(network[1].map.apply(X))
    f = network[2].map
    assert isinstance(f, TracedMap) and f.core is not None
    head, main = f.core
    assert isinstance(main, kind) and not head.parameters and main.parameters.keys() == f.parameters.keys()
    with network.one_step():  # one mask for both
        z, y = f.apply(x), head.apply(x)
        torch.testing.assert_close(main.apply(y), z, rtol=0, atol=1e-14)
        d = torch.randn_like(z)
        torch.testing.assert_close(
            head.pull_back_input(x, main.pull_back_input(y, d)), f.pull_back_input(x, d), rtol=1e-12, atol=1e-14
        )


def test_a_sum_before_the_activation_is_no_such_map():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.g = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            h = torch.relu(self.f(x))
            return torch.relu(self.g(h * 2.0) + h)

    network = read_network(Sum().double())
    assert [isinstance(layer.map, TracedMap) and layer.map.core is not None for layer in network] == [
        False,
        True,
        False,
    ]
