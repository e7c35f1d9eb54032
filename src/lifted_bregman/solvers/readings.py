"""Readings of Algorithm 1: its printed steps, safe ones, and majorised ones; and its two loop orders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._linalg import PowerIteration
from lifted_bregman.maps import Dense
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import layers
from lifted_bregman.problem.curvature import (
    PowerMemory,
    over_all_samples,
    parameter_curvature,
    power,
    squared_input_norm,
    step_for,
    variable_curvature,
    variable_key,
)
from lifted_bregman.solvers._batch_memory import BatchMemory
from lifted_bregman.solvers._descent import ParameterSteps, descend
from lifted_bregman.solvers._majorise import majorise
from lifted_bregman.solvers._sample_space import samples_are_cheaper
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
    """Which steps Algorithm 1 takes."""

    literal: ClassVar[bool]
    """Whether they are those that the paper prints."""
    forgetful: ClassVar[bool] = False
    """Whether Θ_l after a step depends on Θ_l⁰, z_l and x_{l-1} only, so that one low-rank factor is enough."""

    @abstractmethod
    def parameter_steps(
        self, problem: LiftedProblem, point: Point, layer: int, prox_weight: float, memory: PowerMemory
    ) -> ParameterSteps:
        """The steps of Θ_l on the mean over the batch."""

    @abstractmethod
    def variable_step(self, problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory) -> float:
        """t of x_l, on each sample's energy."""

    def move_parameters(
        self,
        problem: LiftedProblem,
        point: Point,
        layer: int,
        prox_weight: float,
        anchor: Mapping[str, Tensor],
        memory: BatchMemory,
    ) -> None:
        """Takes one step on Θ_l, in place: a proximal gradient step with `parameter_steps`."""
        steps = self.parameter_steps(problem, point, layer, prox_weight, memory)
        descend(problem, point, layer, steps, anchor)

    def in_samples(self, f: Dense, rows: int, steps: int, moving: bool) -> bool:
        """Whether `steps` steps on the layer of f cost less in sample space; moving: whether x_{l-1} is a variable."""
        return samples_are_cheaper(rows, f.module.in_features, f.module.out_features, steps, moving)


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
        self, problem: LiftedProblem, point: Point, layer: int, prox_weight: float, memory: PowerMemory
    ) -> ParameterSteps:
        if isinstance(self.step, FixedStep):
            t = self.step.parameter
        else:
            bound = parameter_curvature(problem, point, layer, memory, self.step.upper) + prox_weight
            t = step_for(self.step.factor, bound, point)
        return ParameterSteps(t, t, prox_weight, prox_weight)

    def variable_step(self, problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory) -> float:
        if isinstance(self.step, FixedStep):
            return self.step.variable
        bound = variable_curvature(problem, point, layer, memory, self.step.upper)
        return step_for(self.step.factor, bound, point)

    def in_samples(self, f: Dense, rows: int, steps: int, moving: bool) -> bool:
        return not (moving and _writes_weights_out(self.step)) and super().in_samples(f, rows, steps, moving)


