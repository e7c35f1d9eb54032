"""`prune` of convolutions, residual nets and concatenations: the same function in float64 from fewer channels."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.errors import UnsupportedModuleError
from tests.graph.architectures import MODELS, ResNet, answer, drawn

F64 = torch.float64


def seeded(make, *shape):
    torch.manual_seed(7)
    model = make().double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(module.bias)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.eval(), torch.randn(shape, dtype=F64)


def size(model):
    return sum(p.numel() for p in model.parameters())


def same(model, pruned, X):
    with torch.no_grad():
        torch.testing.assert_close(answer(pruned.eval(), X), answer(model.eval(), X), rtol=1e-12, atol=1e-12)


def test_a_dead_channel_is_removed_with_its_batch_normalisation():
    def make():
        return nn.Sequential(
            nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.Tanh(), nn.Flatten(),
            nn.Linear(80, 7), nn.Sigmoid(), nn.Linear(7, 3),
        )  # fmt: skip

    model, X = seeded(make, 6, 2, 8, 8)
    with torch.no_grad():
        model[0].weight[[1, 4]] = 0.0  # relu(bn(b)) is a constant, which goes into the bias of the next one
        model[3].weight[:, 2] = 0.0  # channel 2 is not read
        model[3].weight[3] = 0.0  # tanh(b) at 16 places of the flattened image
        model[6].weight[5] = 0.0
    before = copy.deepcopy(model.state_dict())
    pruned = lb.prune(model, X[:2])
    assert pruned[0].out_channels == pruned[1].num_features == pruned[3].in_channels == 3
    assert pruned[3].out_channels == 4 and pruned[6].in_features == 64 and pruned[6].out_features == 6
    assert [len(t) for t in (pruned[1].weight, pruned[1].running_mean, pruned[1].running_var)] == [3, 3, 3]
    same(model, pruned, X)
    assert size(pruned) == pruned.report.parameters_after < pruned.report.parameters_before == size(model)
    assert pruned.report.held == {} and "(6, 5, 7, 3) became (3, 4, 6, 3)" in pruned.report.message
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    lb.lift(pruned, loss=lb.SquaredError(), example=X[:2])


def test_inner_channels_of_a_residual_net_are_removed_and_the_stream_is_kept():
    model, X = seeded(ResNet, 6, 2, 8, 8)
    with torch.no_grad():
        model.layers[0].conv1.weight[1] = 0.0
        model.layers[0].bn1.bias[1] = -9.0  # relu of a negative constant: 0, which passes zero padding
        model.layers[1].conv2.weight[:, [0, 3]] = 0.0  # two that are not read
        model.layers[1].conv2.weight[2] = 0.0  # a channel of the stream, which the stem still makes
    pruned = lb.prune(model, X[:2])
    assert pruned.layers[0].conv1.out_channels == pruned.layers[0].bn1.num_features == 3
    assert pruned.layers[1].conv1.out_channels == pruned.layers[1].conv2.in_channels == 2
    assert pruned.stem.out_channels == pruned.fc.in_features == pruned.layers[1].conv2.out_channels == 4
    same(model, pruned, X)


def test_a_channel_of_the_stream_is_removed_if_it_is_unread_or_zero():
    model, X = seeded(ResNet, 6, 2, 8, 8)
    with torch.no_grad():
        for conv in (model.layers[0].conv1, model.layers[1].conv1):
            conv.weight[:, 2] = 0.0
        model.fc.weight[:, 2] = 0.0
    pruned = lb.prune(model, X[:2])
    assert pruned.stem.out_channels == pruned.layers[0].conv2.out_channels == pruned.fc.in_features == 3
    assert pruned.layers[1].bn2.num_features == 3
    same(model, pruned, X)


def test_a_constant_that_does_not_pass_zero_padding_stays_and_is_named():
    model, X = seeded(ResNet, 6, 2, 8, 8)
    with torch.no_grad():
        model.layers[0].conv1.weight[1] = 0.0
        model.layers[0].bn1.weight[1], model.layers[0].bn1.bias[1] = 0.0, 1.5
    pruned = lb.prune(model, X[:2])
    assert pruned.layers[0].conv1.out_channels == 4
    assert "zero padding of model.layers.0.conv2" in pruned.report.held["model.layers.0.conv1"]
    assert "Dead units of model.layers.0.conv1 stay, because of the zero padding" in pruned.report.message
    same(model, pruned, X)


@pytest.mark.parametrize("name", ["dense block", "u-net"])
def test_concatenated_channels_find_their_columns(name):
    model, inputs = MODELS[name]()
    X = drawn(inputs, 6)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        layers[0].weight[1] = 0.0
        layers[0].bias[1] = 0.0  # relu and elu give 0, which passes zero padding
    pruned = lb.prune(model, X[:2])
    kept = [m for m in pruned.modules() if isinstance(m, nn.Conv2d)]
    assert kept[0].out_channels == layers[0].out_channels - 1
    same(model, pruned, X)


class Mixed(nn.Module):
    """What mixes units keeps those that it reads: a group norm, a grouped convolution, a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1, groups=2)
        self.twice, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = F.relu(self.b(F.relu(self.norm(self.a(x))))).mean((2, 3))
        return self.out(torch.tanh(self.twice(torch.tanh(self.twice(x)))))


def test_what_mixes_units_keeps_them_and_is_named():
    model, X = seeded(Mixed, 6, 2, 3, 3)
    with torch.no_grad():
        model.a.weight[1] = model.b.weight[2] = model.twice.weight[3] = 0.0
    pruned = lb.prune(model, X[:2])
    assert size(pruned) == size(model) and pruned.report.held == {"model.a": "model.norm (GroupNorm)"}
    same(model, pruned, X)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_pruning_changes_the_function_of_no_model(name):
    """Every architecture, with some zero rows: all units that can be removed are, and the output is the same."""
    model, inputs = MODELS[name]()
    X = drawn(inputs, 6)
    with torch.no_grad():
        for number, module in enumerate(m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)):
            module.weight[number % len(module.weight)] = 0.0
    pruned = lb.prune(model.eval(), inputs)
    same(model, pruned, X)
    assert size(pruned) <= size(model)


class Counts(nn.Module):
    """A model whose forward method reads the width of a layer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) / self.a.out_features


def test_a_forward_that_reads_widths_is_refused():
    model, X = seeded(Counts, 6, 3)
    with torch.no_grad():
        model.a.weight[1] = 0.0
    with pytest.raises(UnsupportedModuleError, match="its forward reads the widths of its layers"):
        lb.prune(model, X[:2])


def test_a_model_that_cannot_be_traced_is_refused_by_name():
    class Branch(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(UnsupportedModuleError, match="control flow"):
        lb.prune(Branch(3, 3), torch.ones(2, 3))
