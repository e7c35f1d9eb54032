"""The ranks that share each batch of a run."""

from __future__ import annotations

from torch import Tensor

from lifted_bregman.problem.shard import WHOLE, Shard


class DataRanks:
    """The ranks of a data-parallel run.  Here there is one, which holds every batch as a whole."""

    count: int = 1
    """The number of ranks."""
    rank: int = 0
    """The number of this rank, from 0."""
    fault: int | None = None
    """The number of the first message to which this rank gave NaN or infinity; None if there was none."""

    def divide(self, *rows: Tensor) -> tuple[Shard, tuple[Tensor, ...]]:
        """The shard of a batch on this rank, and its rows of tensors that have a row for each sample of the batch.

        The rows are views, and must not be changed in place: `Shard.all_rows` gives the whole back without a message.
        """
        return WHOLE, rows
