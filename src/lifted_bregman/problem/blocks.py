"""Which block touches which: the one place where the links between terms become blocks and their neighbours.

A network of L terms has parameter blocks Θ_1 .. Θ_L and variable blocks x_1 .. x_{L-1}; x_0 is the input and x_L the
target.  The energy (eq. 13) is a sum of L terms.  Term l couples Θ_l, x_l and the variables that its map reads; in a
chain that is x_{l-1}:

    x_{l-1} ──Θ_l──> z_l ~ x_l ──Θ_{l+1}──> z_{l+1} ~ x_{l+1}

So Θ_l is in term l, and in the others that share it; x_l is in term l (as the output) and in the terms that read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lifted_bregman.graph import Links, Partition


@dataclass(frozen=True, order=True)
class ParameterBlock:
    """Θ_l, l = 1 .. L."""

    layer: int


@dataclass(frozen=True, order=True)
class VariableBlock:
    """x_l, l = 1 .. L-1."""

    layer: int


Block = ParameterBlock | VariableBlock


def layers(depth: int) -> range:
    """1 .. L, the terms and parameter blocks."""
    return range(1, depth + 1)


def hidden_layers(depth: int) -> range:
    """1 .. L-1, the variable blocks."""
    return range(1, depth)


def code_layer(depth: int) -> int:
    """The middle hidden layer, an autoencoder's code; the lower one if two are in the middle."""
    return depth // 2


def all_blocks(depth: int) -> tuple[Block, ...]:
    """Θ_1 .. Θ_L, x_1 .. x_{L-1}."""
    return (*map(ParameterBlock, layers(depth)), *map(VariableBlock, hidden_layers(depth)))


def terms(block: Block, links: Links) -> tuple[int, ...]:
    """The terms of the energy in which a block occurs."""
    if isinstance(block, ParameterBlock):
        return links.users[block.layer]
    return (block.layer, *links.readers[block.layer])


def members(term: int, links: Links) -> tuple[Block, ...]:
    """The blocks that occur in a term: its parameters, what its map reads and its own x, as far as they are variables.

    In a chain: Θ_l, x_{l-1} and x_l.
    """
    hidden = hidden_layers(links.depth)
    parameters = (ParameterBlock(layer) for layer in layers(links.depth) if term in links.users[layer])
    return (*parameters, *(VariableBlock(v) for v in (*links.inputs[term], term) if v in hidden))


def neighbours(block: Block, links: Links) -> frozenset[Block]:
    """The blocks that share a term with `block`; the update of a block reads these and no others."""
    return frozenset(other for term in terms(block, links) for other in members(term, links)) - {block}


def independent(blocks: Iterable[Block], links: Links) -> bool:
    """Whether no two of the blocks share a term, so that updating them at once equals updating them in turn."""
    used = [term for block in blocks for term in terms(block, links)]
    return len(used) == len(set(used))


def top_down(depth: int) -> tuple[Block, ...]:
    """Θ_L, x_{L-1}, Θ_{L-1}, .., x_1, Θ_1: the order of Algorithm 1, which carries the output error to layer 1."""
    return tuple(reversed(bottom_up(depth)))


def bottom_up(depth: int) -> tuple[Block, ...]:
    """Θ_1, x_1, Θ_2, .., x_{L-1}, Θ_L."""
    hidden = hidden_layers(depth)
    return tuple(
        block
        for layer in layers(depth)
        for block in (ParameterBlock(layer), VariableBlock(layer))
        if isinstance(block, ParameterBlock) or layer in hidden
    )


def by_colour(links: Links) -> tuple[tuple[Block, ...], ...]:
    """All Θ, then the variables colour by colour: groups of independent blocks that make one sweep.

    In a chain the colours are the odd and the even layers.
    """
    parameters = tuple(map(ParameterBlock, layers(links.depth)))
    return (parameters, *(tuple(map(VariableBlock, colour)) for colour in links.colours))


def own_blocks(blocks: Iterable[Block], partition: Partition) -> tuple[Block, ...]:
    """Those of the blocks that the rank of the partition moves, in their order."""
    movable: dict[type, range] = {ParameterBlock: partition.terms, VariableBlock: partition.hidden}
    return tuple(block for block in blocks if block.layer in movable[type(block)])
