"""Models of many kinds: the terms compute what the model computes, and pull back what autograd pulls back."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lifted_bregman import activations as act
from lifted_bregman.graph import read_network
from lifted_bregman.maps import Dense
from lifted_bregman.maps.traced import core_of
from tests.graph.architectures import MODELS


def with_final(network):
    """The network's layers, the last one with the activation that the model ends with."""
    last = replace(network.layers[-1], activation=network.final_activation or act.Identity())
    return (*network.layers[:-1], last)


def evaluate(network, inputs):
    """Every variable, from term to term."""
    x = {-place: value for place, value in enumerate(inputs)}
    for number, layer in enumerate(with_final(network), 1):
        x[number] = layer.activate(layer.map.apply(read(x, layer)))
    return x


def read(x, layer):
    values = tuple(x[v] for v in layer.inputs)
    return values if len(values) > 1 else values[0]


def parameters_by_name(network):
    """{id of a parameter: its name in the model}."""
    return {id(p): name for name, p in network.model.named_parameters()}


def base(layer_map):
    return getattr(layer_map, "base", layer_map)


def back_propagate(network, inputs, d):
    """Parameter gradients through the terms: pull-backs of the maps, and autograd's derivative of each activation."""
    x, signal, gradients = evaluate(network, inputs), {}, {}
    signal[len(network)] = d
    for number in range(len(network), 0, -1):
        layer = with_final(network)[number - 1]
        if number not in signal:
            continue
        f = base(layer.map)
        z, pull = f.linearise(read(x, layer))
        leaf = z.clone().requires_grad_()
        module = layer.activation.as_module()
        u = layer.restore(module(layer.arrange(leaf))) if layer.activation.joint else module(leaf)
        (dz,) = torch.autograd.grad(u, leaf, signal[number])
        lifted = any(v > 0 for v in layer.inputs)  # nothing is pulled back to the data
        back, pulled = pull(dz, inputs=lifted)
        for name, g in pulled.items():
            key = id(f.parameters[name])
            gradients[key] = gradients.get(key, 0.0) + g
        for v, g in zip(layer.inputs, back if isinstance(back, tuple) else (back,), strict=True) if lifted else ():
            signal[v] = signal.get(v, 0.0) + g
    return gradients


@pytest.fixture(params=MODELS)
def case(request):
    model, inputs = MODELS[request.param]()
    model.eval()
    return model, inputs, read_network(model, tuple(x[:2] for x in inputs))


def test_terms_reproduce_the_model_for_several_batch_sizes(case):
    model, inputs, network = case
    for count in (1, 3, 5):
        some = tuple(x[:count] for x in inputs)
        torch.testing.assert_close(evaluate(network, some)[len(network)], model(*some).detach(), rtol=1e-12, atol=1e-12)


def test_the_chain_rule_through_the_terms_gives_autograds_gradients(case):
    model, inputs, network = case
    z = model(*inputs)
    generator = torch.Generator().manual_seed(5)
    d = torch.randn(z.shape, generator=generator, dtype=z.dtype)
    used = {name: p for name, p in model.named_parameters() if name not in network.unused}
    expected = torch.autograd.grad(z, list(used.values()), d)
    found = back_propagate(network, inputs, d)
    assert {parameters_by_name(network)[key] for key in found} == set(used)
    for (name, p), gradient in zip(used.items(), expected, strict=True):
        torch.testing.assert_close(found[id(p)], gradient, rtol=1e-10, atol=1e-10, msg=name)


def test_every_parameter_use_is_explained(case):
    """Names of the maps, the shared and the unused together are the model's; a parameter is unused as autograd says."""
    model, inputs, network = case
    z = model(*inputs)
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad(z.sum(), list(named.values()), allow_unused=True)
    assert network.unused == tuple(name for name, g in zip(named, gradients, strict=True) if g is None)
    users = {}
    for number, layer in enumerate(network, 1):
        for p in base(layer.map).parameters.values():
            users.setdefault(parameters_by_name(network)[id(p)], []).append(number)
    assert set(users) == set(named) - set(network.unused)
    assert network.shared == {name: tuple(terms) for name, terms in users.items() if len(terms) > 1}


SHARED = {
    "language model": {"tokens.weight"},
    "recurrence": {"read.weight", "read.bias", "carry.weight"},
    "shared block": {"block.0.weight", "block.0.bias"},
    "gates": {"out.weight"},
}


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"torch's own attention and recurrences"}))
def test_a_parameter_is_in_two_terms_only_if_the_model_uses_it_twice(name):
    """No term repeats a call with parameters of another."""
    model, inputs = MODELS[name]()
    assert set(read_network(model, inputs).shared) == SHARED.get(name, set())


def test_variables_have_their_samples_first(case):
    _, inputs, network = case
    assert all(len(x) == 5 for x in evaluate(network, inputs).values())


