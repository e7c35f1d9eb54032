"""Scales that are tensors: proximal maps give what they give for the same number, without reading it."""

from __future__ import annotations

import math

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.penalties import L1, Bounds, GroupL2, NonNegative, Penalty
from lifted_bregman.problem.composite import composite_prox
from tests.cases import PARAMETER_PENALTIES, name

ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14}


class Written(Penalty):
    """A penalty by a user, whose scale is a number: R = ½‖x‖², with math on the scale."""

    def compute_value(self, x):
        return 0.5 * x.square().sum(-1)

    def compute_prox(self, x, scale):
        assert isinstance(scale, float)
        return x / (1.0 + math.exp(math.log(scale)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("penalty", [*PARAMETER_PENALTIES, Written()], ids=lambda p: type(p).__name__)
def test_the_proximal_map_of_a_penalty_is_that_of_the_number(penalty, dtype):
    torch.manual_seed(0)
    x = torch.randn(6, 8, dtype=dtype)
    for scale in (1e-3, 0.7, 3.0):
        found = penalty.prox(x, torch.tensor(scale, dtype=dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found, penalty.prox(x, scale), rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@pytest.mark.parametrize(
    "activation", [act.ReLU(), act.Identity(), act.Tanh(), act.Softplus(), act.Softmax()], ids=name
)
@pytest.mark.parametrize(
    "penalty", [L1(0.3), NonNegative(), Bounds(0.0, 0.8), lb.penalties.SquaredL2(0.7), GroupL2(0.4)]
)
def test_the_proximal_map_with_an_activation_is_that_of_the_number(activation, penalty):
    torch.manual_seed(1)
    v = torch.randn(5, 4, dtype=torch.float64)
    found = composite_prox(activation, penalty, v, 1.0, torch.tensor(0.6, dtype=torch.float64))
    torch.testing.assert_close(found, composite_prox(activation, penalty, v, 1.0, 0.6), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("penalised", [False, True])
def test_a_step_towards_anchors_is_that_of_the_number(penalised):
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: L1(0.2)} if penalised else None)
    centre = {
        layer: {key: torch.randn_like(p) for key, p in problem.network[layer].map.parameters.items()}
        for layer in (1, 2)
    }
    view = problem.anchored(centre, 0.5).anchored(centre, 0.3)
    values = {key: p.detach() for key, p in problem.network[1].map.parameters.items()}
    found = view.parameter_prox(1, values, torch.tensor(0.9, dtype=torch.float64))
    for key, value in view.parameter_prox(1, values, 0.9).items():
        torch.testing.assert_close(found[key], value, rtol=1e-14, atol=1e-14)
