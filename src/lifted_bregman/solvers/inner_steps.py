"""The inner steps of Algorithm 1 (printed, corrected or majorised), and the order in which layers take them."""

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
    """The order in which layers are visited; a visit of layer l moves Θ_l and x_{l-1}."""

    @abstractmethod
    def visits(self, depth: int, steps: int) -> Iterator[int]:
        """The layers in the order of their visits in one batch, each `steps` times."""


@dataclass(frozen=True)
class LayerByLayer(LoopOrder):
    """N steps on the top layer, then N on the next lower one, down to layer 1: the nesting that the paper prints.

    Example:
        >>> from lifted_bregman.solvers import LayerByLayer
        >>> solver = lb.ImplicitSGD(order=LayerByLayer())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=3, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    def visits(self, depth: int, steps: int) -> Iterator[int]:
        for layer in reversed(layers(depth)):
            for _ in range(steps):
                yield layer


@dataclass(frozen=True)
class Sweeps(LoopOrder):
    """N sweeps from the top layer to layer 1: the proximal gradient descent of Section 4.1.1.

    Example:
        >>> from lifted_bregman.solvers import Sweeps
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.ImplicitSGD(order=Sweeps()), epochs=3, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    def visits(self, depth: int, steps: int) -> Iterator[int]:
        for _ in range(steps):
            yield from reversed(layers(depth))


class InnerStep(ABC):
    """The step rule of Algorithm 1: how one inner step moves Θ_l and x_{l-1}."""

    literal: ClassVar[bool]
    """Whether the step sizes are those that the paper prints."""
    forgetful: ClassVar[bool] = False
    """Whether Θ_l after a step depends on Θ_l⁰, z_l and x_{l-1} only, so that one low-rank factor is enough."""

    @abstractmethod
    def parameter_steps(
        self, problem: LiftedProblem, point: Point, layer: int, prox_weight: float, memory: PowerMemory
    ) -> ParameterSteps:
        """Step sizes and proximal weights of Θ_l, for the mean over the batch."""

    @abstractmethod
    def variable_step(self, problem: LiftedProblem, point: Point, layer: int, memory: PowerMemory) -> float:
        """The step size t of x_l, for each sample's energy."""

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
        """Whether `steps` steps on Θ_l cost less in sample space, where W = W⁰ + CᵀX.

        f       the dense map of layer l
        rows    rows of X and of C: samples of the batch times positions of each
        moving  whether x_{l-1} is a variable, so that it changes between the steps
        """
        return samples_are_cheaper(rows, f.module.in_features, f.module.out_features, steps, moving)


@dataclass(frozen=True)
class Corrected(InnerStep):
    """Steps below 2 over the Lipschitz constant, (W, b) jointly.

        Θ_l:  t = factor / ( λ_l ‖[X_{l-1} 1]‖₂²/|B| + τ )          x_l:  t = factor / ( λ_{l+1} ‖W_{l+1}‖₂² )

    In the print the x step is |B| times shorter.  The norms are estimates by power iteration, enlarged by 1 %.
    CurvatureStep(upper=True) takes guaranteed bounds instead, each for a product and a Cholesky factorisation.

    step  `CurvatureStep(factor)` with factor in (0, 2), or `FixedStep(parameter, variable)`

    Example:
        >>> from lifted_bregman.solvers import Corrected, CurvatureStep
        >>> solver = lb.ImplicitSGD(reading=Corrected(CurvatureStep(upper=True)))
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=3, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
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
class Majorised(InnerStep):
    """The minimiser of a majorant in place of a gradient step on Θ_l, for dense layers without a P_l.

        Θ_l ← Θ_l - ∇ ( (λ_l/|B|) AᵀA + τI )⁻¹,   A = [X_{l-1} 1],   ∇ that of E + (τ/2)‖Θ_l - Θ_l^{k-1}‖²

    σ_l is 1-Lipschitz.  Hence the objective never increases, and no norm or step size is needed.  With an identity σ_l
    one step is the exact solution.  The linear system has the size of the batch or of A's columns, whichever is
    smaller; the iterates are the same.  If τ is lost in rounding, as τ = 0 is, a small proximal term around the present
    Θ_l is added.  A step is then not quite the solution, and the two sizes give different iterates, because the term is
    larger for the system of the batch's size.  If the system has no finite solution, a gradient step is taken; the
    metric "fallbacks" counts these.  x_l, and Θ_l of other layers, take the steps of `Corrected`.

    step  `CurvatureStep(factor)` with factor in (0, 2), or `FixedStep(parameter, variable)`

    Example:
        >>> from lifted_bregman.solvers import Majorised
        >>> solver = lb.ImplicitSGD(reading=Majorised())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=10, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
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
class Literal(InnerStep):
    """The step sizes that the paper prints (Section 6), with X_{l-1} in place of X_l and W_{l+1} in place of W_l.

        W_l:  1.99 / ( ‖X_{l-1}‖₂² + τ/2 ), for the autoencoders 1.99 |B| / (...)          b_l:  1.99 (autoencoders)
        x_l:  τ_x = 1.99 / ‖W_{l+1}‖₂², which with the 1/|B| of Algorithm 1 is the step t = τ_x/|B| of each sample

    Neither is safe in general.  The first exceeds 2/(‖X‖²/|B| + τ) where ‖X‖² is small.  A bias step of 1.99 exceeds
    2/(1 + τ) for every τ > 0.006 and then diverges, unless the proximal term is taken off the biases.
    Needs dense layers.  Sample weights multiply the rows of X_{l-1} by √w_i; a weight of 2 does not act like two copies
    of a sample, because |B| is the number of rows.

    batch_factor   whether |B| stands in the numerator of the weights' step
    bias_step      t of the biases, > 0; None for the t of the weights, because the paper prints none for classification
    anchored_bias  whether the proximal term acts on the biases, as Algorithm 1 has it

    Example:
        >>> from lifted_bregman.solvers import Literal
        >>> solver = lb.ImplicitSGD(prox_weight=0.1, reading=Literal())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=20, batch_size=20)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
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
    """Whether the bound of ‖W‖ is guaranteed, which needs W as a matrix in memory."""
    return isinstance(step, CurvatureStep) and step.upper


def _squared_norm(f: Dense, x: Tensor, weights: Tensor | None, iteration: PowerIteration) -> float:
    """‖√w X‖₂² for the rows X of a dense layer's inputs."""
    wx = x if weights is None else x * weights.view(-1, *[1] * (x.ndim - 1))
    X, weighed = (t.reshape(-1, f.module.in_features) for t in (x, wx))
    return iteration.estimate(lambda v: (weighed.t() @ (X @ v[0]),), (X.new_empty(X.shape[1]),))