def test_terms_read_only_earlier_variables_and_all_are_read(case):
    _, inputs, network = case
    for number, layer in enumerate(network, 1):
        assert all(v < number for v in layer.inputs)
        assert list(layer.inputs) == sorted(set(layer.inputs), key=list(layer.inputs).index)
    read_by_some = {v for layer in network for v in layer.inputs}
    assert read_by_some == {-place for place in range(len(inputs))} | set(range(1, len(network)))


def test_the_user_s_model_is_left_as_it_was(case):
    model, inputs, _ = case
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = {name: set(module.__dict__) for name, module in model.named_modules()}
    modes = {name: module.training for name, module in model.named_modules()}
    torch.manual_seed(8)
    expected = torch.rand(2)
    torch.manual_seed(8)
    model.train()
    for module in list(model.modules())[::2]:
        module.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    read_network(model, tuple(x[:2] for x in inputs))
    assert torch.equal(torch.rand(2), expected)
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert attributes == {name: set(module.__dict__) for name, module in model.named_modules()}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


class Probability(nn.Module):
    """Ends with an activation, and with views of it."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(3, 2), function

    def forward(self, x):
        return self.function(self.fc(x)).unsqueeze(1).flatten(1)[:, 0]


@pytest.mark.parametrize("given", [True, False])
def test_views_after_the_final_activation_change_places_with_it(given):
    torch.manual_seed(0)
    model, x = Probability(torch.sigmoid), torch.randn(4, 3)
    network = read_network(model, x if given else None)
    assert network.final_activation == act.Sigmoid()
    assert len(network) == 1
    torch.testing.assert_close(evaluate(network, (x,))[1], model(x).detach())


def test_views_do_not_change_places_with_a_joint_activation():
    model, x = Probability(lambda z: z.softmax(-1)), torch.randn(4, 3)
    network = read_network(model, x)
    assert network.final_activation is None
    assert [layer.activation for layer in network] == [act.Softmax(), act.Identity()]


def shown(network):
    return [(layer.path, layer.activation, layer.inputs) for layer in network]


def test_the_cut_of_a_residual_block():
    model, _ = MODELS["post-activation residual"]()
    network = read_network(model.eval())  # which reads no other shape than the number of samples
    identity, relu = act.Identity(), act.ReLU()
    assert shown(network)[:7] == [
        ("model.stem (Conv2d)", relu, (0,)),
        ("model (ResNet), max_pool2d", identity, (1,)),  # which two terms read
        ("model.layers.0.conv1 (Conv2d)", identity, (2,)),
        ("model.layers.0.bn1 (BatchNorm2d)", relu, (3,)),
        ("model.layers.0.conv2 (Conv2d)", identity, (4,)),
        ("model.layers.0.bn2 (BatchNorm2d)", identity, (5,)),
        ("model.layers.0 (PostActivation), add", relu, (2, 6)),
    ]
    assert shown(network)[-1] == ("model.fc (Linear)", identity, (12,))


class FunctionalLinear(nn.Module):
    """F.linear with parameters of the module itself, the second after a sum and without bias."""

    def __init__(self):
        super().__init__()
        self.first, self.shift = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(5))
        self.second = nn.Parameter(torch.randn(2, 5))

    def forward(self, x):
        x = torch.relu(F.linear(x, self.first, bias=self.shift))
        return F.linear(x + 1.0, self.second)


def test_f_linear_with_the_model_s_parameters_is_a_dense_map():
    model = FunctionalLinear()
    first, second = (core_of(layer.map)[1] for layer in read_network(model, (torch.randn(2, 3),)))
    assert isinstance(first, Dense) and isinstance(second, Dense)
    assert first.parameters == {"weight": model.first, "bias": model.shift}
    assert second.parameters == {"weight": model.second}
    x = torch.randn(4, 3)
    torch.testing.assert_close(first.apply(x), x @ model.first.T + model.shift)


def test_f_linear_with_a_computed_weight_is_not_a_dense_map():
    class Scaled(FunctionalLinear):
        def forward(self, x):
            return F.linear(x, 2.0 * self.first, self.shift)

    (layer,) = read_network(Scaled(), (torch.randn(2, 3),))
    assert not isinstance(core_of(layer.map)[1], Dense)


@pytest.mark.parametrize("packed", [True, False])
def test_self_attention_projects_by_one_dense_map(packed):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            return self.inner(x, x, x if packed else 2.0 * x)[0]

    model = Attention()
    network = read_network(model, (torch.randn(2, 3, 4),))
    whole = [layer for layer in network if model.inner.in_proj_weight in {*base(layer.map).parameters.values()}]
    assert len(whole) == (1 if packed else 3)
    assert isinstance(base(whole[0].map), Dense) == packed
