"""Two readings of Algorithm 1: its printed step sizes, and those that are safe; and its two loop orders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from lifted_bregman.activations._base import positive
from lifted_bregman.networks import Dense
from lifted_bregman.problem import Evaluation, LiftedProblem
from lifted_bregman.problem.blocks import above, below, layers
from lifted_bregman.solvers._curvature import (
    PowerMemory,
    RememberedPower,
    parameter_curvature,
    step_for,
    variable_curvature,
)
from lifted_bregman.solvers._descent import ParameterSteps
from lifted_bregman.solvers.steps import CurvatureStep, FixedStep


class LoopOrder(ABC):
    """In which order layers are visited; a visit of layer l moves Θ_l and x_{l-1}."""

    @abstractmethod
    def visits(self, depth: int, steps: int) -> Iterator[int]:
        """The layers of one batch, each of them `steps` times."""


@dataclass(frozen=True)
class LayerByLayer(LoopOrder):
    """N steps on the top layer, then N on the one below, down to layer 1: the loops as they are nested in the print."""

    def visits(self, depth: int, steps: int) -> Iterator[int]:
        for layer in reversed(layers(depth)):
            for _ in range(steps):
                yield layer


@dataclass(frozen=True)
class Sweeps(LoopOrder):
    """N sweeps from the top layer to layer 1: proximal gradient descent as Section 4.1.1 has it."""

    def visits(self, depth: int, steps: int) -> Iterator[int]:
        for _ in range(steps):
            yield from reversed(layers(depth))


class Reading(ABC):
    """Which step sizes Algorithm 1 takes."""

    literal: ClassVar[bool]
    """Whether they are those that the paper prints."""

    @abstractmethod
    def parameter_steps(
        self, problem: LiftedProblem, point: Evaluation, layer: int, prox_weight: float, memory: PowerMemory
    ) -> ParameterSteps:
        """The steps of Θ_l on the mean over the batch."""

    @abstractmethod
    def variable_step(self, problem: LiftedProblem, point: Evaluation, layer: int, memory: PowerMemory) -> float:
        """t of x_l, on each sample's energy."""


@dataclass(frozen=True)
class Corrected(Reading):
    """Steps below 2 over the Lipschitz constant, (W, b) jointly.

        Θ_l:  t = factor / ( λ_l ‖[X_{l-1} 1]‖₂²/|B| + τ )          x_l:  t = factor / ( λ_{l+1} ‖W_{l+1}‖₂² )

    In the print the x step is |B| times shorter.  Norms are power iterations' estimates, one per cent added; with
    CurvatureStep(upper=True) guaranteed bounds, at the price of a product and a Cholesky factorisation for each.

    step  `CurvatureStep(factor)` with factor in (0, 2), or `FixedStep(parameter, variable)`
    """

    step: CurvatureStep | FixedStep = field(default_factory=lambda: CurvatureStep(1.99, upper=False))
    literal: ClassVar[bool] = False

    def parameter_steps(
        self, problem: LiftedProblem, point: Evaluation, layer: int, prox_weight: float, memory: PowerMemory
    ) -> ParameterSteps:
        if isinstance(self.step, FixedStep):
            t = self.step.parameter
        else:
            bound = parameter_curvature(problem, point, layer, memory, self.step.upper) + prox_weight
            t = step_for(self.step.factor, bound, point)
        return ParameterSteps(t, t, prox_weight, prox_weight)

    def variable_step(self, problem: LiftedProblem, point: Evaluation, layer: int, memory: PowerMemory) -> float:
        if isinstance(self.step, FixedStep):
            return self.step.variable
        bound = variable_curvature(problem, point, layer, memory, self.step.upper)
        return step_for(self.step.factor, bound, point)


@dataclass(frozen=True)
class Literal(Reading):
    """The step sizes that the paper prints (Section 6), with X_{l-1} for X_l and W_{l+1} for W_l.

        W_l:  1.99 / ( ‖X_{l-1}‖₂² + τ/2 ), for the autoencoders 1.99 |B| / (...)          b_l:  1.99 (autoencoders)
        x_l:  τ_x = 1.99 / ‖W_{l+1}‖₂², which with the 1/|B| of Algorithm 1 is the step t = τ_x/|B| of each sample

    Neither is safe in general.  The first exceeds 2/(‖X‖²/|B| + τ) where ‖X‖² is small.  A bias step of 1.99 exceeds
    2/(1 + τ) for every τ > 0.006 and then diverges, unless the proximal term is taken off the biases.
    Needs dense layers.  Where samples have weights, the rows of X_{l-1} are multiplied by √w_i.

    batch_factor   whether |B| stands in the numerator of the weights' step
    bias_step      t of the biases, > 0; None for that of the weights, since the classification part gives none
    anchored_bias  whether the proximal term acts on the biases, as Algorithm 1 has it
    """

    batch_factor: bool = False
    bias_step: float | None = None
    anchored_bias: bool = True
    literal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bias_step is not None:
            positive(self.bias_step, "bias_step")

    def parameter_steps(
        self, problem: LiftedProblem, point: Evaluation, layer: int, prox_weight: float, memory: PowerMemory
    ) -> ParameterSteps:
        f, x = problem.network[layer].map, point.x[below(layer)]
        assert isinstance(f, Dense)
        rows, weighed = (t.reshape(-1, f.module.in_features) for t in (x, point.weigh(x)))
        norm = _squared_norm(rows, weighed, memory, f"X_{layer}")
        t = step_for(1.99 * (point.samples if self.batch_factor else 1), norm + 0.5 * prox_weight, point)
        t_bias = t if self.bias_step is None else self.bias_step
        return ParameterSteps(t, t_bias, prox_weight, prox_weight if self.anchored_bias else 0.0)

    def variable_step(self, problem: LiftedProblem, point: Evaluation, layer: int, memory: PowerMemory) -> float:
        f = problem.network[above(layer)].map
        norm = f.input_curvature(point.x[layer], RememberedPower(memory, f"W_{above(layer)}"))
        return step_for(1.99 / point.samples, norm, point)


def _squared_norm(X: Tensor, weighed: Tensor, memory: PowerMemory, key: str) -> float:
    """‖√w X‖₂² of a matrix of rows; `weighed` is w X."""
    return RememberedPower(memory, key).estimate(lambda v: (weighed.t() @ (X @ v[0]),), (X[0],))
