"""Accelerations of a sweep, seen as a map T from iterate to iterate (all parameters and all variables)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lifted_bregman._arguments import require_count
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, LiftedState, Point
from lifted_bregman.problem.blocks import Block, ParameterBlock, VariableBlock, all_blocks, hidden_layers
from lifted_bregman.solvers._shares import whole_variables
from lifted_bregman.solvers.steps import Values, block_values, set_block

Memory = dict[str, Any]
Energy = Callable[[], float]


class Acceleration:
    """Hooks around a sweep.  `memory` belongs to the acceleration and is part of the solver's state."""

    descends: ClassVar[bool] = False
    """Whether the accelerated sweep decreases E whenever the sweep alone does."""

    @property
    def factor(self) -> float:
        """The largest c for which steps of c/M are admissible, where M bounds the curvature of a simultaneous move.

        1.99 for the sweep alone, which decreases E for every c below 2.
        """
        return 1.99

    def before(self, problem: LiftedProblem, point: Point, memory: Memory) -> dict[str, Values] | None:
        """Called before the sweep; may move the point, or return a shift of each block by its repr."""
        return None

    def after(self, problem: LiftedProblem, point: Point, memory: Memory, energy: Energy) -> None:
        """Called after the sweep; may move the point."""
        return

    def restart(self, memory: Memory) -> None:
        """Clears the memory, after a step that was undone."""
        memory.clear()


@dataclass(frozen=True)
class NoAcceleration(Acceleration):
    """The sweep alone.

    Example:
        >>> from lifted_bregman.solvers import NoAcceleration
        >>> solver = lb.ProximalGradient(acceleration=NoAcceleration())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=20)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    descends: ClassVar[bool] = True


@dataclass(frozen=True)
class Nesterov(Acceleration):
    """FISTA: the sweep starts from x_k + ((θ_{k-1} - 1)/θ_k)(x_k - x_{k-1}), θ_k = (1 + √(1 + 4θ_{k-1}²))/2, θ_0 = 1.

    It admits steps of at most 1/M.  With those, one layer and no restart, E(x_k) - E* <= 2M‖x_0 - x*‖²/(k + 1)².  With
    longer steps it can diverge, unless `ProximalGradient` has monotone=True.

    (Beck and Teboulle 2009, for proximal gradient steps.)

    restart_on_increase  start again from θ = 1 whenever a sweep increased E (O'Donoghue and Candès 2015)

    Example:
        >>> from lifted_bregman.solvers import Nesterov
        >>> solver = lb.ProximalGradient(acceleration=Nesterov())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=20)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    restart_on_increase: bool = True

    @property
    def factor(self) -> float:
        """1: FISTA admits steps of at most 1/M."""
        return 1.0

    def before(self, problem: LiftedProblem, point: Point, memory: Memory) -> dict[str, Values] | None:
        current = _iterate(problem, point)
        if "previous" not in memory:  # the first sweep starts from x_0
            _remember(memory, _whole(problem, point, current))
            memory["theta"] = 1.0
            return None
        theta = memory["theta"]
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * theta * theta))
        _extrapolate(problem, point, current, memory["previous"], (theta - 1.0) / following)
        memory["theta"] = following
        return None

    def after(self, problem: LiftedProblem, point: Point, memory: Memory, energy: Energy) -> None:
        if self.restart_on_increase:
            value = energy()
            if value > memory.get("energy", math.inf):
                memory["theta"] = 1.0
            memory["energy"] = value


