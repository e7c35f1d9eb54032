"""The Lipschitz constants that steps are made of, against singular values from LAPACK."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.problem.curvature import parameter_curvature, variable_curvature
from lifted_bregman.solvers._batch_memory import BatchMemory

WEIGHTS = (0.7, 2.5)  # λ_1, λ_2; λ_3 = 1 is the loss


@pytest.fixture
def case():
    torch.manual_seed(0)
    sizes = (5, 7, 4, 3)
    modules = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    problem = lb.lift(nn.Sequential(*modules[:-1]).double(), loss=lb.SquaredError(), weights=WEIGHTS)
    X, Y = torch.randn(9, 5, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    return problem, problem.point(problem.forward_state(X), X, Y)


def squared_norm(matrix):
    return float(torch.linalg.svdvals(matrix.detach())[0]) ** 2


@pytest.mark.parametrize("memory", [dict, lambda: BatchMemory({})], ids=["state", "batch"])
@pytest.mark.parametrize("upper", [True, False])
def test_curvatures_have_the_weights_of_their_layers(case, memory, upper):
    """λ_{l+1}‖W_{l+1}‖² for x_l and λ_l‖[X_{l-1} 1]‖²/s for Θ_l: never less, at most 2 % more."""
    problem, point = case
    weights = (*WEIGHTS, 1.0)
    for layer in (1, 2):
        expected = weights[layer] * squared_norm(problem.network[layer + 1].map.module.weight)
        found = variable_curvature(problem, point, layer, memory(), upper)
        assert expected * (1.0 - 1e-12) <= found <= 1.02 * expected
    for layer in (1, 2, 3):
        inputs = torch.cat((point.x[layer - 1], torch.ones(9, 1, dtype=torch.float64)), 1)
        expected = weights[layer - 1] * squared_norm(inputs) / 9
        found = parameter_curvature(problem, point, layer, memory(), upper)
        assert expected * (1.0 - 1e-12) <= found <= 1.02 * expected


def test_the_curvature_of_a_batch_follows_the_inputs(case):
    """It is computed anew when x_1 moves, and only then."""
    problem, point = case
    memory = BatchMemory({})
    for scale in (1.0, 3.0):
        point.set_variable(1, scale * point.x[1] + 0.5)
        inputs = torch.cat((point.x[1], torch.ones(9, 1, dtype=torch.float64)), 1)
        expected = WEIGHTS[1] * squared_norm(inputs) / 9
        for _ in range(2):
            found = parameter_curvature(problem, point, 2, memory, upper=False)
            assert expected * (1.0 - 1e-12) <= found <= 1.02 * expected
            memory[2]["Θ_2"] = [torch.zeros_like(part) for part in memory[2]["Θ_2"]]  # another product would give 0
        del memory[2]["Θ_2"]
