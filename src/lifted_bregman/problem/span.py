"""Which layers a process has: all of them here, some of them in a layer-parallel run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lifted_bregman.problem.blocks import Block, ParameterBlock, VariableBlock, hidden_layers

if TYPE_CHECKING:
    from lifted_bregman.problem.lifted import LiftedProblem
    from lifted_bregman.problem.point import Point


class Span:
    """The layers a .. b of a process, by default all L: its Θ_a .. Θ_b and x_a .. x_b, without the target x_L.

    The processes of a layer-parallel run follow each other from the input to the output.  Each moves its own blocks,
    and has a copy of x_{a-1}, which it borrows from the process below.  A simultaneous sweep from one point needs
    two messages at each border, whatever the depth:

        down  J_xᵀ d_{b+1}, the pull-back that moves x_b, and where steps come from curvatures ‖J_x f_{b+1}‖², a number
        up    x_b as it has moved

    Whatever belongs to no layer of a process is not in its memory: in a state, the variables x_l that it has no use for
    are of width 0.
    """

    count: int = 1
    """The number of processes."""
    rank: int = 0
    """Which of them this is, from 0 at the input."""
    fault: int | None = None
    """When this process first sent NaN or infinity, counted in half sweeps."""

    def __init__(self, depth: int, first: int = 1, last: int | None = None) -> None:
        last = depth if last is None else last
        self.layers = range(first, last + 1)
        """a .. b."""
        self.hidden = range(first, min(last, depth - 1) + 1)
        """Those of its variables: a .. b, without L."""
        self.borrowed = range(first - 1, first) if first > 1 else range(0)
        """a - 1, whose variable the process below moves, if there is one."""
        self.lent = range(last, last + 1) if last < depth else range(0)
        """b, whose variable the process above reads, if there is one."""

    @property
    def held(self) -> tuple[int, ...]:
        """The layers of the variables in its memory, which are its own and the one it borrows."""
        return (*self.borrowed, *self.hidden)

    def own(self, blocks: Iterable[Block]) -> tuple[Block, ...]:
        """Those of the blocks that this process moves, in their order."""
        movable: dict[type, range] = {ParameterBlock: self.layers, VariableBlock: self.hidden}
        return tuple(block for block in blocks if block.layer in movable[type(block)])

    def lends(self, block: Block) -> bool:
        """Whether the process above reads this block."""
        return isinstance(block, VariableBlock) and block.layer in self.lent

    # Messages between neighbours, in the order in which both make them

    def send_above(self, rows: Tensor) -> None:
        """Sends x_b; the rows must not be changed in place afterwards."""
        raise AssertionError("no process is above")

    def from_below(self, like: Tensor) -> Tensor:
        """x_{a-1} from the process below, of the shape of `like`."""
        raise AssertionError("no process is below")

    def send_below(self, rows: Tensor) -> None:
        """Sends what moves x_{a-1}; the rows must not be changed in place afterwards."""
        raise AssertionError("no process is below")

    def from_above(self, like: Tensor) -> Tensor:
        """What moves x_b, of the shape of `like`."""
        raise AssertionError("no process is above")

    def settle(self) -> None:
        """Waits until what was sent has arrived: the end of a step."""

    # Messages among all

    def total_of(self, *sums: float) -> tuple[float, ...]:
        """Sums over the layers of all processes, from those over one's own."""
        return sums

    def most(self, number: float) -> float:
        """The largest of all processes' numbers."""
        return number

    def all_layers(self, parts: Tensor) -> Tensor:
        """One number for each layer, (L,), from those of one's own layers."""
        return parts

    def merged(self, named: Mapping[str, float]) -> dict[str, float]:
        """The named numbers of all processes; of a name that several have, that of the lowest."""
        return dict(named)

    def collect(self, value: Any) -> list[Any]:
        """The values of all ranks on rank 0, in their order, and nothing on the others.

        A value is a tensor, a number, a string, None, or a mapping or list of such.
        """
        return [value]

    def spread(self, tensors: Mapping[int, Sequence[Tensor]]) -> None:
        """Gives every process the tensors of all layers, in place, from those that have the layers."""


def enter(problem: LiftedProblem, point: Point) -> None:
    """Takes a point to x_l = σ_l(z_l), as far as this process holds its variables, and sends x_b on."""
    span, X = problem.span, point.x[0]
    for layer in hidden_layers(problem.depth) if span.count > 1 else ():
        point.set_variable(layer, absent(X))
    for layer in span.borrowed:
        point.set_variable(layer, span.from_below(X.new_empty((len(X), *problem.shapes(X)[layer - 1]))))
    for layer in span.hidden:
        point.set_variable(layer, point.sigma(layer))
    for layer in span.lent:
        span.send_above(point.x[layer])


def absent(rows: Tensor) -> Tensor:
    """A variable of another process: a row without numbers for each sample."""
    return rows.new_empty((len(rows), 0))


def lend(problem: LiftedProblem, point: Point) -> None:
    """Sends J_xᵀ d_a to the process below, which moves x_{a-1} with it: the beginning of a sweep."""
    for layer in problem.span.borrowed:
        problem.span.send_below(problem.pulled_back(point, layer))


def borrow(problem: LiftedProblem, point: Point) -> None:
    """Takes x_{a-1} as it has moved: the end of a sweep."""
    for layer in problem.span.borrowed:
        point.set_variable(layer, problem.span.from_below(point.x[layer]))
    problem.span.settle()


def number(value: float) -> Tensor:
    """A number as a message."""
    return torch.tensor([value], dtype=torch.float64)