@dataclass(frozen=True)
class Majorised(Reading):
    """The minimiser of a majorant in place of a gradient step on Θ_l, for dense layers without a P_l.

        Θ_l ← Θ_l - ∇ ( (λ_l/|B|) AᵀA + τI )⁻¹,   A = [X_{l-1} 1],   ∇ that of E + (τ/2)‖Θ_l - Θ_l^{k-1}‖²

    σ_l is 1-Lipschitz, so that the objective never increases, without norm or step size; with an identity σ_l one step
    is the exact solution.  The system has the size of the batch or of A's columns, whichever is smaller, and the
    iterates are the same.  A τ that is lost in rounding, 0 in particular, gets a small proximal term around the present
    Θ_l: then a step is not quite the solution, and the iterates differ, because the term is larger on the side of the
    batch.  Where the system has no finite solution a gradient step is taken; the metric "fallbacks" counts those.
    The steps on x_l, and on Θ_l of other layers, are those of `Corrected`.

    step  `CurvatureStep(factor)` with factor in (0, 2), or `FixedStep(parameter, variable)`
    """

    step: CurvatureStep | FixedStep = field(default_factory=lambda: CurvatureStep(1.99, upper=False))
    literal: ClassVar[bool] = False
    forgetful: ClassVar[bool] = True

    def parameter_steps(
        self, problem: LiftedProblem, point: Point, layer: int, prox_weight: float, memory: PowerMemory
    ) -> ParameterSteps:
        return Corrected(self.step).parameter_steps(problem, point, layer, prox_weight, memory)

    def variable_step(self, problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory) -> float:
        return Corrected(self.step).variable_step(problem, point, layer, memory)

    def move_parameters(
        self,
        problem: LiftedProblem,
        point: Point,
        layer: int,
        prox_weight: float,
        anchor: Mapping[str, Tensor],
        memory: BatchMemory,
    ) -> None:
        if isinstance(problem.network[layer].map, Dense) and not problem.has_parameter_prox(layer):
            majorise(problem, point, layer, prox_weight, anchor, memory)
        else:
            super().move_parameters(problem, point, layer, prox_weight, anchor, memory)

    def in_samples(self, f: Dense, rows: int, steps: int, moving: bool) -> bool:
        columns = f.module.in_features + ("bias" in f.parameters)
        return rows <= columns and not (moving and _writes_weights_out(self.step))


@dataclass(frozen=True)
class Literal(Reading):
    """The step sizes that the paper prints (Section 6), with X_{l-1} for X_l and W_{l+1} for W_l.

        W_l:  1.99 / ( ‖X_{l-1}‖₂² + τ/2 ), for the autoencoders 1.99 |B| / (...)          b_l:  1.99 (autoencoders)
        x_l:  τ_x = 1.99 / ‖W_{l+1}‖₂², which with the 1/|B| of Algorithm 1 is the step t = τ_x/|B| of each sample

    Neither is safe in general.  The first exceeds 2/(‖X‖²/|B| + τ) where ‖X‖² is small.  A bias step of 1.99 exceeds
    2/(1 + τ) for every τ > 0.006 and then diverges, unless the proximal term is taken off the biases.
    Needs dense layers.  Where samples have weights, the rows of X_{l-1} are multiplied by √w_i.  They do not count like
    copies, because |B| is the number of rows.

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
        self, problem: LiftedProblem, point: Point, layer: int, prox_weight: float, memory: PowerMemory
    ) -> ParameterSteps:
        f, x = problem.network[layer].map, point.read(layer)
        assert isinstance(f, Dense)
        norm = _squared_norm(f, *over_all_samples(x, point.weights, power(memory, layer, "X"), False, point.shard))
        t = step_for(1.99 * (point.samples if self.batch_factor else 1), norm + 0.5 * prox_weight, point)
        t_bias = t if self.bias_step is None else self.bias_step
        return ParameterSteps(t, t_bias, prox_weight, prox_weight if self.anchored_bias else 0.0)

    def variable_step(self, problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory) -> float:
        (term,) = problem.links.readers[layer]  # Literal needs dense layers, which read one variable
        f, powers = problem.network[term].map, power(memory, term, variable_key(layer))
        norm = squared_input_norm(f, point.x[layer], powers, False, point.shard)
        return step_for(1.99 / point.samples, norm, point)


def _writes_weights_out(step: CurvatureStep | FixedStep) -> bool:
    """Whether the norm of W is certified, which needs W as a matrix."""
    return isinstance(step, CurvatureStep) and step.upper


def _squared_norm(f: Dense, x: Tensor, weights: Tensor | None, iteration: PowerIteration) -> float:
    """‖√w X‖₂² for the rows X of a dense layer's inputs."""
    wx = x if weights is None else x * weights.view(-1, *[1] * (x.ndim - 1))
    X, weighed = (t.reshape(-1, f.module.in_features) for t in (x, wx))
    return iteration.estimate(lambda v: (weighed.t() @ (X @ v[0]),), (X.new_empty(X.shape[1]),))
