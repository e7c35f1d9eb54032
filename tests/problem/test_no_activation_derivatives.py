"""A lifted training step needs no derivative of any activation; back-propagation, the control, does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.errors import ActivationDerivativeError


def dense() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 5),
        nn.Tanh(),
        nn.Linear(5, 4),
        act.Arctan().as_module(),
        nn.Linear(4, 3),
        nn.Softshrink(0.1),
        nn.Linear(3, 2),
    )


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        lb.Map(nn.Linear(6, 4)),
        nn.Sigmoid(),
        nn.Linear(4, 2),
    )


def proximal_gradient_step(
    problem: lb.LiftedProblem, state: lb.LiftedState, X: torch.Tensor, Y: torch.Tensor
) -> lb.LiftedState:
    """Eq. 17: a gradient step in every Θ_l and a proximal gradient step in every x_l, simultaneously."""
    point = problem.evaluate(state, X, Y)
    gradients, t = problem.gradients(point), 0.02
    moved = [
        problem.variable_prox(layer, state[layer] - t * gradients.variables[layer], t)
        for layer in range(1, problem.depth)
    ]
    with torch.no_grad():
        for layer, by_name in gradients.parameters.items():
            for name, gradient in by_name.items():
                problem.network[layer].map.parameters[name].sub_(gradient, alpha=t)
    return lb.LiftedState(moved)


@pytest.mark.parametrize("make", [dense, convolutional])
def test_a_training_step_differentiates_no_activation(make):
    torch.manual_seed(0)
    model = make().double()
    X, Y = torch.randn(7, 6, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    problem = lb.lift(model, loss=lb.SquaredError())
    state = problem.forward_state(X)
    before = float(problem.energy(state, X, Y))
    with lb.forbid_activation_derivatives():
        for _ in range(5):
            state = proximal_gradient_step(problem, state, X, Y)
        after = float(problem.energy(state, X, Y))
        with pytest.raises(ActivationDerivativeError):  # the control
            lb.SquaredError()(model(X), Y).backward()
    assert after < before


class Bent(nn.Module):
    """A module whose forward method applies an activation that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


def mixed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU())


@pytest.mark.parametrize(
    ("make", "method", "holds"),
    [
        (mixed, "pull_back_input", r"model\.0\.module\.1 \(ReLU\)"),
        (mixed, "pull_back_parameters", r"model\.0\.module\.1 \(ReLU\)"),
        (mixed, "input_curvature", r"model\.0\.module\.1 \(ReLU\)"),
        (mixed, "parameter_curvature", r"model\.0\.module\.1 \(ReLU\)"),
        (Bent, "pull_back_input", "an activation"),
    ],
)
def test_an_activation_in_a_map_is_named_where_it_is_differentiated(make, method, holds):
    model = nn.Sequential(lb.Map(make()), nn.Sigmoid(), nn.Linear(5, 2)).double()
    f = lb.lift(model, loss=lb.SquaredError()).network[1].map
    x = torch.randn(4, 6, dtype=torch.float64)
    arguments = (x, f.apply(x)) if method.startswith("pull_back") else (x,)
    sentence = rf"model\.0 \(Map\) holds {holds}.*take the activation out of the Map"
    with lb.forbid_activation_derivatives(), pytest.raises(ActivationDerivativeError, match=sentence):
        getattr(f, method)(*arguments)
