"""Implicit stochastic gradient descent with back-propagation (ISGD-BP): eq. 22."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman._arguments import positive, require_count, require_not_negative
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


@dataclass
class ImplicitBackpropState(BackpropState):
    """Θ^k, the parameters at the start of the present batch; every step overwrites the copy."""

    anchor: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class ImplicitBackprop(Solver[ImplicitBackpropState]):
    """min over Θ of the nested objective F by implicit steps on batches, each solved by N gradient steps.

        Θ^{k+1} ≈ argmin_Θ F_B(Θ) + (τ/2)‖Θ - Θ^k‖²          Θ ← Θ - η ( ∇F_B(Θ) + τ (Θ - Θ^k) ),  N times

    τ is a weight, as in Algorithm 1 and `ImplicitSGD`; eq. 22 prints its reciprocal, a step size.  Differentiates
    activations.  With N = 1 it is `SGD`.  As N grows it converges to the implicit step where τ makes the sub-problem
    strongly convex and η < 2/(L + τ).  Implicit steps for stochastic gradients: Toulis and Airoldi 2017.

    prox_weight    τ >= 0
    inner_steps    N >= 1
    learning_rate  η > 0
    normalisation  whether F_B is the mean over the batch or |B| times that; τ is not changed by it

    Example:
        >>> solver = lb.baselines.ImplicitBackprop(prox_weight=1.0, inner_steps=5, learning_rate=0.5)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=10, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    minibatch: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    prox_weight: float
    inner_steps: int
    learning_rate: float
    normalisation: Normalisation = Normalisation.MEAN

    def __post_init__(self) -> None:
        require_not_negative(self.prox_weight, "prox_weight")
        require_count(self.inner_steps, "inner_steps")
        positive(self.learning_rate, "learning_rate")
        require_normalisation(self.normalisation)

    def require(self, problem: LiftedProblem) -> None:
        require_differentiable(self, problem)

    def init(self, problem: LiftedProblem, batch: Batch) -> ImplicitBackpropState:
        return ImplicitBackpropState(anchor=[p.detach().clone() for p in trained_parameters(problem)])

    def step(self, problem: LiftedProblem, state: ImplicitBackpropState, batch: Batch) -> ImplicitBackpropState:
        parameters = trained_parameters(problem)
        eta, tau = self.learning_rate, self.prox_weight
        with torch.no_grad():
            torch._foreach_copy_(state.anchor, [p.detach() for p in parameters])
            for n in range(self.inner_steps):
                gradient = backpropagate(problem, state, batch, parameters, self.normalisation)
                if n > 0:  # before, Θ = Θ^k
                    torch._foreach_lerp_(parameters, state.anchor, eta * tau)
                torch._foreach_add_(parameters, gradient, alpha=-eta)
        state.steps += 1
        return state
