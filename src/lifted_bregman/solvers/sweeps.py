"""Sweeps: the order in which groups of blocks are updated, each group simultaneously from one point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from lifted_bregman.errors import SettingError
from lifted_bregman.graph import Links
from lifted_bregman.problem.blocks import (
    Block,
    VariableBlock,
    all_blocks,
    blocks_of,
    bottom_up,
    by_colour,
    hidden_layers,
    layers,
    top_down,
)

Groups = tuple[tuple[Block, ...], ...]


class Sweep(ABC):
    """An order of groups of blocks."""

    @abstractmethod
    def groups(self, links: Links) -> Groups:
        """The groups of one sweep over the blocks of a network, in order."""

    def coupling(self, links: Links) -> int:
        """The factor m on a block's curvature L that accounts for the blocks that move at the same time: steps use mL.

        The move of a group changes z_l by Δz_l = A + B, where A is due to Θ_l and B to x_{l-1}; a term that reads
        several variables has a part B for each.  As φ_l* is 1-smooth, E changes by its first-order part and at most

            Σ_l λ_l ( ½‖Δz_l‖² - <Δx_l, Δz_l> )

        in the mean over samples.  If n of the parts are not 0, ‖Δz_l‖² is at most n times the sum of their squares.  If
        x_l moves too, -<Δx_l, Δz_l> <= ½‖Δz_l‖² + ½‖Δx_l‖², and the last term is the strong convexity of λ_l φ_l, which
        the proximal step of x_l gains.  So m = n, and 2n if x_l moves.  The third-order product of ΔΘ_l and Δx_{l-1} is
        left out; it vanishes where they do not move at once.
        """
        return max(_coupling(set(group), term, links) for group in self.groups(links) for term in layers(links.depth))


def _coupling(group: set[Block], term: int, links: Links) -> int:
    """m of one term of the energy."""
    own = {block for block in blocks_of(term, links) if block != VariableBlock(term)}
    follows = term in hidden_layers(links.depth) and VariableBlock(term) in group
    return len(own & group) * (2 if follows else 1)


@dataclass(frozen=True)
class Jacobi(Sweep):
    """All blocks at once, from the same point, as in layer-parallel runs.

    Its `coupling` is 1 for one layer, 2 for two and 4 for more: steps below 2/4L decrease E up to terms of third order.
    `Backtracking` guarantees that it falls.

    Example:
        >>> from lifted_bregman.solvers import Jacobi
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.ProximalGradient(sweep=Jacobi()), epochs=20)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    def groups(self, links: Links) -> Groups:
        return (all_blocks(links.depth),)


@dataclass(frozen=True)
class TopDown(Sweep):
    """Θ_L, x_{L-1}, Θ_{L-1}, ..., Θ_1, one after another: carries the output error to layer 1 in one sweep.

    Example:
        >>> from lifted_bregman.solvers import TopDown
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.ProximalGradient(sweep=TopDown()), epochs=20)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    def groups(self, links: Links) -> Groups:
        return tuple((block,) for block in top_down(links.depth))


@dataclass(frozen=True)
class BottomUp(Sweep):
    """Θ_1, x_1, Θ_2, ..., Θ_L, one after another.

    Example:
        >>> from lifted_bregman.solvers import BottomUp
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.ProximalGradient(sweep=BottomUp()), epochs=20)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    def groups(self, links: Links) -> Groups:
        return tuple((block,) for block in bottom_up(links.depth))


@dataclass(frozen=True)
class OddEven(Sweep):
    """All Θ, then the odd x, then the even x: the order of the appendix; within a group nothing is coupled.

    In a network that is not a chain the variables are visited colour by colour, so that no two of a group share a term.

    Example:
        >>> from lifted_bregman.solvers import OddEven
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.ProximalGradient(sweep=OddEven()), epochs=20)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    def groups(self, links: Links) -> Groups:
        return by_colour(links)


@dataclass(frozen=True)
class Permutation(Sweep):
    """Any order, one block after another; each block exactly once.

    Example:
        >>> from lifted_bregman.problem.blocks import ParameterBlock, VariableBlock
        >>> from lifted_bregman.solvers import Permutation
        >>> order = Permutation((VariableBlock(1), ParameterBlock(2), ParameterBlock(1)))
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.ProximalGradient(sweep=order), epochs=20)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    order: tuple[Block, ...]

    def groups(self, links: Links) -> Groups:
        depth = links.depth
        if sorted(map(repr, self.order)) != sorted(map(repr, all_blocks(depth))):
            raise SettingError(
                f"the order has {len(self.order)} blocks; for {depth} layers it must hold each of "
                f"{all_blocks(depth)} once."
            )
        return tuple((block,) for block in self.order)
