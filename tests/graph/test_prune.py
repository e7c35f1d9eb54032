"""`prune`: the same function from fewer units, and a sentence when that is not possible."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.errors import UnsupportedModuleError
from lifted_bregman.graph.prune import prune

F64 = torch.float64


def network(*activations, widths=(5, 7, 6, 8, 3), bias=True, seed=0):
    torch.manual_seed(seed)
    modules = []
    for i, (a, b) in enumerate(pairwise(widths)):
        modules.append(nn.Linear(a, b, bias=bias, dtype=F64))
        if i < len(activations):
            modules.append(activations[i])
    return nn.Sequential(*modules)


def linears(model):
    return [m for m in model if isinstance(m, nn.Linear)]


def same(model, pruned, shape=(40, 5)):
    X = 2.0 * torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=F64)
    with torch.no_grad():
        torch.testing.assert_close(pruned(X), model(X), rtol=0, atol=1e-12)


ACTIVATIONS = [
    (nn.ReLU(), nn.Tanh(), nn.Sigmoid()),
    (nn.Softplus(), nn.ELU(0.5), nn.LeakyReLU(0.2)),
    (nn.Softshrink(0.1), nn.Hardtanh(-0.3, 0.7), nn.Softsign()),
    (lb.activations.Arctan().as_module(), nn.LogSigmoid(), nn.CELU(0.7)),
]


@pytest.mark.parametrize("activations", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("bias", [True, False])
def test_dead_units_are_removed_and_the_function_is_kept(activations, bias):
    model = network(*activations, bias=bias)
    first, second, third, last = linears(model)
    with torch.no_grad():
        first.weight[[1, 4]] = 0.0  # constant outputs σ(b)
        second.weight[2] = 0.0
        third.weight[:, 5] = 0.0  # unit 5 of layer 2 is not read
        last.weight[:, [0, 7]] = 0.0
    pruned = prune(model)
    assert [m.out_features for m in linears(pruned)] == [5, 4, 6, 3]
    assert [m.in_features for m in linears(pruned)] == [5, 5, 4, 6]
    same(model, pruned)
    report = pruned.report
    assert report.widths_before == (7, 6, 8) and report.widths_after == (5, 4, 6)
    assert report.parameters_after == sum(p.numel() for p in pruned.parameters()) < report.parameters_before
    assert "(7, 6, 8) became (5, 4, 6)" in report.message
    assert report.zeros_after < report.zeros_before


def test_a_large_bias_is_activated_by_the_module_itself():
    model = network(nn.Softplus(), widths=(5, 4, 2))  # nn.Softplus is linear beyond 20: 2e-9 away from log(1 + e^20)
    with torch.no_grad():
        linears(model)[0].weight[1] = 0.0
        linears(model)[0].bias[1] = 20.5
        linears(model)[1].weight[:, 1] = 50.0
    X = torch.zeros(1, 5, dtype=F64)
    with torch.no_grad():
        torch.testing.assert_close(prune(model)(X), model(X), rtol=1e-14, atol=0)


def test_a_missing_bias_is_made_only_where_it_is_needed():
    model = network(nn.Sigmoid(), nn.Tanh(), widths=(5, 4, 3, 2), bias=False)
    with torch.no_grad():
        linears(model)[0].weight[2] = 0.0  # σ(0) = ½ must be added to layer 2
        linears(model)[1].weight[1] = 0.0  # tanh(½ w) would be constant, but w = 0: nothing to add to layer 3
        linears(model)[1].weight[0, 2] = 0.0
    pruned = prune(model)
    assert [m.bias is not None for m in linears(pruned)] == [False, True, False]
    same(model, pruned)


def test_units_that_become_dead_are_removed_too():
    model = network(nn.Tanh(), nn.Sigmoid(), nn.ReLU())
    first, second, third, last = linears(model)
    with torch.no_grad():
        first.weight[0] = 0.0  # unit 0 of layer 1 is constant
        second.weight[1] = 0.0
        second.weight[1, 0] = 3.0  # unit 1 of layer 2 reads only that one: constant too
        third.weight[4] = 0.0
        third.weight[4, 1] = -2.0  # and so on upwards
        last.weight[:, 6] = 0.0  # unit 6 of layer 3 is not read
        third.weight[:, 5] = 0.0
        third.weight[6, 5] = 1.0  # unit 5 of layer 2 is read only by that one
        second.weight[:, 3] = 0.0
        second.weight[5, 3] = 1.0  # and so on downwards
    pruned = prune(model)
    assert pruned.report.widths_after == (5, 4, 6)
    same(model, pruned)


def test_a_layer_keeps_one_unit():
    model = network(nn.Tanh(), nn.Sigmoid(), widths=(5, 4, 3, 2))
    with torch.no_grad():
        linears(model)[1].weight.zero_()
    pruned = prune(model)
    assert pruned.report.widths_after == (1, 1)
    same(model, pruned)


def test_the_report_says_that_unstructured_zeros_remove_no_unit():
    model = network(nn.ReLU(), nn.Tanh(), nn.Sigmoid())
    with torch.no_grad():
        for linear in linears(model):
            linear.weight.copy_(torch.eye(*linear.weight.shape, dtype=F64))
            linear.weight[:, 0] = 1.0
            linear.weight[0] = 1.0
    pruned = prune(model)
    assert pruned.report.widths_before == pruned.report.widths_after
    zeros = sum(int((m.weight == 0).sum()) for m in linears(model)) / sum(m.weight.numel() for m in linears(model))
    assert pruned.report.zeros_after == pytest.approx(zeros)
    assert f"{100 * zeros:.1f} % of the weights are zero" in pruned.report.message
    assert "unstructured" in pruned.report.message and "GroupL2" in pruned.report.message
    same(model, pruned)


def test_a_model_without_zeros_is_copied():
    model = network(nn.ReLU(), widths=(5, 4, 3))
    pruned = prune(model)
    assert pruned.report.message == "Nothing was removed: no weight is zero."
    for old, new in zip(model.parameters(), pruned.parameters(), strict=True):
        assert torch.equal(old, new) and old.data_ptr() != new.data_ptr()


def test_the_given_model_is_unchanged_and_shares_no_memory_with_the_result():
    model = network(nn.ReLU(), nn.Tanh(), nn.ELU())
    with torch.no_grad():
        linears(model)[0].weight[3] = 0.0
    linears(model)[1].bias.requires_grad_(False)
    model.eval()
    before = copy.deepcopy(model.state_dict())
    pruned = prune(model)
    with torch.no_grad():
        for parameter in pruned.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not pruned.training and not linears(pruned)[1].bias.requires_grad
    assert isinstance(pruned, nn.Sequential)
    lb.lift(pruned, loss=lb.SquaredError())  # it can be trained again
    assert copy.deepcopy(pruned).report == pruned.report
    assert len(pruned[:2]) == 2  # a slice is an nn.Sequential like any other


def test_nested_models_flattening_and_a_joint_final_activation():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Sequential(nn.Linear(6, 5), nn.Identity(), nn.ReLU()),
        nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)),
        nn.Softmax(dim=1),
    ).double()
    with torch.no_grad():
        model[1][0].weight[2] = 0.0
        model[2][1].weight[:, 1] = 0.0
    pruned = prune(model)
    assert pruned.report.widths_after == (4, 3)
    same(model, pruned, shape=(20, 2, 3))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(dim=1), nn.Linear(4, 2)), "couples the units"),
        (
            nn.Sequential(nn.Linear(3, 4), lb.activations.BallProjection(1.0).as_module(), nn.Linear(4, 2)),
            "couples the units",
        ),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)), "not dense"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)), "one input for each unit"),
        (nn.Sequential(nn.Linear(3, 4), nn.SELU(), nn.Linear(4, 2)), "1-Lipschitz"),
        (nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), r"model\.1 \(GELU\).*not dense"),
        (nn.Linear(3, 4), "nn.Sequential"),
    ],
    ids=["softmax", "ball", "convolution", "flattened positions", "no proximal map", "product", "no sequence"],
)
def test_what_cannot_be_pruned_is_refused_with_the_reason(model, reason):
    with pytest.raises(UnsupportedModuleError, match=reason):
        prune(model)


def test_a_pruned_model_of_one_layer_is_the_model():
    model = network(widths=(5, 3))
    assert prune(model).report.widths_after == ()
    same(model, prune(model))
