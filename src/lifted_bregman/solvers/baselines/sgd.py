"""Stochastic gradient descent with back-propagation (SGD-BP): eq. 20."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman.activations._base import positive
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.nested import trained_parameters
from lifted_bregman.solvers._interface import Batch, Solver
from lifted_bregman.solvers.baselines._backpropagation import (
    BackpropState,
    Normalisation,
    backpropagate,
    require_differentiable,
    require_normalisation,
)


@dataclass
class SGDState(BackpropState):
    """The velocity of each trained parameter, from layer 1 up; none without momentum."""

    velocity: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class SGD(Solver[SGDState]):
    """min over Θ of the nested objective F by gradient steps on batches, with heavy-ball momentum.

        v ← μ v + ∇F_B(Θ)        Θ ← Θ - η v

    Differentiates activations.  With μ = 0 this is eq. 20.  The published rates do not say whether they refer to the
    mean or the sum over the batch, which differ by the factor |B|: the normalisation is stored with the rate.

    learning_rate  η > 0
    momentum       0 <= μ < 1
    normalisation  what η refers to: `Normalisation.MEAN` over the batch or `Normalisation.SUM`
    """

    minibatch: ClassVar[bool] = True
    weighted: ClassVar[bool] = True

    learning_rate: float
    momentum: float = 0.0
    normalisation: Normalisation = Normalisation.MEAN

    def __post_init__(self) -> None:
        positive(self.learning_rate, "learning_rate")
        if not 0.0 <= self.momentum < 1.0:
            raise SettingError(f"momentum is {self.momentum!r}; it must be in [0, 1).")
        require_normalisation(self.normalisation)

    def require(self, problem: LiftedProblem) -> None:
        require_differentiable(self, problem)

    def init(self, problem: LiftedProblem, batch: Batch) -> SGDState:
        if self.momentum == 0.0:
            return SGDState()
        return SGDState(velocity=[torch.zeros_like(p.detach()) for p in trained_parameters(problem)])

    def step(self, problem: LiftedProblem, state: SGDState, batch: Batch) -> SGDState:
        parameters = trained_parameters(problem)
        direction = backpropagate(problem, state, batch, parameters, self.normalisation)
        if self.momentum != 0.0:
            torch._foreach_mul_(state.velocity, self.momentum)
            torch._foreach_add_(state.velocity, direction)
            direction = state.velocity
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=-self.learning_rate)
        state.steps += 1
        return state
