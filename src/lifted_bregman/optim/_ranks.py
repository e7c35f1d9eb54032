"""The messages of an optimiser between the processes of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.problem.shard import Shard


class Ranks(Shard):
    """The ranks that share the batches of a model; one process for None as group."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        if group is not None:
            self.ranks = torch.distributed.get_world_size(group)
            self.rank = torch.distributed.get_rank(group)

    def all_sum(self, *sums: Tensor) -> None:
        for tensor in sums if self.ranks > 1 else ():
            whole = tensor.contiguous()
            torch.distributed.all_reduce(whole, group=self._group)
            if whole is not tensor:
                tensor.copy_(whole)

    def totals(self, numbers: Sequence[int], like: Tensor) -> list[int]:
        """Sums of whole numbers over ranks, in one message."""
        if self.whole or not numbers:
            return list(numbers)
        message = torch.tensor(numbers, device=like.device)
        self.all_sum(message)
        return [int(total) for total in message.tolist()]

    def all_rows(self, rows: Tensor, each: int = 1, keep: bool = False) -> Tensor:
        """The rows of all ranks, in the order of ranks; their numbers may differ."""
        if self.whole:
            return rows
        sizes = [torch.zeros((), dtype=torch.int64, device=rows.device) for _ in range(self.ranks)]
        torch.distributed.all_gather(sizes, torch.tensor(len(rows), device=rows.device), group=self._group)
        counts = [int(size) for size in sizes]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        torch.distributed.all_gather(parts, padded, group=self._group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
