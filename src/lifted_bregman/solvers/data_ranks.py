"""The ranks that share each batch of a run."""

from __future__ import annotations

from torch import Tensor

from lifted_bregman.problem.shard import WHOLE, Shard


class DataRanks:
    """The ranks of a data-parallel run.  This class is for one rank, which holds every whole batch."""

    count: int = 1
    """The number of ranks."""
    rank: int = 0
    """The number of this rank, from 0."""
    fault: int | None = None
    """The number of the first message in which this rank sent NaN or infinity; None if it never did."""

    def divide(self, *rows: Tensor) -> tuple[Shard, tuple[Tensor, ...]]:
        """The shard of a batch on this rank, and its rows of these tensors, which have a row for each sample.

        The rows are views.  They must not be changed in place, because `Shard.all_rows` of them returns the whole
        tensor without a message.
        """
        return WHOLE, rows
