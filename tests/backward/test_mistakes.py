"""Wrong input: one sentence each, before any work where that is possible."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lifted_bregman as lb
from lifted_bregman.errors import (
    ActivationDerivativeError,
    CompatibilityError,
    SettingError,
    UnsupportedModuleError,
)
from tests.backward.nets import Residual, batch, chain, gradients

NET = chain(nn.ReLU(), dtype=torch.float32)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"nudge": 0.0}, SettingError, "nudge is 0.0"),
        ({"nudge": -1}, SettingError, "nudge is -1"),
        ({"nudge": float("nan")}, SettingError, "nudge is nan"),
        ({"nudge": float("inf")}, SettingError, "nudge is inf"),
        ({"nudge": "much"}, SettingError, "nudge is 'much'"),
        ({"reduction": "none"}, SettingError, "take its mean or sum"),
        ({"reduction": "batchmean"}, SettingError, "'mean' or 'sum'"),
        ({"terms_per_sample": 0}, SettingError, "terms_per_sample is 0"),
        ({"loss_scale": -2.0}, SettingError, "loss_scale is -2.0"),
        ({"leave": ["9"]}, SettingError, "leave names '9'"),
        ({"leave": "1"}, SettingError, "leave names '1'"),
        ({"penalties": {"7": lb.penalties.L1(0.1)}}, SettingError, "penalties names '7'"),
        ({"penalties": {"1": 0.1}}, SettingError, "must be a penalty"),
        ({"penalties": {"0": lb.penalties.L1(0.1)}, "example": torch.randn(2, 5)}, SettingError, "the names are 1"),
        ({"penalties": {"1": lb.penalties.Nuclear(0.1)}, "example": torch.randn(2, 5)}, CompatibilityError, "matrices"),
    ],
)
def test_settings_are_checked_and_the_model_stays_plain(options, kind, words):
    model = copy.deepcopy(NET)
    with pytest.raises(kind, match=words):
        lb.lifted_backward(model, **options)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_model_without_proximal_activation():
    with pytest.raises(UnsupportedModuleError, match="nothing to lift"):
        lb.lifted_backward(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))

    class Selu(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(5, 3)

        def forward(self, x):
            return F.selu(self.f(x))

    with pytest.raises(
        UnsupportedModuleError, match=r"nothing to lift.* It has selu at model, selu at test_mistakes.py"
    ):
        lb.lifted_backward(Selu(), example=torch.randn(2, 5))
    model = lb.lifted_backward(Selu())
    with pytest.raises(UnsupportedModuleError, match="nothing to lift"):
        model(torch.randn(2, 5))


@pytest.mark.parametrize("thing", [lambda x: x, nn.ReLU, None], ids=["function", "class", "None"])
def test_only_modules_are_accepted(thing):
    with pytest.raises(UnsupportedModuleError, match=r"it takes an nn\.Module"):
        lb.lifted_backward(thing)


def test_a_second_lifted_backward_is_refused():
    model = lb.lifted_backward(copy.deepcopy(NET))
    with pytest.raises(CompatibilityError, match=r"already: call lb\.plain_backward first"):
        lb.lifted_backward(model)
    with pytest.raises(CompatibilityError, match="its module 0 has"):
        lb.lifted_backward(nn.Sequential(model, nn.ReLU()))
    lb.lifted_backward(lb.plain_backward(model), nudge=0.1)


def test_report_and_plain_backward_refuse_a_model_that_is_not_lifted():
    for function in (lb.plain_backward, lb.backward_report):
        with pytest.raises(CompatibilityError, match=r"call lb.lifted_backward\(model\) first"):
            function(copy.deepcopy(NET))
        with pytest.raises(CompatibilityError, match="a function that"):
            function(lambda x: x)
        with pytest.raises(CompatibilityError, match=r"give it the module inside, model\.0"):
            function(nn.Sequential(lb.lifted_backward(copy.deepcopy(NET))))


def test_wrapped_models():
    with pytest.raises(CompatibilityError, match="compiled model"):
        lb.lifted_backward(torch.compile(copy.deepcopy(NET), backend="eager"))
    with pytest.raises(CompatibilityError, match="DataParallel"):
        lb.lifted_backward(nn.DataParallel(copy.deepcopy(NET)))


class ModifiesInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        z = self.a(x)
        h = torch.tanh(z)
        z += 1.0
        return self.b(h)


def test_an_input_that_is_modified_in_place_after_the_activation_is_named():
    model = lb.lifted_backward(ModifiesInput())
    x, y = batch(dtype=torch.float32)
    with pytest.raises(CompatibilityError, match=r"model, tanh at test_mistakes.py:\d+: the input .* in place"):
        F.cross_entropy(model(x), y).backward()


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b, self.reentrant, self.on = nn.Linear(5, 5), nn.Linear(5, 3), reentrant, True

    def forward(self, x):
        def function(h):
            return torch.tanh(self.a(h))

        h = torch.relu(self.a(x))
        return self.b(checkpoint(function, h, use_reentrant=self.reentrant) if self.on else function(h))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_of_a_function_with_an_activation(reentrant):
    model = lb.lifted_backward(Checkpointed(reentrant))
    x, y = batch(dtype=torch.float32)
    with pytest.raises(CompatibilityError, match=r"test_mistakes.py:\d+: .*give checkpoint a module"):
        gradients(model, x, y)
    later = lb.lifted_backward(Checkpointed(reentrant))
    later.on = False
    gradients(later, x, y)
    later.on = True
    with pytest.raises((CompatibilityError, torch.utils.checkpoint.CheckpointError)):
        gradients(later, x, y)


def test_second_derivatives():
    model = lb.lifted_backward(Residual())
    x, y = batch(dtype=torch.float32)
    first = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()), create_graph=True)
    with pytest.raises(ActivationDerivativeError, match="plain_backward"):
        sum(g.square().sum() for g in first).backward()


def test_a_model_that_is_compiled_before_its_activations_are_counted():
    torch._dynamo.reset()
    model = torch.compile(lb.lifted_backward(copy.deepcopy(NET)), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="give lifted_backward an example input"):
        model(torch.randn(2, 5))
