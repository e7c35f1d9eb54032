"""The messages between ranks that hold different terms of a network; one process sends none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lifted_bregman.graph.partition import Partition
from lifted_bregman.problem.blocks import hidden_layers

if TYPE_CHECKING:
    from lifted_bregman.problem.lifted import LiftedProblem
    from lifted_bregman.problem.point import Point


class Border:
    """The messages of one rank of a partition.  This class is for one process, which holds all terms and sends none.

    The ranks of a layer-parallel run follow each other from the input to the output.  Rank r with the terms a .. b
    moves its own blocks, and has a copy of x_{a-1} from the rank below.  A simultaneous sweep from one point takes two
    messages at each border, whatever the depth:

        down  J_xᵀ d_{b+1}, the pull-back that moves x_b, and ‖J_x f_{b+1}‖² if step sizes come from curvatures
        up    x_b after its move

    In a state, variables that a rank does not hold are empty tensors of shape (samples, 0).
    """

    fault: int | None = None
    """When this rank first sent NaN or infinity, counted in half sweeps; None if it has not."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition

    # Messages between neighbours, in the order in which both ranks send and receive

    def send_above(self, rows: Tensor) -> None:
        """Sends x_b; the rows must not be changed in place afterwards."""
        raise AssertionError("no rank is above")

    def from_below(self, like: Tensor) -> Tensor:
        """x_{a-1} from the rank below, of the shape of `like`."""
        raise AssertionError("no rank is below")

    def send_below(self, rows: Tensor) -> None:
        """Sends J_xᵀ d_a, which moves x_{a-1}; the rows must not be changed in place afterwards."""
        raise AssertionError("no rank is below")

    def from_above(self, like: Tensor) -> Tensor:
        """J_xᵀ d_{b+1}, which moves x_b, of the shape of `like`."""
        raise AssertionError("no rank is above")

    def settle(self) -> None:
        """Waits until all rows that were sent have arrived: the end of a step."""

    # Messages among all ranks

    def all_numbers(self, *numbers: float) -> list[tuple[float, ...]]:
        """The numbers of each rank, on all ranks."""
        return [numbers]

    def all_terms(self, numbers: Tensor) -> Tensor:
        """One number for each term, (L,), from those of this rank's terms."""
        return numbers

    def all_names(self, named: Mapping[str, float]) -> dict[str, float]:
        """The named numbers of all ranks; if several ranks have a name, the number of the lowest."""
        return dict(named)

    def collect(self, value: Any) -> list[Any]:
        """Gathers the values of all ranks: a list in the order of ranks on rank 0, an empty one on the others.

        A value is a tensor, a number, a string, None, or a mapping or list of such.
        """
        return [value]

    def spread(self, tensors: Mapping[int, Sequence[Tensor]]) -> None:
        """Gives every rank the tensors of all terms, in place, from the ranks that hold the terms."""

    def sum_numbers(self, *sums: float) -> tuple[float, ...]:
        """Sums over all terms, from those over the terms of this rank."""
        return tuple(sum(column) for column in zip(*self.all_numbers(*sums), strict=True))

    def largest(self, number: float) -> float:
        """The largest of the numbers of all ranks."""
        return max(own for (own,) in self.all_numbers(number))


def enter(problem: LiftedProblem, point: Point) -> None:
    """Sets x_l = σ_l(z_l) for the variables of this rank, and sends x_b to the rank above."""
    border, partition, X = problem.border, problem.partition, point.x[0]
    for layer in hidden_layers(problem.depth) if partition.count > 1 else ():
        point.set_variable(layer, absent(X))
    for layer in partition.borrowed:
        point.set_variable(layer, border.from_below(X.new_empty((len(X), *problem.shapes(X)[layer - 1]))))
    for layer in partition.hidden:
        point.set_variable(layer, point.sigma(layer))
    for layer in partition.lent:
        border.send_above(point.x[layer])


def absent(rows: Tensor) -> Tensor:
    """An empty tensor (samples, 0), for a variable on another rank."""
    return rows.new_empty((len(rows), 0))


def lend(problem: LiftedProblem, point: Point) -> None:
    """Sends J_xᵀ d_a to the rank below, which moves x_{a-1} with it: the beginning of a sweep."""
    for layer in problem.partition.borrowed:
        problem.border.send_below(problem.pulled_back(point, layer))


def borrow(problem: LiftedProblem, point: Point) -> None:
    """Receives x_{a-1} after its move: the end of a sweep."""
    for layer in problem.partition.borrowed:
        point.set_variable(layer, problem.border.from_below(point.x[layer]))
    problem.border.settle()


def number(value: float) -> Tensor:
    """A number as a tensor, to be sent."""
    return torch.tensor([value], dtype=torch.float64)
