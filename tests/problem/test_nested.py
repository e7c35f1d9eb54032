"""Fast paths of the nested objective: cached activation modules, one kernel for squared errors, listed parameters."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.activations import Separable
from lifted_bregman.problem.nested import nested_objective, trained_parameters

F64 = torch.float64


@dataclass
class HalfReLU(Separable):
    """ReLU with slope ½; a dataclass that can change, and so has no hash."""

    slope: float = 0.5

    def compute_map(self, z):
        return self.slope * z.relu()

    def compute_prox(self, z, scale):
        return z.relu() / (1.0 + scale * (1.0 / self.slope - 1.0))

    def _psi(self, x):
        return 0.5 * (1.0 / self.slope - 1.0) * x.square()

    def _phi_star(self, z):
        return 0.5 * self.slope * z.relu().square()

    def _inside(self, x):
        return (x >= 0) & x.isfinite()


def network(*activations):
    torch.manual_seed(0)
    modules = []
    for width, activation in zip((4, 5), activations, strict=True):
        modules += [nn.Linear(3 if not modules else 4, width), activation.as_module()]
    return nn.Sequential(*modules, nn.Linear(5, 2)).double()


def data():
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(6, width, generator=generator, dtype=F64) for width in (3, 2))


@pytest.mark.parametrize(
    "activations",
    [
        (act.LeakyReLU(0.1), act.LeakyReLU(0.7)),  # of one kind, and not the same
        (act.LeakyReLU(0.7), act.LeakyReLU(0.1)),
        (HalfReLU(), HalfReLU(0.25)),
    ],
    ids=repr,
)
def test_each_activation_is_evaluated_with_its_own_settings(activations):
    model, (X, Y) = network(*activations), data()
    value = nested_objective(lb.lift(model, loss=lb.SquaredError()), X, Y)
    plain = 0.5 * (model(X) - Y).square().sum(1).mean()
    parameters = list(model.parameters())
    torch.testing.assert_close(value, plain, rtol=1e-14, atol=0.0)
    ours, theirs = torch.autograd.grad(value, parameters), torch.autograd.grad(plain, parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)


def test_a_changed_setting_of_an_activation_is_used():
    activation = HalfReLU()
    model, (X, Y) = network(activation, act.ReLU()), data()
    problem = lb.lift(model, loss=lb.SquaredError())
    before = nested_objective(problem, X, Y)
    activation.slope = 0.25
    after = nested_objective(problem, X, Y)
    torch.testing.assert_close(after, 0.5 * (model(X) - Y).square().sum(1).mean(), rtol=1e-14, atol=0.0)
    assert float((after - before).abs().detach()) > 1e-3


def test_penalties_on_parameters_can_be_left_out():
    model, (X, Y) = network(act.ReLU(), act.ReLU()), data()
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={2: lb.penalties.L1(0.3)})
    plain = 0.5 * (model(X) - Y).square().sum(1).mean()
    penalty = 0.3 * model[2].weight.abs().sum()
    torch.testing.assert_close(nested_objective(problem, X, Y, parameter_penalties=False), plain, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(nested_objective(problem, X, Y), plain + penalty, rtol=1e-14, atol=0.0)


def test_trained_parameters_follow_requires_grad():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    problem = lb.lift(model, loss=lb.SquaredError())

    def found():
        return [id(p) for p in trained_parameters(problem)]

    assert found() == [id(p) for p in model.parameters()]
    model[2].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    assert found() == [id(p) for p in (model[0].weight, model[2].bias, model[4].weight)]
    model[2].weight.requires_grad_(True)
    assert found() == [id(p) for p in (model[0].weight, model[2].weight, model[2].bias, model[4].weight)]
