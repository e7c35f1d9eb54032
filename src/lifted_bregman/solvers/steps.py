"""Step-size rules for proximal gradient steps, and the update of a group of blocks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import Block, ParameterBlock, VariableBlock, own_blocks, terms
from lifted_bregman.problem.border import borrow, lend
from lifted_bregman.problem.curvature import lend_curvature, parameter_curvature, step_for, variable_curvature
from lifted_bregman.problem.energies import partial_energy
from lifted_bregman.problem.shard import sum_numbers
from lifted_bregman.solvers.outcome import Stalled

Values = dict[str, Tensor]
"""The tensors of one block by name; a variable block has the one name "x"."""
Memory = dict[str, Any]
"""A rule's memory between steps.  It is part of the solver's state, so that a run can be resumed exactly."""


class StepRule(ABC):
    """A step-size rule.  `update` moves each block of a group by one proximal gradient step (eq. 17)."""

    @abstractmethod
    def update(
        self,
        problem: LiftedProblem,
        point: Point,
        group: Sequence[Block],
        memory: Memory,
        smooth_quadratic: bool = False,
        inertia: Mapping[str, Values] | None = None,
    ) -> None:
        """Moves the blocks of `group` that this rank holds, all from the same point.

        memory            the rule's own
        smooth_quadratic  whether ½‖x‖² belongs to the smooth part H
        inertia           a shift of each block's step, by the repr of the block
        """


class _Direct(StepRule):
    """A rule whose step size does not depend on the result of the step."""

    @abstractmethod
    def step(self, problem: LiftedProblem, point: Point, block: Block, memory: Memory, smooth_quadratic: bool) -> float:
        """The step size of one block."""

    def lend(self, problem: LiftedProblem, point: Point, memory: Memory) -> None:
        """Sends the curvature of this rank's lowest layer to the rank below, if `step` needs it there."""

    def update(
        self,
        problem: LiftedProblem,
        point: Point,
        group: Sequence[Block],
        memory: Memory,
        smooth_quadratic: bool = False,
        inertia: Mapping[str, Values] | None = None,
    ) -> None:
        self.lend(problem, point, memory)
        lend(problem, point)
        alone = len(group) == 1
        group = own_blocks(group, problem.partition)
        steps = {block: self.step(problem, point, block, memory, smooth_quadratic) for block in group}
        if alone and not inertia and isinstance(group[0], ParameterBlock):
            _descend_in_place(problem, point, group[0], steps[group[0]])
            return
        slopes = [block_gradient(problem, point, block, smooth_quadratic) for block in group]
        for block, gradient in zip(reversed(group), reversed(slopes), strict=True):  # what is lent comes first
            shift = (inertia or {}).get(repr(block), {})
            move_block(problem, point, block, gradient, steps[block], smooth_quadratic, shift)
            if isinstance(block, VariableBlock) and block.layer in problem.partition.lent:
                problem.border.send_above(point.x[block.layer])
        borrow(problem, point)


@dataclass(frozen=True)
class FixedStep(_Direct):
    """The same step size for every parameter block, and the same for every variable block.

    parameter  t for Θ_l ← Θ_l - t ∇_{Θ_l} E
    variable   t for the step in x_l of each sample's energy

    Example:
        >>> from lifted_bregman.solvers import FixedStep
        >>> solver = lb.ProximalGradient(step_rule=FixedStep(parameter=1.0, variable=1.0))
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=20)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    parameter: float
    variable: float

    def __post_init__(self) -> None:
        positive(self.parameter, "parameter")
        positive(self.variable, "variable")

    def step(self, problem: LiftedProblem, point: Point, block: Block, memory: Memory, smooth_quadratic: bool) -> float:
        return self.parameter if isinstance(block, ParameterBlock) else self.variable


@dataclass(frozen=True)
class CurvatureStep(_Direct):
    """t = factor / L with the block's Lipschitz constant L; the paper's rule has factor 1.99.

    With upper=True, L is a guaranteed bound, and a Gauss-Seidel sweep over affine maps never increases E.

    Example:
        >>> from lifted_bregman.solvers import CurvatureStep
        >>> solver = lb.ProximalGradient(step_rule=CurvatureStep(1.0))
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=20)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    factor: float = 1.99
    upper: bool = True

    def __post_init__(self) -> None:
        if not 0.0 < positive(self.factor, "factor") < 2.0:
            raise SettingError(f"factor is {self.factor!r}; descent needs a factor below 2.")

    def lend(self, problem: LiftedProblem, point: Point, memory: Memory) -> None:
        lend_curvature(problem, point, memory.setdefault("power", {}), self.upper)

    def step(self, problem: LiftedProblem, point: Point, block: Block, memory: Memory, smooth_quadratic: bool) -> float:
        power = memory.setdefault("power", {})
        if isinstance(block, ParameterBlock):
            return step_for(self.factor, parameter_curvature(problem, point, block.layer, power, self.upper), point)
        curvature = variable_curvature(problem, point, block.layer, power, self.upper)
        return step_for(self.factor, curvature + (problem.weight(block.layer) if smooth_quadratic else 0.0), point)


