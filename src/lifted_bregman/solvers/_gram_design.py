"""The rows of a dense layer's inputs in a batch, and the metric that they make of its samples.

Where samples are shared with peers, the batch and its blocks are those of all.  In sample space each has the blocks of
its own part, if all parts end where blocks end; otherwise the rows are gathered, and everyone has all of them.  In
weight space, and where no metric is made, everyone has its own rows, and sums over rows are added up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from lifted_bregman._linalg import damped_inverse
from lifted_bregman.maps import Dense
from lifted_bregman.problem import Peers
from lifted_bregman.solvers._packing import rows

_ALONE = Peers()


@dataclass(frozen=True)
class Design:
    """The rows A = [X 1] of a dense layer, or what is trained of them, times the roots of the samples' weights."""

    X: Tensor | None
    """(m, in); None where the weight is frozen."""
    ones: Tensor | None
    """(m, 1); None where there is no bias to train."""
    root: Tensor | None
    """√w_i, (m, 1); None for samples that all count the same."""
    block: int
    """b; 0 for weight space."""
    peers: Peers = _ALONE
    """Who has the other samples."""
    elsewhere: int = 0
    """Rows of the batch that only others have."""
    gathered: bool = False
    """Whether these are the rows of all peers."""

    @property
    def columns(self) -> int:
        """n."""
        return (0 if self.X is None else self.X.shape[1]) + (self.ones is not None)

    @property
    def rows(self) -> int:
        """How many there are here."""
        return len(_one(self.X, self.ones))

    @property
    def total(self) -> int:
        """m."""
        return self.rows + self.elsewhere

    @property
    def filled(self) -> bool:
        """Whether the last block is filled up with zeros."""
        return self.rows % self.block > 0

    @property
    def key(self) -> tuple[int, ...]:
        """Designs with the same key can be stacked."""
        return self.columns, self.block, self.X is None, self.ones is None, self.root is None, self.rows

    def subtract(self, into: Mapping[str, Tensor], D: Tensor) -> None:
        """into ← into - AᵀD/m, in place."""
        step = -1.0 / self.total
        if self.summed:
            parts: dict[str, Tensor] = {}
            if self.X is not None:
                parts["weight"] = D.t() @ self.X
            if self.ones is not None:
                parts["bias"] = D.t() @ self.ones.view(-1)
            self.add_up(*parts.values())
            for name, part in parts.items():
                into[name].add_(part, alpha=step)
            return
        if self.X is not None:
            into["weight"].addmm_(D.t(), self.X, alpha=step)
        if self.ones is not None:
            into["bias"].addmv_(D.t(), self.ones.view(-1), alpha=step)

    @property
    def summed(self) -> bool:
        """Whether sums over the rows here are parts of those over all."""
        return self.peers.count > 1 and not self.gathered

    def anywhere(self, here: bool) -> bool:
        """Whether `here` is true in any of the processes that have rows of the batch."""
        return self.peers.total_of(float(here)) != (0.0,)

    def add_up(self, *sums: Tensor) -> None:
        """Makes sums over the rows here those over all rows, in place."""
        if self.summed:
            self.peers.total(*sums)


def design(
    f: Dense, x: Tensor, weights: Tensor | None, block: int, peers: Peers = _ALONE, metric: bool = True
) -> Design:
    """The design of a dense layer with inputs x (s, ...).

    Blocks have at most `block` samples, and half as many as the layer has inputs.  Layers with at most `block` inputs
    are left in weight space, where the metric is that of the whole batch.

    metric  whether a metric will be made from it
    """
    trained, n = f.parameters, f.module.in_features
    each = 1 if f.flatten else math.prod(x.shape[1:-1])
    m = peers.samples(len(x)) * each
    blocks = -(-m // min(block, n // 2 or 1))
    b = 0 if n <= block else -(-m // blocks)
    gathered = False
    if peers.count > 1 and b and metric:
        gathered = any(end * each % b for end in peers.ends(len(x)) if end * each < m)
    if gathered:
        x, weights = peers.gather(x, keep=True), None if weights is None else peers.gather(weights)
    X = rows(f, x)
    root = None
    if weights is not None:
        root = weights.sqrt().repeat_interleave(each)[:, None]
    ones = None
    if "bias" in trained:
        ones = X.new_ones(len(X), 1) if root is None else root
    A = None if "weight" not in trained else X if root is None else X * root
    return Design(A, ones, root, b, peers, m - len(X), gathered)


class Metric:
    """(A Aᵀ/b + tI)⁻¹ of the blocks of one layer."""

    def __init__(self, inverse: Tensor, t: Tensor, fallback: Tensor) -> None:
        self.inverse = inverse
        """(blocks, b, b)."""
        self.t = t
        """(blocks, 1, 1)."""
        self.fallback = fallback
        """Whether a multiple of the identity has taken its place, () of bool."""


def metrics(designs: Sequence[Design], damping: float) -> list[Metric]:
    """The metrics of layers whose designs have the same key, in one call for all."""
    first, b = designs[0], designs[0].block
    each = -(-first.rows // b)
    K = _one(first.X, first.ones).new_zeros(len(designs) * each, b, b)
    for own, part in zip(designs, K.split(each), strict=True):
        if own.X is not None:
            A = blocks_of(own.X, b)
            torch.bmm(A, A.mT, out=part)
        if own.ones is not None and (own.filled or own.root is not None):
            column = blocks_of(own.ones, b)
            part.add_(column * column.mT)
    if first.ones is not None and not (first.filled or first.root is not None):
        K.add_(1.0)
    inverse, t, fallback = damped_inverse(K.div_(b), damping, first.anywhere if first.summed else None)
    parts = zip(inverse.split(each), t.split(each), strict=True)
    return [Metric(M, own, fallback) for M, own in parts]


def blocks_of(values: Tensor, block: int) -> Tensor:
    """Rows (m, k) as (blocks, b, k), filled up with zeros."""
    missing = -len(values) % block
    if missing:
        values = torch.cat((values, values.new_zeros(missing, values.shape[1])))
    return values.view(-1, block, values.shape[1])


def _one(X: Tensor | None, ones: Tensor | None) -> Tensor:
    """The first that is there."""
    return X if X is not None else cast(Tensor, ones)
