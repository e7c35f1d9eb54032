"""The samples of a batch over several processes, by torch.distributed."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lifted_bregman.errors import SettingError
from lifted_bregman.problem import Peers

_SMALL = 2**16  # bytes up to which a sum is gathered and added up, which takes half as many rounds as reducing it
_LIGHT = 2**18  # bytes of a batch's rows up to which gathering them once is taken for cheaper than several small sums


class ProcessPeers(Peers):
    """Those of a process group: all have the same parameters, and each a part of every batch.

    A sum or mean is one message for all tensors of a call, and one for each dtype among them; numbers are float64.
    Gathered rows are padded to the longest part.  Sums are added up in the order of ranks, or reduced by the group: in
    both cases every process gets the same bits.

    group  of torch.distributed, None for all processes; on a CPU with gloo, on GPUs with NCCL
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.count, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.sent = 0
        """Bytes that this process has handed to collectives."""
        self.messages = 0
        """How often it has."""
        self._group, self._device = group, message_device(group)
        self._sizes: list[int] = []  # samples of each process in the present batch
        self._known: list[tuple[weakref.ref[Tensor], Tensor]] = []  # own rows that are alive, and those of all

    def divide(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """One's own rows: of n samples each has n // count, and the first n % count one more."""
        least, more = divmod(len(rows[0]), self.count)
        self._sizes = [least + (rank < more) for rank in range(self.count)]
        parts = tuple(self.own(whole) for whole in rows)
        self._known = [(weakref.ref(part), whole) for part, whole in zip(parts, rows, strict=True)]
        return parts

    def own(self, rows: Tensor) -> Tensor:
        """A view of one's own rows."""
        self._require(len(rows), self._samples)
        start = sum(self._sizes[: self.rank])
        return rows[start : start + self._own]

    def samples(self, own: int) -> int:
        """The samples of the batch that was divided last."""
        self._require(own, self._own)
        return self._samples

    def ends(self, own: int) -> tuple[int, ...]:
        """Where the parts of the batch that was divided last end."""
        self._require(own, self._own)
        return tuple(sum(self._sizes[: rank + 1]) for rank in range(self.count))

    def gather(self, rows: Tensor, each: int = 1, keep: bool = False) -> Tensor:
        """The rows of all; those of `divide`, and those that were kept, without a message."""
        for part, whole in self._known:
            if part() is rows:
                return whole
        if rows.dtype == torch.bool:
            return self.gather(rows.view(torch.uint8), each).view(torch.bool)
        self._require(len(rows), each * self._own)
        sizes = [each * size for size in self._sizes]
        longest, message = max(sizes), rows.contiguous()
        if len(rows) < longest:
            message = torch.cat((message, rows.new_zeros(longest - len(rows), *rows.shape[1:])))
        parts = self._gather(message)
        if min(sizes) == longest:
            gathered = parts.flatten(0, 1)
        else:
            gathered = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        if keep:
            self._known = [entry for entry in self._known if entry[0]() is not None]
            self._known.append((weakref.ref(rows), gathered))
        return gathered

    def light(self, rows: Tensor) -> bool:
        """Whether the batch's rows are known, or no more than 256 kB."""
        size = math.prod(rows.shape[1:]) * self._samples * rows.element_size()
        return size <= _LIGHT or any(part() is rows for part, _ in self._known)

    def mean(self, *means: Tensor) -> None:
        """Means over the batch, each process counting by its samples."""
        self._sum(means, self._own / self._samples)

    def total(self, *sums: Tensor) -> None:
        """Sums over all processes."""
        self._sum(sums, 1.0)

    def mean_of(self, *means: float) -> tuple[float, ...]:
        """Means of numbers over the batch."""
        return self._numbers(means, self._own / self._samples)

    def total_of(self, *sums: float) -> tuple[float, ...]:
        """Sums of numbers over all processes."""
        return self._numbers(sums, 1.0)

    def norms_of(self, *norms: float) -> tuple[float, ...]:
        """The root of the sum of squares over all processes, without overflow."""
        parts = self._gather(torch.tensor(norms, dtype=torch.float64, device=self._device))
        return tuple(math.hypot(*column) for column in parts.t().tolist())

    @property
    def _own(self) -> int:
        return self._sizes[self.rank] if self._sizes else 0

    @property
    def _samples(self) -> int:
        return sum(self._sizes)

    def _require(self, given: int, expected: int) -> None:
        if given != expected or not self._sizes:
            raise SettingError(
                f"{given} rows were given for {expected} of the batch that was divided last: every batch goes through "
                "problem.peers.divide first."
            )

    def _numbers(self, values: Sequence[float], share: float) -> tuple[float, ...]:
        if not values:
            return ()
        message = torch.tensor(values, dtype=torch.float64, device=self._device)
        self._sum([message], share)
        return tuple(message.tolist())

    def _sum(self, tensors: Sequence[Tensor], share: float) -> None:
        """Σ over processes of share · (each tensor), in place; with a share of 0 nothing is read."""
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            alike = [t for t in tensors if t.dtype == dtype]
            message = torch.cat([t.reshape(-1) for t in alike])
            if share == 0.0:
                message.zero_()
            elif share != 1.0:
                message.mul_(share)
            summed = self._summed(message)
            for t, part in zip(alike, summed.split([t.numel() for t in alike]), strict=True):
                t.copy_(part.view_as(t))

    def _summed(self, message: Tensor) -> Tensor:
        if message.numel() * message.element_size() > _SMALL:
            self._count(message)
            dist.all_reduce(message, group=self._group)
            return message
        parts = self._gather(message)
        summed = parts[0]
        for part in parts[1:]:
            summed += part
        return summed

    def _gather(self, message: Tensor) -> Tensor:
        """(count, ...), from messages of one shape."""
        self._count(message)
        gathered = message.new_empty(self.count, *message.shape)
        dist.all_gather(list(gathered), message, group=self._group)
        return gathered

    def _count(self, message: Tensor) -> None:
        self.messages += 1
        self.sent += message.numel() * message.element_size()
        if self.fault is None and message.is_floating_point() and not bool(message.sum().isfinite()):
            self.fault = None if bool(message.isfinite().all()) else self.messages


def message_device(group: dist.ProcessGroup | None) -> torch.device:
    """Where the tensors of a message have to be: NCCL sends from the present GPU, gloo from the CPU."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