@dataclass(frozen=True)
class Backtracking(StepRule):
    """Shrinks t until the group's move decreases E by a tenth of what the quadratic model promises.

        E(new) <= E(old) - 0.1 ( Σ_Θ ‖ΔΘ‖²/2t + Σ_x w‖Δx‖²/2ts ),   w = 1 unless samples have weights

    Needs no curvature, and guarantees descent for simultaneous updates too.  A group whose t reaches the floor without
    decrease stays where it is; when every group of a sweep does, the run ends as stalled.

    initial  > 0, the first t that is tried
    shrink   in (0, 1), the factor on failure
    grow     >= 1, the factor on the next step
    floor    > 0, the smallest t

    Example:
        >>> from lifted_bregman.solvers import Backtracking
        >>> solver = lb.ProximalGradient(step_rule=Backtracking())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=20)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    initial: float = 1.0
    shrink: float = 0.5
    grow: float = 2.0
    floor: float = 1e-12

    def __post_init__(self) -> None:
        positive(self.initial, "initial")
        positive(self.floor, "floor")
        if not (0.0 < self.shrink < 1.0 and 1.0 <= self.grow < math.inf):
            raise SettingError(
                f"shrink is {self.shrink!r}, grow {self.grow!r}; the first must be in (0, 1), the second in [1, inf)."
            )

    def update(
        self,
        problem: LiftedProblem,
        point: Point,
        group: Sequence[Block],
        memory: Memory,
        smooth_quadratic: bool = False,
        inertia: Mapping[str, Values] | None = None,
    ) -> None:
        # E, the values and the gradients of the group before the move
        touched = sorted({term for block in group for term in terms(block, problem.links)})
        if not touched:
            return  # terms without parameters
        before = float(partial_energy(problem, point, touched))
        old = [{name: value.clone() for name, value in block_values(problem, point, block).items()} for block in group]
        slopes = [block_gradient(problem, point, block, smooth_quadratic) for block in group]
        # A group with zero gradient and no proximal map stays where it is
        steep = any(bool(g.count_nonzero()) for slope in slopes for g in slope.values())
        if sum_numbers(point.shard, float(steep)) == (0.0,) and all(_smooth(problem, block) for block in group):
            return
        # Try t, shrink·t, ...: each block moves by a proximal gradient step from its old value
        key = repr(tuple(group))
        t = memory.get(key, self.initial / self.grow) * self.grow
        rounding = 4.0 * torch.finfo(point.dtype).eps * abs(before)
        while t >= self.floor:
            promises: list[float] = []
            for block, gradient, values in zip(group, slopes, old, strict=True):
                shift = (inertia or {}).get(repr(block), {})
                move_block(problem, point, block, gradient, t, smooth_quadratic, shift, values)
                # Σ_Θ ‖ΔΘ‖²/2t + Σ_x w‖Δx‖²/2ts
                new = block_values(problem, point, block)
                squares = [(new[name] - values[name]).square() for name in values]
                share = 1.0
                if isinstance(block, VariableBlock):
                    squares = [point.weigh(square) for square in squares]
                    share = 1.0 / point.samples
                promises.append(share * sum(float(square.sum()) for square in squares) / (2.0 * t))
            # Accept t if E(new) <= E(old) - 0.1 promised, up to rounding
            promised = _promised(point, group, promises)
            after = float(partial_energy(problem, point, touched))
            if math.isfinite(after) and after <= before - 0.1 * promised + (rounding if promised < rounding else 0.0):
                memory[key] = (
                    t if promised > 0.0 else min(t, self.initial)
                )  # a group that does not move would let t grow for ever
                return
            t *= self.shrink
        # No t above the floor gives descent: restore the old values
        for block, values in zip(group, old, strict=True):
            set_block(problem, point, block, values)
        memory[key] = self.floor
        if all(value <= self.floor for value in memory.values()) and len(memory) > 0:
            raise Stalled(f"The blocks are {group}, the step size {t:.3g}.")


def _smooth(problem: LiftedProblem, block: Block) -> bool:
    """Whether a block has no proximal map, so that it stays where its gradient vanishes."""
    return isinstance(block, ParameterBlock) and not problem.has_parameter_prox(block.layer)


def _promised(point: Point, group: Sequence[Block], promises: Sequence[float]) -> float:
    """The decrease that the quadratic model predicts; variables' parts are summed over ranks."""
    pairs = list(zip(group, promises, strict=True))
    of_variables = iter(sum_numbers(point.shard, *(p for block, p in pairs if isinstance(block, VariableBlock))))
    promised = 0.0
    for block, promise in pairs:
        promised += next(of_variables) if isinstance(block, VariableBlock) else promise
    return promised


