"""Stochastic gradient descent with back-propagation (SGD-BP), by torch's own kernels: eq. 20."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.nested import trained_parameters
from lifted_bregman.solvers.baselines._backpropagation import (
    BackpropState,
    Normalisation,
    backpropagate,
    clip,
    fusible,
    rate_of_step,
    require_decay_and_clip,
    require_differentiable,
    require_normalisation,
)
from lifted_bregman.solvers.interface import Batch, Solver, added, shown
from lifted_bregman.solvers.schedules import Schedule, as_schedule


@dataclass
class SGDState(BackpropState):
    """The velocity of each trained parameter, from layer 1 up; none without momentum."""

    velocity: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class SGD(Solver[SGDState]):
    """min over Θ of the nested objective F by gradient steps on batches; the same iterates as `torch.optim.SGD`.

        v ← μ v + ∇F_B(Θ) + δ Θ        Θ ← Θ - η v

    Differentiates activations.  With μ = 0 this is eq. 20, else heavy-ball momentum.  The published rates do not say
    whether they refer to the mean or the sum over the batch, which differ by the factor |B|: the normalisation is
    stored with the rate.

    learning_rate  η > 0, or a schedule of the step such as `CosineDecay`
    momentum       0 <= μ < 1
    normalisation  what η refers to: `Normalisation.MEAN` over the batch or `Normalisation.SUM`
    weight_decay   δ >= 0, of all parameters, biases too
    clip_norm      c > 0: a longer ∇F_B, in its normalisation, is shortened to this norm over all parameters; None for
                   no bound

    Example:
        >>> solver = lb.baselines.SGD(learning_rate=0.5)
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
    autocast: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    learning_rate: float | Schedule
    momentum: float = 0.0
    normalisation: Normalisation = Normalisation.MEAN
    weight_decay: float = added(0.0)
    clip_norm: float | None = added(None)

    def __post_init__(self) -> None:
        as_schedule(self.learning_rate, "learning_rate")
        if not 0.0 <= self.momentum < 1.0:
            raise SettingError(f"momentum is {self.momentum!r}; it must be in [0, 1).")
        require_normalisation(self.normalisation)
        require_decay_and_clip(self.weight_decay, self.clip_norm)

    def __repr__(self) -> str:
        return shown(self)

    def require(self, problem: LiftedProblem) -> None:
        require_differentiable(self, problem)

    def init(self, problem: LiftedProblem, batch: Batch) -> SGDState:
        if self.momentum == 0.0:
            return SGDState()
        return SGDState(velocity=[torch.zeros_like(p.detach()) for p in trained_parameters(problem)])

    def step(self, problem: LiftedProblem, state: SGDState, batch: Batch) -> SGDState:
        parameters = trained_parameters(problem)
        gradient = backpropagate(problem, state, batch, parameters, self.normalisation)
        if self.clip_norm is not None:
            gradient = clip(state, self.clip_norm)
        rate = rate_of_step(self.learning_rate, state)
        with torch.no_grad():
            if self.momentum > 0.0:
                self._with_momentum(parameters, gradient, state.velocity, rate)
            else:
                if self.weight_decay > 0.0:
                    gradient = list(torch._foreach_add(gradient, parameters, alpha=self.weight_decay))
                torch._foreach_add_(parameters, gradient, alpha=-rate)
        state.steps += 1
        return state

    def _with_momentum(
        self, parameters: list[Tensor], gradient: list[Tensor], velocity: list[Tensor], rate: float
    ) -> None:
        """One pass over the memory in torch's fused kernel, where it can be used."""
        fused = fusible(parameters, gradient, velocity)
        sgd(
            parameters,
            gradient,
            [*velocity],
            foreach=not fused,
            fused=fused,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
