"""Moments of the gradient for Adam and AdamW, and a step by torch's fused kernel where it can be used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from lifted_bregman._arguments import positive
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.nested import trained_parameters
from lifted_bregman.solvers.baselines._backpropagation import (
    BackpropState,
    backpropagate,
    clip,
    fusible,
    rate_of_step,
    require_decay_and_clip,
)
from lifted_bregman.solvers.interface import Batch
from lifted_bregman.solvers.schedules import Schedule, as_schedule


@dataclass
class AdamState(BackpropState):
    """Moments and counters of each trained parameter, from layer 1 up."""

    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)


class MomentSettings(Protocol):
    """The settings of Adam and AdamW."""

    @property
    def learning_rate(self) -> float | Schedule: ...
    @property
    def first_decay(self) -> float: ...
    @property
    def second_decay(self) -> float: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip_norm(self) -> float | None: ...


def require_moment_settings(settings: MomentSettings) -> None:
    """An error unless each setting is in its range."""
    as_schedule(settings.learning_rate, "learning_rate")
    positive(settings.epsilon, "epsilon")
    for name in ("first_decay", "second_decay"):
        if not 0.0 <= getattr(settings, name) < 1.0:
            raise SettingError(f"{name} is {getattr(settings, name)!r}; it must be in [0, 1).")
    require_decay_and_clip(settings.weight_decay, settings.clip_norm)


def initial_moments(problem: LiftedProblem) -> AdamState:
    """Moments 0 for each trained parameter."""
    parameters = [p.detach() for p in trained_parameters(problem)]
    return AdamState(
        first=[torch.zeros_like(p) for p in parameters],
        second=[torch.zeros_like(p) for p in parameters],
        counts=[torch.zeros((), dtype=torch.float32, device=p.device) for p in parameters],
    )


def moment_step(
    settings: MomentSettings, problem: LiftedProblem, state: AdamState, batch: Batch, decoupled: bool
) -> AdamState:
    """One step; weight decay shrinks the parameters if it is `decoupled`, else it is part of the gradient."""
    parameters = trained_parameters(problem)
    gradient = backpropagate(problem, state, batch, parameters)
    if settings.clip_norm is not None:
        gradient = clip(state, settings.clip_norm)
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
            beta1=settings.first_decay,
            beta2=settings.second_decay,
            lr=rate_of_step(settings.learning_rate, state),
            weight_decay=settings.weight_decay,
            eps=settings.epsilon,
            maximize=False,
            decoupled_weight_decay=decoupled,
        )
    state.steps += 1
    return state
