"""The samples of a batch on this rank, and the two functions through which sums over all samples pass."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Shard:
    """The rows of one batch that this rank holds: all of them, unless ranks share the batch.

    In a data-parallel run every rank has the same parameters and a contiguous part of each batch, which may be empty.
    A sum over samples passes through `all_sum`, a tensor with a row for each sample through `all_rows`.  Both give the
    same bits on every rank, so that all ranks compute the same step sizes and stop at the same time.  For one
    process both are the identity.  In a data-parallel run all ranks call them in the same order.
    """

    ranks: int = 1
    """The number of ranks that share the batch."""
    rank: int = 0
    """The number of this rank, from 0; shards are in the order of ranks."""

    @property
    def whole(self) -> bool:
        """Whether this rank holds the whole batch."""
        return self.ranks == 1

    def samples(self, rows: int) -> int:
        """The number of samples of the whole batch, from the number of rows on this rank."""
        return rows

    def ends(self, rows: int) -> tuple[int, ...]:
        """Where the shard of each rank ends, counted in samples of the whole batch."""
        return (rows,)

    def own_rows(self, rows: Tensor) -> Tensor:
        """The rows of this rank, a view, from a tensor with a row for each sample of the whole batch."""
        return rows

    def all_sum(self, *sums: Tensor) -> None:
        """Adds up the tensors of all ranks, in place: sums over this rank's samples become sums over the batch.

        All tensors of one dtype go in one message.
        """

    def all_rows(self, rows: Tensor, each: int = 1, keep: bool = False) -> Tensor:
        """The rows of all ranks, in the order of the batch.

        each  the number of rows of one sample
        keep  a promise that `rows` will not be changed in place: as long as they exist, a second call sends no message
        """
        return rows

    def rows_are_cheap(self, rows: Tensor) -> bool:
        """Whether `all_rows` costs less than a few calls of `all_sum`."""
        return True


WHOLE = Shard()
"""The shard of one process, which holds every batch as a whole."""


def sum_numbers(shard: Shard, *sums: float) -> tuple[float, ...]:
    """Sums of Python numbers over the ranks that share the batch, in float64."""
    if shard.whole or not sums:
        return sums
    message = torch.tensor(sums, dtype=torch.float64)
    shard.all_sum(message)
    return tuple(message.tolist())


def join_norms(shard: Shard, *norms: float) -> tuple[float, ...]:
    """The norms over all rows of the batch, √Σ over ranks of the squared norms over the rows of each rank."""
    if shard.whole:
        return norms
    own = torch.tensor(norms, dtype=torch.float64)
    squares = own.square()
    shard.all_sum(squares)
    if bool(squares.isfinite().all()):
        return tuple(squares.sqrt_().tolist())
    # A square has overflowed: gather the norms of all ranks
    table = own.new_zeros(shard.ranks, len(norms))
    table[shard.rank] = own
    shard.all_sum(table)
    return tuple(math.hypot(*column) for column in table.t().tolist())
