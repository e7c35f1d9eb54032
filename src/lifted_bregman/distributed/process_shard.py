"""The samples of a batch on several ranks, by torch.distributed."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lifted_bregman.errors import SettingError
from lifted_bregman.problem.shard import Shard
from lifted_bregman.solvers.data_ranks import DataRanks

_SMALL = 2**16  # bytes; smaller sums are gathered and added here, in half the rounds of an all-reduce
_LIGHT = 2**18  # bytes; gathering fewer rows than this once is assumed cheaper than several small sums


class ProcessRanks(DataRanks):
    """The data-parallel ranks of a process group: the same parameters on all, and a shard of every batch on each.

    Small sums are gathered and added in the order of ranks, larger ones all-reduced: every rank gets the same bits.

    group  a process group of torch.distributed, gloo for CPUs and NCCL for GPUs; None for all processes
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.count, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.sent = 0
        """Bytes that this rank has handed to collectives."""
        self.messages = 0
        """The number of collectives that this rank has called."""
        self._group, self._device = group, message_device(group)

    def divide(self, *rows: Tensor) -> tuple[Shard, tuple[Tensor, ...]]:
        """A shard and its rows: of n samples each rank has n // count, and the first n % count ranks one more."""
        least, more = divmod(len(rows[0]), self.count)
        shard = ProcessShard(self, [least + (rank < more) for rank in range(self.count)])
        parts = tuple(shard.own_rows(whole) for whole in rows)
        shard.remember(zip(parts, rows, strict=True))
        return shard, parts

    def sum_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Σ over ranks of each tensor, in place: one message for each dtype among them."""
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            alike = [t for t in tensors if t.dtype == dtype]
            summed = self._summed(torch.cat([t.reshape(-1) for t in alike]).to(self._device))
            for t, part in zip(alike, summed.split([t.numel() for t in alike]), strict=True):
                t.copy_(part.view_as(t))

    def gather(self, message: Tensor) -> Tensor:
        """The messages of all ranks, of one shape, stacked to (ranks, ...)."""
        self._count(message)
        gathered = message.new_empty(self.count, *message.shape)
        dist.all_gather(list(gathered), message, group=self._group)
        return gathered

    def _summed(self, message: Tensor) -> Tensor:
        if message.numel() * message.element_size() > _SMALL:
            self._count(message)
            dist.all_reduce(message, group=self._group)
            return message
        parts = self.gather(message)
        summed = parts[0]
        for part in parts[1:]:
            summed += part
        return summed

    def _count(self, message: Tensor) -> None:
        self.messages += 1
        self.sent += message.numel() * message.element_size()
        if self.fault is None and message.is_floating_point() and not bool(message.sum().isfinite()):
            self.fault = None if bool(message.isfinite().all()) else self.messages


class ProcessShard(Shard):
    """The shard of one batch that this rank holds.

    sizes  the number of samples of each rank
    """

    def __init__(self, ranks: ProcessRanks, sizes: Sequence[int]) -> None:
        self.ranks, self.rank = ranks.count, ranks.rank
        self._ranks, self._sizes = ranks, list(sizes)
        self._own, self._samples = sizes[ranks.rank], sum(sizes)
        self._known: list[tuple[weakref.ref[Tensor], Tensor]] = []  # (rows of this rank, rows of all ranks)

    def samples(self, rows: int) -> int:
        """The number of samples of the batch."""
        self._require(rows, self._own)
        return self._samples

    def ends(self, rows: int) -> tuple[int, ...]:
        """Where the shard of each rank ends."""
        self._require(rows, self._own)
        return tuple(sum(self._sizes[: rank + 1]) for rank in range(self.ranks))

    def own_rows(self, rows: Tensor) -> Tensor:
        """A view of this rank's rows."""
        self._require(len(rows), self._samples)
        start = sum(self._sizes[: self.rank])
        return rows[start : start + self._own]

    def remember(self, rows: zip[tuple[Tensor, Tensor]]) -> None:
        """Caches pairs (rows of this rank, rows of all ranks), so that `all_rows` of the first sends no message."""
        self._known = [entry for entry in self._known if entry[0]() is not None]
        self._known += [(weakref.ref(part), whole) for part, whole in rows]

    def all_sum(self, *sums: Tensor) -> None:
        """Adds up the tensors of all ranks, in place."""
        self._ranks.sum_tensors(sums)

    def all_rows(self, rows: Tensor, each: int = 1, keep: bool = False) -> Tensor:
        """The rows of all ranks; in the message they are padded to the longest shard."""
        for part, whole in self._known:
            if part() is rows:
                return whole
        if rows.dtype == torch.bool:
            return self.all_rows(rows.view(torch.uint8), each).view(torch.bool)
        self._require(len(rows), each * self._own)
        sizes = [each * size for size in self._sizes]
        longest, message = max(sizes), rows.contiguous()
        if len(rows) < longest:
            message = torch.cat((message, rows.new_zeros(longest - len(rows), *rows.shape[1:])))
        parts = self._ranks.gather(message)
        if min(sizes) == longest:
            gathered = parts.flatten(0, 1)
        else:
            gathered = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        if keep:
            self.remember(zip([rows], [gathered], strict=True))
        return gathered

    def rows_are_cheap(self, rows: Tensor) -> bool:
        """Whether the rows of all ranks are cached here, or take at most 256 kB."""
        size = math.prod(rows.shape[1:]) * self._samples * rows.element_size()
        return size <= _LIGHT or any(part() is rows for part, _ in self._known)

    def _require(self, given: int, expected: int) -> None:
        if given != expected:
            raise SettingError(
                f"{given} rows were given, and the shard of this batch has {expected}: use the shard of the batch that "
                "the rows belong to."
            )


def message_device(group: dist.ProcessGroup | None) -> torch.device:
    """The device of messages: the present GPU for NCCL, the CPU for gloo."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
