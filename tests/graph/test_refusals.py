"""What a forward method may not do: each refusal names the module, the line where it is known, the reason, a remedy."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.graph import read_network

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Forward(nn.Module):
    """A model with one linear layer, some further parameters, and the forward method that it is given."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.fc = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)
        self.gate = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(3))
        self.relu = nn.ReLU(inplace=True)
        self.hidden = [nn.Linear(3, 3)]
        self.loose = [nn.Parameter(torch.ones(3))]

    def forward(self, x):
        return self.function(self, x)


def in_place_with_reader(m, x):
    h = m.fc(x)
    return m.relu(h) + h


def added_in_place(m, x):
    h = m.fc(x)
    kept = h
    h += m.other(x)
    return F.relu(h) * kept


def view_changed(m, x):
    h = m.fc(x)
    part = h[:, :2]
    part.relu_()
    return h


def data_dependent(m, x):
    return m.fc(x) if x.sum() > 0 else m.other(x)


def batch_dependent(m, x):
    return m.fc(x) if len(x) > 2 else m.other(x)


def batch_size_plus_one(m, x):
    return m.fc(x).relu() + torch.ones(len(x) + 1, 1)[:1]


def by_random(m, x):
    return m.fc(x) + torch.randn(3)


def counting(m, x):
    m.count += 1
    return m.fc(x)


def to_numpy(m, x):
    return m.fc(torch.as_tensor(x.numpy()))


def written_into(m, x):
    h = m.fc(x)
    h[:, 0] = 0.0
    return h