def block_values(problem: LiftedProblem, point: Point, block: Block) -> Values:
    """The tensors of a block, not copied."""
    if isinstance(block, ParameterBlock):
        return {name: p.detach() for name, p in problem.network[block.layer].map.parameters.items()}
    return {"x": point.x[block.layer]}


def set_block(problem: LiftedProblem, point: Point, block: Block, values: Mapping[str, Tensor]) -> None:
    """Gives a block new values; parameters are overwritten in place."""
    if isinstance(block, ParameterBlock):
        with torch.no_grad():
            for name, parameter in problem.network[block.layer].map.parameters.items():
                parameter.copy_(values[name])
        point.parameters_changed(block.layer)
    else:
        point.set_variable(block.layer, values["x"])


def block_gradient(problem: LiftedProblem, point: Point, block: Block, smooth_quadratic: bool = False) -> Values:
    """The gradient of the smooth part in a block (of each sample's energy for variables)."""
    if isinstance(block, ParameterBlock):
        return problem.parameter_gradient(point, block.layer)
    return {"x": problem.variable_gradient(point, block.layer, smooth_quadratic)}


def move_block(
    problem: LiftedProblem,
    point: Point,
    block: Block,
    gradient: Mapping[str, Tensor],
    t: float,
    smooth_quadratic: bool = False,
    shift: Mapping[str, Tensor] | None = None,
    start: Mapping[str, Tensor] | None = None,
) -> None:
    """One proximal gradient step: prox_{t·(non-smooth part)}(value - t·gradient + shift)."""
    start = block_values(problem, point, block) if start is None else start
    shift = shift or {}
    ahead = {name: torch.sub(start[name], gradient[name], alpha=t) for name in gradient}
    for name, value in shift.items():
        ahead[name].add_(value)
    if isinstance(block, ParameterBlock):
        set_block(problem, point, block, problem.parameter_prox(block.layer, ahead, t))
    else:
        point.set_variable(block.layer, problem.variable_prox(block.layer, ahead["x"], t, smooth_quadratic))


def _descend_in_place(problem: LiftedProblem, point: Point, block: ParameterBlock, t: float) -> None:
    """`move_block` of one parameter block, without allocating a tensor of its size."""
    parameters = problem.network[block.layer].map.parameters
    problem.accumulate_parameter_gradient(point, block.layer, parameters, scale=-t)
    if problem.has_parameter_prox(block.layer):
        values = {name: p.detach() for name, p in parameters.items()}
        set_block(problem, point, block, problem.parameter_prox(block.layer, values, t))
    point.parameters_changed(block.layer)
