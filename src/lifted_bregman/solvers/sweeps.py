"""In which order the blocks are visited: groups of blocks, each group updated simultaneously from one point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from lifted_bregman.errors import SettingError
from lifted_bregman.problem.blocks import Block, all_blocks, bottom_up, odd_even, top_down

Groups = tuple[tuple[Block, ...], ...]


class Sweep(ABC):
    """An order of the blocks."""

    @abstractmethod
    def groups(self, depth: int) -> Groups:
        """The groups of one sweep over a network of `depth` layers, in order."""


@dataclass(frozen=True)
class Jacobi(Sweep):
    """All blocks at once, from the same point: what layer-parallel runs do.

    Block-wise step sizes do not guarantee descent here; `Backtracking` does.
    """

    def groups(self, depth: int) -> Groups:
        return (all_blocks(depth),)


@dataclass(frozen=True)
class TopDown(Sweep):
    """Θ_L, x_{L-1}, Θ_{L-1}, ..., Θ_1, one after another: carries the output error to layer 1 in one sweep."""

    def groups(self, depth: int) -> Groups:
        return tuple((block,) for block in top_down(depth))


@dataclass(frozen=True)
class BottomUp(Sweep):
    """Θ_1, x_1, Θ_2, ..., Θ_L, one after another."""

    def groups(self, depth: int) -> Groups:
        return tuple((block,) for block in bottom_up(depth))


@dataclass(frozen=True)
class OddEven(Sweep):
    """All Θ, then the odd x, then the even x: the order of the appendix; within a group nothing is coupled."""

    def groups(self, depth: int) -> Groups:
        return odd_even(depth)


@dataclass(frozen=True)
class Permutation(Sweep):
    """Any order, one block after another; each block exactly once."""

    order: tuple[Block, ...]

    def groups(self, depth: int) -> Groups:
        if sorted(map(repr, self.order)) != sorted(map(repr, all_blocks(depth))):
            raise SettingError(
                f"the order has {len(self.order)} blocks; for {depth} layers it must hold each of "
                f"{all_blocks(depth)} once."
            )
        return tuple((block,) for block in self.order)
