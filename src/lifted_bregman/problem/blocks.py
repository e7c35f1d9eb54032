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
    """Θ_l, l = 1 .. L.

    Example:
        >>> from lifted_bregman.problem.blocks import ParameterBlock, top_down
        >>> top_down(1) == (ParameterBlock(1),)
        True
    """

    layer: int


@dataclass(frozen=True, order=True)
class VariableBlock:
    """x_l, l = 1 .. L-1.

    Example:
        >>> from lifted_bregman.problem.blocks import VariableBlock, top_down
        >>> VariableBlock(1) in top_down(2)
        True
    """

    layer: int


Block = ParameterBlock | VariableBlock


def layers(depth: int) -> range:
    """1 .. L, the terms and parameter blocks.

    Example:
        >>> from lifted_bregman.problem.blocks import layers
        >>> list(layers(3))
        [1, 2, 3]
    """
    return range(1, depth + 1)


def hidden_layers(depth: int) -> range:
    """1 .. L-1, the variable blocks.

    Example:
        >>> from lifted_bregman.problem.blocks import hidden_layers
        >>> list(hidden_layers(3))
        [1, 2]
    """
    return range(1, depth)


def code_layer(depth: int) -> int:
    """The middle hidden layer, an autoencoder's code; the lower one if two are in the middle.

    Example:
        >>> from lifted_bregman.problem.blocks import code_layer
        >>> code_layer(6)
        3
    """
    return depth // 2


def all_blocks(depth: int) -> tuple[Block, ...]:
    """Θ_1 .. Θ_L, x_1 .. x_{L-1}.

    Example:
        >>> from lifted_bregman.problem.blocks import all_blocks
        >>> all_blocks(2)
        (ParameterBlock(layer=1), ParameterBlock(layer=2), VariableBlock(layer=1))
    """
    return (*map(ParameterBlock, layers(depth)), *map(VariableBlock, hidden_layers(depth)))


def terms(block: Block, links: Links) -> tuple[int, ...]:
    """The numbers of the terms of the energy in which a block occurs.

    Example:
        >>> from lifted_bregman.graph import Links
        >>> from lifted_bregman.problem.blocks import VariableBlock, terms
        >>> terms(VariableBlock(1), Links([(0,), (1,), (2,)]))
        (1, 2)
    """
    if isinstance(block, ParameterBlock):
        return links.users[block.layer]
    return (block.layer, *links.readers[block.layer])


def blocks_of(term: int, links: Links) -> tuple[Block, ...]:
    """The blocks that occur in a term: its parameters, what its map reads and its own x, as far as they are variables.

    In a chain: Θ_l, x_{l-1} and x_l.

    Example:
        >>> from lifted_bregman.graph import Links
        >>> from lifted_bregman.problem.blocks import blocks_of
        >>> blocks_of(2, Links([(0,), (1,), (2,)]))
        (ParameterBlock(layer=2), VariableBlock(layer=1), VariableBlock(layer=2))
    """
    hidden = hidden_layers(links.depth)
    parameters = (ParameterBlock(layer) for layer in layers(links.depth) if term in links.users[layer])
    return (*parameters, *(VariableBlock(v) for v in (*links.inputs[term], term) if v in hidden))


def neighbours(block: Block, links: Links) -> frozenset[Block]:
    """The blocks that share a term with `block`; the update of a block reads these and no others.

    Example:
        >>> from lifted_bregman.graph import Links
        >>> from lifted_bregman.problem.blocks import ParameterBlock, neighbours
        >>> neighbours(ParameterBlock(1), Links([(0,), (1,), (2,)]))
        frozenset({VariableBlock(layer=1)})
    """
    return frozenset(other for term in terms(block, links) for other in blocks_of(term, links)) - {block}


def independent(blocks: Iterable[Block], links: Links) -> bool:
    """Whether no two of the blocks share a term, so that updating them at once equals updating them in turn.

    Example:
        >>> from lifted_bregman.graph import Links
        >>> from lifted_bregman.problem.blocks import VariableBlock, independent
        >>> independent([VariableBlock(1), VariableBlock(3)], Links([(0,), (1,), (2,), (3,)]))
        True
    """
    used = [term for block in blocks for term in terms(block, links)]
    return len(used) == len(set(used))


def top_down(depth: int) -> tuple[Block, ...]:
    """Θ_L, x_{L-1}, Θ_{L-1}, .., x_1, Θ_1: the order of Algorithm 1, which carries the output error to layer 1.

    Example:
        >>> from lifted_bregman.problem.blocks import top_down
        >>> top_down(2)
        (ParameterBlock(layer=2), VariableBlock(layer=1), ParameterBlock(layer=1))
    """
    return tuple(reversed(bottom_up(depth)))


def bottom_up(depth: int) -> tuple[Block, ...]:
    """Θ_1, x_1, Θ_2, .., x_{L-1}, Θ_L.

    Example:
        >>> from lifted_bregman.problem.blocks import bottom_up
        >>> bottom_up(2)
        (ParameterBlock(layer=1), VariableBlock(layer=1), ParameterBlock(layer=2))
    """
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

    Example:
        >>> from lifted_bregman.graph import Links
        >>> from lifted_bregman.problem.blocks import by_colour
        >>> [len(colour) for colour in by_colour(Links([(0,), (1,), (2,), (3,)]))]  # Θ_1 .. Θ_4; x_1 and x_3; x_2
        [4, 2, 1]
    """
    parameters = tuple(map(ParameterBlock, layers(links.depth)))
    return (parameters, *(tuple(map(VariableBlock, colour)) for colour in links.colours))


def own_blocks(blocks: Iterable[Block], partition: Partition) -> tuple[Block, ...]:
    """Those of the blocks that the rank of the partition moves, in their order.

    Example:
        >>> from lifted_bregman.graph import Links, Partition
        >>> from lifted_bregman.problem.blocks import all_blocks, own_blocks
        >>> partition = Partition(Links([(0,), (1,)]), parts=(range(1, 2), range(2, 3)), rank=1)
        >>> own_blocks(all_blocks(2), partition)
        (ParameterBlock(layer=2),)
    """
    movable: dict[type, range] = {ParameterBlock: partition.terms, VariableBlock: partition.hidden}
    return tuple(block for block in blocks if block.layer in movable[type(block)])
