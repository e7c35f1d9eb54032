"""Penalties on weights act on one row for each unit, also where torch stores the inputs first."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.problem.nested import differentiable_parameter_penalty

F64 = torch.float64
CONVOLUTIONS = {
    "1d": (lambda: nn.ConvTranspose1d(3, 5, 2), (3, 4), 1),
    "2d": (lambda: nn.ConvTranspose2d(3, 5, (2, 3)), (3, 2, 3), 1),
    "3d": (lambda: nn.ConvTranspose3d(2, 3, 2), (2, 2, 2, 2), 1),
    "groups": (lambda: nn.ConvTranspose2d(4, 6, 2, groups=2), (4, 3, 3), 2),
    "by channel": (lambda: nn.ConvTranspose1d(3, 3, 2, groups=3), (3, 4), 3),
    "in a map": (lambda: lb.Map(nn.ConvTranspose2d(3, 5, 2)), (3, 3, 3), 1),
}


def lifted(name, penalty):
    torch.manual_seed(0)
    make, shape, groups = CONVOLUTIONS[name]
    model = nn.Sequential(make(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)).double()
    X = torch.randn(4, *shape, dtype=F64)
    model(X)
    convolution = model[0].module if isinstance(model[0], lb.Map) else model[0]
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalty})
    return problem, convolution, groups, X, torch.randn(4, 2, dtype=F64)


def of_units(W, groups):
    """The weights that end in each output channel, as torch documents the layout (inputs, outputs/groups, ...)."""
    inputs = len(W) // groups
    return [W[g * inputs : (g + 1) * inputs, o] for g in range(groups) for o in range(W.shape[1])]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_value_gradient_and_proximal_map_go_by_output_channel(name):
    problem, convolution, groups, X, Y = lifted(name, lb.penalties.GroupL2(0.7))
    W = convolution.weight.detach()
    units = of_units(W, groups)
    assert len(units) == convolution.out_channels

    expected = 0.7 * sum(float(unit.norm()) for unit in units)
    plain = lb.lift(problem.model, loss=lb.SquaredError())
    assert float(problem.objective(X, Y) - plain.objective(X, Y)) == pytest.approx(expected, rel=1e-12)

    total = differentiable_parameter_penalty(problem)
    assert float(total.detach()) == pytest.approx(expected, rel=1e-12)
    (gradient,) = torch.autograd.grad(total, [convolution.weight])
    for unit, g in zip(units, of_units(gradient, groups), strict=True):
        torch.testing.assert_close(g, 0.7 * unit / unit.norm(), rtol=1e-12, atol=0)

    shrunk = problem.parameter_prox(1, {"weight": W}, 1.0)["weight"]
    for unit, u in zip(units, of_units(shrunk, groups), strict=True):
        torch.testing.assert_close(u, unit * max(0.0, 1.0 - 0.7 / float(unit.norm())), rtol=1e-12, atol=1e-15)
    assert 0 < sum(not u.any() for u in of_units(shrunk, groups))


SOLVERS = [
    solvers.ProximalGradient(),
    solvers.GramSweep(),
    solvers.CoordinateDescent(),
    solvers.TargetedPenalties(
        solvers.ProximalGradient(), {1: solvers.TargetSparsity(0.4, lb.penalties.GroupL2, start=0.3)}
    ),
]
ITERATIVE = [
    solvers.LinBreg(0.1, lb.penalties.GroupL2(0.5)),
    solvers.LinBreg(0.1, {1: solvers.TargetSparsity(0.4, lb.penalties.GroupL2)}),
    solvers.BregmanIterations({1: lb.penalties.GroupL2(0.5)}),
]


@pytest.mark.parametrize("solver", SOLVERS + ITERATIVE, ids=lambda solver: type(solver).__name__)
def test_zeros_are_whole_output_channels(solver):
    problem, convolution, groups, X, Y = lifted("groups", lb.penalties.GroupL2(0.3))
    if solver in ITERATIVE:
        problem = lb.lift(problem.model, loss=lb.SquaredError())
        solvers.sparse_start(problem, 0.5, rows=True)
        assert sum(not unit.any() for unit in of_units(convolution.weight, groups)) == 3
    lb.fit(problem, (X, Y), solver=solver, epochs=40)
    zeros = [int((unit == 0.0).sum()) for unit in of_units(convolution.weight.detach(), groups)]
    assert set(zeros) <= {0, units_size(convolution)} and max(zeros) > 0


def units_size(convolution):
    return convolution.weight.numel() // convolution.out_channels
