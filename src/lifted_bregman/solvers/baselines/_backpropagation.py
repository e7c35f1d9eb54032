"""What the back-propagation baselines share: the gradient of the nested objective, its normalisation, its work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.nested import nested_gradient, not_differentiable
from lifted_bregman.solvers._interface import Batch, Solver, SolverState, lacking


class Normalisation(Enum):
    """What a learning rate refers to.  A rate η with SUM is the rate η·|B| with MEAN, |B| the samples of the batch."""

    MEAN = "mean over the batch"
    SUM = "sum over the batch"


@dataclass
class BackpropState(SolverState):
    """Holds on to the last gradient until the next one is made, so that its memory is used again; it is not saved."""

    def __post_init__(self) -> None:
        self.gradient: list[Tensor] = []


def require_normalisation(value: Normalisation) -> None:
    """An error unless `value` is a `Normalisation`."""
    if not isinstance(value, Normalisation):
        raise SettingError(f"normalisation is {value!r}; it must be Normalisation.MEAN or Normalisation.SUM.")


def require_differentiable(solver: Solver[Any], problem: LiftedProblem) -> None:
    """Refuses problems that back-propagation cannot follow."""
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
    factor = problem.peers.samples(len(batch)) if normalisation is Normalisation.SUM else None
    value, state.gradient = nested_gradient(problem, batch.X, batch.Y, parameters, weights=batch.weights, factor=factor)
    work, depth = problem.work, problem.depth
    work.forward_maps += depth
    work.prox_maps += depth
    work.adjoints += depth - 1
    work.parameter_gradients += depth
    state.metrics["batch_objective"] = float(value)
    return state.gradient


def fusible(parameters: Sequence[Tensor], *others: Sequence[Tensor]) -> bool:
    """Whether torch's fused kernels may be used: they read all tensors of a parameter in the same order of memory."""
    if parameters[0].device.type not in ("cpu", "cuda"):
        return False
    return all(len({t.stride() for t in alike}) == 1 for alike in zip(parameters, *others, strict=True))