REFUSED = {
    "an activation of an activation": (
        lambda m, x: m.fc(x).relu().tanh(),
        ("follows another", "FromScalar"),
    ),
    "no proximal map, function": (lambda m, x: m.other(F.selu(m.fc(x))), ("selu(...)", "1.05", "nn.ELU")),
    "no proximal map, method": (
        lambda m, x: m.other(m.fc(x).hardshrink(0.2)),
        ("jumps", "nn.Softshrink"),
    ),
    "steep ELU, function": (lambda m, x: m.other(F.elu(m.fc(x), 1.5)), ("slope above 1", "(0, 1]")),
    "steep leaky ReLU": (lambda m, x: m.other(F.leaky_relu(m.fc(x), negative_slope=2.0)), ("slope above 1", "(0, 1]")),
    "learned slope": (lambda m, x: m.other(F.prelu(m.fc(x), m.gate[:1])), ("learned", "nn.LeakyReLU")),
    "softmax over samples": (lambda m, x: m.fc(x).softmax(0), ("samples", "use dim=1")),
    "final log-softmax": (lambda m, x: F.log_softmax(m.fc(x), -1), ("symmetric", "CrossEntropy")),
    "clipping with tensors": (
        lambda m, x: torch.clamp(m.fc(x), m.count, m.count + 1),
        ("bounds are tensors",),
    ),
    "activation of a parameter": (lambda m, x: m.fc(x) * torch.sigmoid(m.gate), ("applied to parameters", "lb.Map")),
    "in place, read afterwards": (in_place_with_reader, ("in place", "reads afterwards", "inplace=False")),
    "added in place, read afterwards": (added_in_place, ("in place", "reads afterwards", "new tensor")),
    "a view changed in place": (view_changed, ("in place", "the output", "new tensor")),
    "a part written into": (written_into, ("x[...] = y", "torch.where")),
    "numbers decide": (data_dependent, ("depends on the numbers", "lb.Map")),
    "the batch size decides": (batch_dependent, ("change with the batch size", "lb.Map")),
    "no multiple of the batch size": (batch_size_plus_one, ("3 for 2 samples and 4 for 3", "lb.Map")),
    "divided by the batch size": (lambda m, x: m.fc(x) * (1.0 / len(x)), ("0.5 for 2 samples", "each sample alone")),
    "random numbers": (by_random, ("random numbers by torch.randn", "nn.Dropout")),
    "random numbers like a tensor": (lambda m, x: m.fc(x) + torch.rand_like(x), ("torch.rand_like", "nn.Dropout")),
    "random method": (lambda m, x: m.fc(x) * m.fc(x).bernoulli(), ("random", "nn.Dropout")),
    "a buffer changed": (counting, ("count in place", "no state")),
    "numpy": (to_numpy, ("numbers in a tensor", "lb.Map")),
    "item": (lambda m, x: m.fc(x) * m.gate[0].item(), ("numbers in a tensor", ".item()")),
    "a step function": (lambda m, x: m.other((m.fc(x) > 0).float()), ("gt(...)", "no derivative", "lb.Map")),
    "an unknown function": (lambda m, x: torch.special.bessel_j0(m.fc(x)), ("bessel_j0", "lb.Map")),
    "a sum over samples": (
        lambda m, x: m.fc(x) - m.fc(x).mean(0),
        ("mean(...)", "samples", "the features"),
    ),
    "a sum over everything": (lambda m, x: m.fc(x) / m.fc(x).sum(), ("sum(...)", "samples")),
    "concatenated samples": (lambda m, x: torch.cat([m.fc(x), x]), ("cat(...)", "samples")),
    "samples against samples": (lambda m, x: m.other(F.relu(m.fc(x) @ x.T) @ x), ("more than one dimension", "apart")),
    "shuffled samples": (lambda m, x: m.fc(x).flip(0).relu(), ("changes with the rest of the batch", "samples")),
    "a tuple": (lambda m, x: (m.fc(x), x), ("returns a tuple", "the tensor that the loss takes")),
    "a dictionary": (lambda m, x: {"y": m.fc(x)}, ("returns a dict", "the tensor that the loss takes")),
    "None": (lambda m, x: None, ("returns None", "the tensor that the loss takes")),
    "a module that is not registered": (lambda m, x: m.hidden[0](m.fc(x)), ("no submodule", "nn.ModuleList")),
    "a parameter that is not registered": (lambda m, x: m.fc(x) * m.loose[0], ("does not list", "nn.ParameterList")),
    "untraceable code": (lambda m, x: m.fc(m.absent), ("cannot be traced: AttributeError", "absent", "lb.Map")),
    "a state in Python": (lambda m, x: m.fc(x) * random.random(), ("cannot be lifted",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_place_reason_and_remedy(name):
    function, facts = REFUSED[name]
    with pytest.raises(lb.errors.UnsupportedModuleError) as caught:
        read_network(nn.Sequential(nn.Linear(3, 3), Forward(function)), X)
    sentence = str(caught.value)
    assert "model" in sentence
    for fact in facts:
        assert fact in sentence


def test_an_activation_of_the_input_is_refused():
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"no map comes before it.*start with a map"):
        read_network(Forward(lambda m, x: m.fc(F.relu(x))), X)


def test_an_output_without_parameters_is_refused():
    with pytest.raises(lb.errors.UnsupportedModuleError, match="nothing to train"):
        read_network(Forward(lambda m, x: x.exp()), X)


def test_a_refusal_names_module_and_line():
    with pytest.raises(lb.errors.UnsupportedModuleError) as caught:
        read_network(nn.Sequential(nn.Linear(3, 3), Forward(written_into)), X)
    assert str(caught.value).startswith("model.1 (Forward) cannot be lifted, at test_refusals.py:")
    assert "`h[:, 0] = 0.0`" in str(caught.value)


ASK = {
    "another size": lambda m, x: m.fc(x).view(x.size(0), x.size(1)),
    "all sizes": lambda m, x: m.fc(x).view(*x.shape),
    "dimensions": lambda m, x: m.fc(x) if x.dim() == 2 else m.other(x),
    "a moved dimension": lambda m, x: m.fc(x.t().t()).view(len(x.t()), -1),
    "a loop over a tensor": lambda m, x: m.fc(torch.stack(list(x))),
}


@pytest.mark.parametrize("name", ASK)
def test_shapes_ask_for_an_example(name):
    model = Forward(ASK[name])
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"example=X\[:2\]"):
        read_network(model)


@pytest.mark.parametrize("name", ["another size", "all sizes", "dimensions"])
def test_shapes_are_known_with_an_example(name):
    model = Forward(ASK[name])
    network = read_network(model, X)
    assert network.unused == ("gate", "other.weight", "other.bias")


def test_several_inputs_ask_for_an_example():
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"takes input1, input2.*example=\(input1, input2\)"):
        read_network(nn.Bilinear(3, 3, 2))


@pytest.mark.parametrize("example", [torch.zeros(()), torch.zeros(0, 3), "X", (X, X[:1])])
def test_an_example_holds_samples(example):
    with pytest.raises(lb.errors.TensorError, match="example"):
        read_network(nn.Linear(3, 3), example)
