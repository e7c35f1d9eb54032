"""Consistency, linear units and sparsity on examples made by hand."""

import math

import pytest
import torch
from torch import nn

import lifted_bregman as lb

from .networks import CASES, F64


@pytest.mark.parametrize("name", CASES)
def test_the_forward_state_is_consistent(name):
    case = CASES[name]()
    problem = case.problem()
    assert problem.consistency(problem.forward_state(case.X), case.X) == (0.0,) * (problem.depth - 1)


def two_layers():
    """x_1 = relu(x_0), x_2 = tanh(2 x_1), output x_2, for two features."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    for linear, factor in zip(model[::2], (1.0, 2.0, 1.0), strict=True):
        nn.init.zeros_(linear.bias)
        linear.weight.data.copy_(factor * torch.eye(2))
    return lb.lift(model, loss=lb.SquaredError())


def test_consistency_is_the_relative_gap_to_the_states_own_layer_below():
    X = torch.tensor([[3.0, -1.0], [0.0, 4.0]], dtype=F64)  # relu: (3, 0), (0, 4), norm 5
    x1 = torch.tensor([[3.0, 0.5], [0.0, 4.0]], dtype=F64)  # gap 0.5
    x2 = torch.tanh(2.0 * x1)  # consistent with x1, not with relu(X)
    first, second = two_layers().consistency(lb.LiftedState([x1, x2]), X)
    assert first == pytest.approx(0.1, rel=1e-14)
    assert second == 0.0


def test_consistency_is_relative_also_where_outputs_are_small():
    X = torch.tensor([[3e-3, -1.0], [0.0, 4e-3]], dtype=F64)
    x1 = torch.tensor([[3e-3, 0.5e-3], [0.0, 4e-3]], dtype=F64)
    first, _ = two_layers().consistency(lb.LiftedState([x1, torch.tanh(2.0 * x1)]), X)
    assert first == pytest.approx(0.1, rel=1e-12)


def test_consistency_is_zero_or_infinite_where_outputs_vanish():
    X = -torch.ones(2, 2, dtype=F64)
    zero = torch.zeros(2, 2, dtype=F64)
    problem = two_layers()
    assert problem.consistency(lb.LiftedState([zero, zero]), X) == (0.0, 0.0)
    assert problem.consistency(lb.LiftedState([zero + 1.0, torch.tanh(zero + 2.0)]), X) == (math.inf, 0.0)


def test_linear_units_by_hand():
    X = torch.tensor([[1.0, -1.0], [2.0, 3.0], [0.0, -2.0]], dtype=F64)
    relu, tanh = two_layers().linear_units(X)
    # z_1 >= 0 at (1, ., 2, 3, 0, .): 4 of 6 pairs; the first unit for every sample, the second not.
    assert relu.pairs == pytest.approx(100 * 4 / 6)
    assert relu.units == 50.0
    # tanh(z) = z only at z = 0: x_1 = relu(X) is 0 at 3 of 6 pairs; no unit for every sample.
    assert tanh.pairs == 50.0
    assert tanh.units == 0.0


def test_an_affine_network_is_all_linear():
    model = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(1.0), nn.Linear(4, 4), nn.Linear(4, 2)).double()
    found = lb.lift(model, loss=lb.SquaredError()).linear_units(torch.randn(7, 3, dtype=F64))
    assert [(layer.pairs, layer.units) for layer in found] == [(100.0, 100.0)] * 2


def test_linear_units_of_convolutions_count_every_place():
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(4, 1)).double()
    nn.init.ones_(model[0].weight)
    X = torch.tensor([[[[1.0, -1.0], [2.0, -3.0]]], [[[1.0, 1.0], [-2.0, -3.0]]]], dtype=F64)
    (found,) = lb.lift(model, loss=lb.SquaredError()).linear_units(X)
    assert (found.pairs, found.units) == (50.0, 25.0)


def test_sparsity_counts_exact_zeros():
    problem = two_layers()
    codes = torch.tensor([[0.0, -0.0], [1e-300, 2.0]], dtype=F64)
    assert problem.sparsity(codes) == 0.5
    assert problem.sparsity(lb.LiftedState([codes, torch.ones(2, 2, dtype=F64)]), 1) == 0.5
    assert problem.sparsity(lb.LiftedState([codes, torch.ones(2, 2, dtype=F64)]), 2) == 0.0
    with pytest.raises(lb.errors.SettingError, match="layer"):
        problem.sparsity(lb.LiftedState([codes, codes]))
    with pytest.raises(lb.errors.TensorError, match="without any numbers"):
        problem.sparsity(torch.zeros(0, 3))


def test_a_soft_threshold_makes_sparse_codes_and_layers_are_counted_from_one():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.Softshrink(1.0), nn.Linear(1, 1)).double()
    for linear in model[::2]:
        nn.init.ones_(linear.weight)
        nn.init.zeros_(linear.bias)
    problem = lb.lift(model, loss=lb.SquaredError())
    state = problem.forward_state(torch.tensor([[-1.0], [0.5], [0.9], [2.0]], dtype=F64))
    assert problem.sparsity(state, 1) == 0.25
    assert problem.sparsity(state, 2) == 0.75
