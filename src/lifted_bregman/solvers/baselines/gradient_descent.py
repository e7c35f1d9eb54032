"""Gradient descent with back-propagation (GD-BP): Section 2.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from lifted_bregman._arguments import positive
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.nested import trained_parameters
from lifted_bregman.solvers.baselines._backpropagation import (
    BackpropState,
    Normalisation,
    backpropagate,
    require_differentiable,
    require_normalisation,
)
from lifted_bregman.solvers.interface import Batch, Solver


@dataclass(frozen=True)
class GradientDescent(Solver[BackpropState]):
    """min over Θ of the nested objective F(Θ) by Θ ← Θ - η ∇F(Θ) on the whole set.

        F(Θ) = (1/s) Σ_i [ ℓ(y, N(x, Θ)) + Σ_l R_l(x_l) ] + Σ_l P_l(Θ_l)

    Differentiates activations.  F decreases for η below 2/L where F has an L-Lipschitz gradient; with kinks (ReLU, l1)
    it is a subgradient method, without a guarantee for constant η.

    learning_rate  η > 0
    normalisation  what η refers to: `Normalisation.MEAN`, as above, or `Normalisation.SUM`, for s F

    Example:
        >>> solver = lb.baselines.GradientDescent(learning_rate=1.0)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=30)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    weighted: ClassVar[bool] = True
    autocast: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    learning_rate: float
    normalisation: Normalisation = Normalisation.MEAN

    def __post_init__(self) -> None:
        positive(self.learning_rate, "learning_rate")
        require_normalisation(self.normalisation)

    def require(self, problem: LiftedProblem) -> None:
        require_differentiable(self, problem)

    def init(self, problem: LiftedProblem, batch: Batch) -> BackpropState:
        return BackpropState()

    def step(self, problem: LiftedProblem, state: BackpropState, batch: Batch) -> BackpropState:
        parameters = trained_parameters(problem)
        gradient = backpropagate(problem, state, batch, parameters, self.normalisation)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradient, alpha=-self.learning_rate)
        state.steps += 1
        return state
