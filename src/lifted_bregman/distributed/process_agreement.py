"""The end of a run that several processes share, by torch.distributed."""

from __future__ import annotations

import builtins
import json
from typing import Any

import torch
import torch.distributed as dist

from lifted_bregman import errors
from lifted_bregman.distributed.process_peers import message_device
from lifted_bregman.solvers import Agreement, Outcome, Stop


class ProcessAgreement(Agreement):
    """That of a process group: a message of 24 bytes where nobody wants to stop.

    group  of torch.distributed, None for all processes
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._group, self._device = group, message_device(group)

    def stop(self, wanted: Stop | None) -> Stop | None:
        if wanted is None:
            told = self._tell(None, (True, 0))
        else:
            entries = [wanted.outcome.name, wanted.message, wanted.record, wanted.failed]
            told = self._tell(entries, wanted.precedence(self.rank)[:2])
        if told is None:
            return None
        _, (outcome, message, record, failed) = told
        return Stop(Outcome[outcome], message, record, failed)

    def first(self, flag: bool) -> bool:
        told = torch.tensor([flag], device=self._device)
        dist.broadcast(told, group=self._group, group_src=0)
        return bool(told)

    def share_error(self, error: BaseException | None) -> None:
        told = self._tell(None if error is None else [type(error).__name__, str(error)], (True, 0))
        if error is not None:
            raise error
        if told is not None:
            rank, (name, message) = told
            raise _kind(name)(f"rank {rank}: {message}")

    def _tell(self, entries: list[Any] | None, precedence: tuple[bool, int]) -> tuple[int, list[Any]] | None:
        """The rank and the entries of the first process, by precedence and then by rank, that has any."""
        text = b"" if entries is None else json.dumps(entries).encode()
        own = torch.tensor([len(text), *map(int, precedence)], dtype=torch.int64, device=self._device)
        gathered = torch.empty(self.size, len(own), dtype=own.dtype, device=self._device)
        dist.all_gather(list(gathered), own, group=self._group)
        found = [(*order, rank, length) for rank, (length, *order) in enumerate(gathered.tolist()) if length]
        if not found:
            return None
        *_, rank, length = min(found)
        if rank != self.rank:
            text = bytes(length)
        message = torch.tensor(list(text), dtype=torch.uint8, device=self._device)
        dist.broadcast(message, group=self._group, group_src=rank)
        return rank, json.loads(bytes(message.tolist()))


def _kind(name: str) -> type[Exception]:
    """The library's error of this name, or Python's own; any other is a RuntimeError."""
    kind = getattr(errors, name, getattr(builtins, name, None))
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError
