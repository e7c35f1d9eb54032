"""Adam with back-propagation, by torch's own fused kernel where there is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.adam import adam

from lifted_bregman.activations._base import positive
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.nested import trained_parameters
from lifted_bregman.solvers._interface import Batch, Solver
from lifted_bregman.solvers.baselines._backpropagation import (
    BackpropState,
    backpropagate,
    fusible,
    require_differentiable,
)


@dataclass
class AdamState(BackpropState):
    """Moments and counters of each trained parameter, from layer 1 up."""

    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Adam(Solver[AdamState]):
    """min over Θ of the nested objective F by Adam on batches; the same iterates as `torch.optim.Adam`.

        m ← β₁ m + (1 - β₁) g     v ← β₂ v + (1 - β₂) g²     Θ ← Θ - η m̂ / (√v̂ + ε),     g = ∇F_B(Θ)

    with m̂ = m/(1 - β₁^k) and v̂ = v/(1 - β₂^k) (Kingma and Ba 2015).  Differentiates activations.  g refers to the
    mean over the batch; a sum would change nothing but the role of ε.

    learning_rate  η > 0
    first_decay    0 <= β₁ < 1
    second_decay   0 <= β₂ < 1
    epsilon        ε > 0
    """

    minibatch: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    learning_rate: float = 1e-3
    first_decay: float = 0.9
    second_decay: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        positive(self.learning_rate, "learning_rate")
        positive(self.epsilon, "epsilon")
        for name in ("first_decay", "second_decay"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise SettingError(f"{name} is {getattr(self, name)!r}; it must be in [0, 1).")

    def require(self, problem: LiftedProblem) -> None:
        require_differentiable(self, problem)

    def init(self, problem: LiftedProblem, batch: Batch) -> AdamState:
        parameters = [p.detach() for p in trained_parameters(problem)]
        return AdamState(
            first=[torch.zeros_like(p) for p in parameters],
            second=[torch.zeros_like(p) for p in parameters],
            counts=[torch.zeros((), dtype=torch.float32, device=p.device) for p in parameters],
        )

    def step(self, problem: LiftedProblem, state: AdamState, batch: Batch) -> AdamState:
        parameters = trained_parameters(problem)
        gradient = backpropagate(problem, state, batch, parameters)
        fused = fusible(parameters, gradient, state.first, state.second)
        with torch.no_grad():
            adam(
                parameters,
                gradient,
                state.first,
                state.second,
                [],
                state.counts,
                foreach=not fused,
                fused=fused,
                amsgrad=False,
                beta1=self.first_decay,
                beta2=self.second_decay,
                lr=self.learning_rate,
                weight_decay=0.0,
                eps=self.epsilon,
                maximize=False,
            )
        state.steps += 1
        return state