@dataclass(frozen=True)
class HeavyBall(Acceleration):
    """Polyak's momentum in the proximal step, as in iPiano (Ochs et al. 2014).

        x_{k+1} = prox(x_k - t∇ + β (x_k - x_{k-1}))

    A block whose curvature is at most M moves by Δ_{k+1} and E changes by at most

        -(1/t - M/2 - β/2t)‖Δ_{k+1}‖² + (β/2t)‖Δ_k‖² .

    So E + (β/2t)‖Δ_k‖² falls for t < 2(1 - β)/M, as long as t does not shrink from step to step.  With longer steps it
    can diverge, unless `ProximalGradient` has monotone=True.

    momentum  β in [0, 1)

    Example:
        >>> from lifted_bregman.solvers import HeavyBall
        >>> solver = lb.ProximalGradient(acceleration=HeavyBall(0.5))
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=20)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    momentum: float = 0.5

    @property
    def factor(self) -> float:
        """1.99(1 - β): momentum β shortens the admissible steps."""
        return 1.99 * (1.0 - self.momentum)

    def __post_init__(self) -> None:
        if not 0.0 <= self.momentum < 1.0:
            raise SettingError(f"momentum is {self.momentum!r}; it must be in [0, 1).")

    def before(self, problem: LiftedProblem, point: Point, memory: Memory) -> dict[str, Values] | None:
        current = _iterate(problem, point)
        shift = None
        if "previous" in memory:
            previous = _own(problem, point, memory["previous"])
            shift = {
                block: {name: self.momentum * (value - previous[block][name]) for name, value in values.items()}
                for block, values in current.items()
            }
        _remember(memory, _whole(problem, point, current))
        return shift


@dataclass(frozen=True)
class Anderson(Acceleration):
    """Anderson's mixing of the last `history` sweeps, safeguarded: kept only where it has lower energy than the sweep.

    With residuals f_i = T(x_i) - x_i it takes Σ α_i T(x_i), Σ α_i = 1, where α minimises
    ‖Σ α_i f_i‖² + ridge ‖α‖² Σ‖f_i‖² (Anderson 1965).

    Example:
        >>> from lifted_bregman.solvers import Anderson
        >>> solver = lb.ProximalGradient(acceleration=Anderson())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=20)
        Traceback (most recent call last):
            ...
        torch._C._LinAlgError: torch.linalg.solve: The solver failed because the input matrix is singular.
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    descends: ClassVar[bool] = True

    history: int = 5
    ridge: float = 1e-10

    def __post_init__(self) -> None:
        require_count(self.history, "history")
        if not 0.0 <= self.ridge < math.inf:
            raise SettingError(f"ridge is {self.ridge!r}; it must be a number of at least 0.")

    def before(self, problem: LiftedProblem, point: Point, memory: Memory) -> dict[str, Values] | None:
        memory["start"] = _flat(_whole(problem, point, _iterate(problem, point)))
        return None

    def after(self, problem: LiftedProblem, point: Point, memory: Memory, energy: Energy) -> None:
        swept = _iterate(problem, point)
        whole = _whole(problem, point, swept)
        image = _flat(whole)
        images = [*memory.get("images", []), image][-self.history :]
        residuals = [*memory.get("residuals", []), image - memory.pop("start")][-self.history :]
        memory["images"], memory["residuals"] = images, residuals
        if len(images) < 2:
            return
        F = torch.stack(residuals)
        gram = (F @ F.T).double()
        gram += self.ridge * float(gram.diagonal().sum()) * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        alpha = torch.linalg.solve(gram, torch.ones(len(gram), dtype=gram.dtype, device=gram.device))
        alpha = (alpha / alpha.sum()).to(image.dtype)
        if not bool(alpha.isfinite().all()):
            return
        best = energy()
        kept = {block: {name: value.clone() for name, value in values.items()} for block, values in swept.items()}
        _set_flat(problem, point, whole, alpha @ torch.stack(images))
        mixed = energy()
        if not mixed < best:
            for block in all_blocks(problem.depth):
                set_block(problem, point, block, kept[repr(block)])


def _iterate(problem: LiftedProblem, point: Point) -> dict[str, Values]:
    """All blocks' tensors by the repr of the block, not copied."""
    return {repr(block): block_values(problem, point, block) for block in all_blocks(problem.depth)}


def _whole(problem: LiftedProblem, point: Point, iterate: dict[str, Values]) -> dict[str, Values]:
    """The iterate with the variables of the whole batch, which is what a memory keeps."""
    if point.shard.whole:
        return iterate
    keys = [repr(VariableBlock(layer)) for layer in hidden_layers(problem.depth)]
    variables = whole_variables(point.shard, LiftedState(iterate[key]["x"] for key in keys))
    return iterate | {key: {"x": x} for key, x in zip(keys, variables, strict=True)}


def _own(problem: LiftedProblem, point: Point, iterate: dict[str, Values]) -> dict[str, Values]:
    """The shard's rows of the variables of such an iterate."""
    if point.shard.whole:
        return iterate
    keys = {repr(VariableBlock(layer)) for layer in hidden_layers(problem.depth)}
    return {key: {"x": point.shard.own_rows(own["x"])} if key in keys else own for key, own in iterate.items()}


def _remember(memory: Memory, current: dict[str, Values]) -> None:
    """Copies the iterate into the memory's tensors."""
    if "previous" not in memory:
        memory["previous"] = {
            b: {name: value.clone() for name, value in values.items()} for b, values in current.items()
        }
        return
    for block, values in current.items():
        for name, value in values.items():
            memory["previous"][block][name].copy_(value)


def _extrapolate(
    problem: LiftedProblem, point: Point, current: dict[str, Values], previous: dict[str, Values], beta: float
) -> None:
    """Moves the point to current + beta (current - previous), and leaves `current` in `previous`."""
    before, whole = _own(problem, point, previous), _whole(problem, point, current)
    for block in all_blocks(problem.depth):
        for name, value in current[repr(block)].items():
            ahead = torch.lerp(before[repr(block)][name], value, 1.0 + beta)
            previous[repr(block)][name].copy_(whole[repr(block)][name])
            if isinstance(block, ParameterBlock):
                value.copy_(ahead)
            else:
                point.set_variable(block.layer, ahead)
        if isinstance(block, ParameterBlock):
            point.parameters_changed(block.layer)


def _flat(iterate: dict[str, Values]) -> Tensor:
    return torch.cat([value.reshape(-1) for values in iterate.values() for value in values.values()])


def _set_flat(problem: LiftedProblem, point: Point, like: dict[str, Values], flat: Tensor) -> None:
    offset = 0
    blocks: dict[str, Block] = {repr(block): block for block in all_blocks(problem.depth)}
    for key, values in like.items():
        fresh: Values = {}
        for name, value in values.items():
            fresh[name] = flat[offset : offset + value.numel()].view_as(value).clone()
            offset += value.numel()
        set_block(problem, point, blocks[key], _own(problem, point, {key: fresh})[key])
