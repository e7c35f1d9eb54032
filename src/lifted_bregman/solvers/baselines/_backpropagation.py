"""The gradient of the nested objective for the back-propagation baselines: its normalisation, clipping and work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lifted_bregman._arguments import positive, require_not_negative
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.nested import nested_gradient, not_differentiable
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers.schedules import Schedule

_CLIP_EPSILON = 1e-6  # added to the norm by torch's clip_grad_norm_


class Normalisation(Enum):
    """Whether a learning rate is for the mean or the sum over a batch B: η with SUM equals η·|B| with MEAN.

    Example:
        >>> solver = lb.baselines.SGD(learning_rate=0.1, normalisation=lb.baselines.Normalisation.SUM)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=10, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    MEAN = "mean over the batch"
    SUM = "sum over the batch"


@dataclass
class BackpropState(SolverState):
    """Keeps the last gradient so that the next one reuses its memory; it is not saved."""

    def __post_init__(self) -> None:
        self.gradient: list[Tensor] = []


def require_normalisation(value: Normalisation) -> None:
    """An error unless `value` is a `Normalisation`."""
    if not isinstance(value, Normalisation):
        raise SettingError(f"normalisation is {value!r}; it must be Normalisation.MEAN or Normalisation.SUM.")


def require_decay_and_clip(weight_decay: float, clip_norm: float | None) -> None:
    """An error unless weight_decay is finite and at least 0, and clip_norm above 0 or None."""
    require_not_negative(weight_decay, "weight_decay")
    if clip_norm is not None:
        positive(clip_norm, "clip_norm")


def require_differentiable(solver: Solver[Any], problem: LiftedProblem) -> None:
    """Raises an error for problems that back-propagation cannot differentiate."""
    missing = not_differentiable(problem)
    if missing is not None:
        raise lacking(solver, "a trained network and penalties that autograd can differentiate", missing)


def backpropagate(
    problem: LiftedProblem,
    state: BackpropState,
    batch: Batch,
    parameters: Sequence[Tensor],
    normalisation: Normalisation = Normalisation.MEAN,
) -> list[Tensor]:
    """The gradient of the batch's nested objective in the given normalisation; its mean goes to "batch_objective"."""
    state.gradient = []
    factor = batch.samples if normalisation is Normalisation.SUM else None
    watch = None if batch.meter is None else partial(batch.meter.see_outputs, Y=batch.Y)
    value, state.gradient = nested_gradient(
        problem,
        batch.X,
        batch.Y,
        parameters,
        weights=batch.weights,
        factor=factor,
        watch=watch,
        shard=batch.shard,
    )
    work, depth = problem.work, problem.depth
    work.forward_maps += depth
    work.prox_maps += depth
    work.adjoints += depth - 1
    work.parameter_gradients += depth
    state.metrics["batch_objective"] = float(value)
    return state.gradient


def clip(state: BackpropState, bound: float) -> list[Tensor]:
    """The state's gradient g times min(1, bound / (‖g‖ + 1e-6)); its norm ‖g‖ goes to "gradient_norm"."""
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(state.gradient))))
    state.metrics["gradient_norm"] = norm
    factor = bound / (norm + _CLIP_EPSILON)
    if factor < 1.0:
        state.gradient = list(torch._foreach_mul(state.gradient, factor))  # two parameters may share a gradient
    return state.gradient


def rate_of_step(learning_rate: float | Schedule, state: BackpropState) -> float:
    """The learning rate of this step; that of a schedule goes to "learning_rate"."""
    if not isinstance(learning_rate, Schedule):
        return learning_rate
    rate = state.metrics["learning_rate"] = learning_rate.value(state.steps)
    return rate


def fusible(parameters: Sequence[Tensor], *others: Sequence[Tensor]) -> bool:
    """Whether torch's fused kernels may be used: they read all tensors of a parameter in the same order of memory."""
    if parameters[0].device.type not in ("cpu", "cuda"):
        return False
    return all(len({t.stride() for t in alike}) == 1 for alike in zip(parameters, *others, strict=True))
