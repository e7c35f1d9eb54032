"""The messages of an optimiser between the processes of DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lifted_bregman.solvers.gram.move import AllSum, sum_alone


class Ranks:
    """The ranks that share the batches of a model; None for one process."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.count: int = 1 if group is None else torch.distributed.get_world_size(group)

    @property
    def all_sum(self) -> AllSum:
        """Adds up the tensors of all ranks, in place."""
        return sum_alone if self.count == 1 else self._sum

    def _sum(self, *sums: Tensor) -> None:
        for tensor in sums:
            whole = tensor.contiguous()
            torch.distributed.all_reduce(whole, group=self._group)
            if whole is not tensor:
                tensor.copy_(whole)

    def total(self, number: int, like: Tensor) -> int:
        """The sum of whole numbers over ranks."""
        if self.count == 1:
            return number
        message = torch.tensor(number, device=like.device)
        self._sum(message)
        return int(message)

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, in the order of ranks; their numbers may differ."""
        if self.count == 1:
            return rows
        sizes = [torch.zeros((), dtype=torch.int64, device=rows.device) for _ in range(self.count)]
        torch.distributed.all_gather(sizes, torch.tensor(len(rows), device=rows.device), group=self._group)
        counts = [int(size) for size in sizes]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        torch.distributed.all_gather(parts, padded, group=self._group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
