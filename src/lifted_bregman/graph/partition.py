"""Which rank holds which terms, and which variables cross the borders."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lifted_bregman.graph.terms import Links


@dataclass(frozen=True)
class Partition:
    """The terms of a network on several ranks, seen from one of them; by default one rank holds all.

    Rank r holds the terms a .. b of its part: the parameters Θ_a .. Θ_b, which it moves, and the variables x_a .. x_b,
    without the target x_L.  It has a copy of each variable that its terms read and another rank moves.

    Example:
        >>> from lifted_bregman.graph import Links, Partition
        >>> partition = Partition(Links([(0,), (1,), (2,)]), parts=(range(1, 3), range(3, 4)), rank=1)
        >>> partition.terms, partition.borrowed
        (range(3, 4), (2,))
    """

    links: Links
    parts: tuple[range, ...] = ()
    """The terms of each rank, contiguous and in order; () for all of them on one rank."""
    rank: int = 0
    """The number of this rank, from 0 at the input."""

    @property
    def count(self) -> int:
        """The number of ranks."""
        return max(1, len(self.parts))

    @cached_property
    def terms(self) -> range:
        """The terms of this rank."""
        return self.parts[self.rank] if self.parts else range(1, self.links.depth + 1)

    @cached_property
    def hidden(self) -> range:
        """The variables of its terms without the target, which this rank moves."""
        return range(self.terms.start, min(self.terms.stop, self.links.depth))

    @cached_property
    def borrowed(self) -> tuple[int, ...]:
        """The variables that terms of this rank read and another rank moves; in a chain x_{a-1}."""
        read = {v for term in self.terms for v in self.links.inputs[term] if v > 0}
        return tuple(sorted(read.difference(self.terms)))

    @cached_property
    def lent(self) -> tuple[int, ...]:
        """The variables that this rank moves and terms of another rank read; in a chain x_b."""
        return tuple(v for v in self.hidden if any(reader not in self.terms for reader in self.links.readers[v]))

    @cached_property
    def held(self) -> tuple[int, ...]:
        """The variables in the memory of this rank, which are its own and the borrowed ones."""
        return (*self.borrowed, *self.hidden)
