"""Which block touches which: the one place where l - 1, l and l + 1 are written down.

A network of L layers has parameter blocks Θ_1 .. Θ_L and variable blocks x_1 .. x_{L-1}; x_0 is the input and x_L the
target.  The energy (eq. 13) is a sum of L terms.  Term l couples x_{l-1}, Θ_l and x_l through z_l = f_l(x_{l-1}, Θ_l):

    x_{l-1} ──Θ_l──> z_l ~ x_l ──Θ_{l+1}──> z_{l+1} ~ x_{l+1}

So Θ_l is in term l only, and x_l is in term l (as the output) and in term l + 1 (as the input).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class ParameterBlock:
    """Θ_l, l = 1 .. L."""

    layer: int


@dataclass(frozen=True, order=True)
class VariableBlock:
    """x_l, l = 1 .. L-1."""

    layer: int


Block = ParameterBlock | VariableBlock


def below(layer: int) -> int:
    """l - 1: the variable that layer l reads."""
    return layer - 1


def above(layer: int) -> int:
    """l + 1: the layer that reads x_l."""
    return layer + 1


def layers(depth: int) -> range:
    """1 .. L, the layers, terms and parameter blocks."""
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


def terms(block: Block) -> tuple[int, ...]:
    """The terms of the energy in which a block occurs."""
    if isinstance(block, ParameterBlock):
        return (block.layer,)
    return (block.layer, above(block.layer))


def members(term: int, depth: int) -> tuple[Block, ...]:
    """The blocks that occur in a term: Θ_l, x_{l-1} and x_l, as far as the last two are variables."""
    touched = (layer for layer in (below(term), term) if layer in hidden_layers(depth))
    return (ParameterBlock(term), *map(VariableBlock, touched))


def neighbours(block: Block, depth: int) -> frozenset[Block]:
    """The blocks that share a term with `block`; the update of a block reads these and no others."""
    return frozenset(other for term in terms(block) for other in members(term, depth)) - {block}


def independent(blocks: Iterable[Block]) -> bool:
    """Whether no two of the blocks share a term, so that updating them at once equals updating them in turn."""
    used = [term for block in blocks for term in terms(block)]
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


def odd_even(depth: int) -> tuple[tuple[Block, ...], ...]:
    """All Θ, odd x, even x: three groups of independent blocks that make one sweep."""
    hidden = hidden_layers(depth)
    return (
        tuple(map(ParameterBlock, layers(depth))),
        tuple(VariableBlock(layer) for layer in hidden if layer % 2 == 1),
        tuple(VariableBlock(layer) for layer in hidden if layer % 2 == 0),
    )
