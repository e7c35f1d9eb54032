"""How the ranks of a run agree to end it, by torch.distributed."""

from __future__ import annotations

import builtins
import json
from typing import Any

import torch
import torch.distributed as dist

from lifted_bregman import errors
from lifted_bregman.distributed.process_shard import message_device
from lifted_bregman.distributed.world import lost
from lifted_bregman.solvers import Agreement, Outcome, Stop

_NOTHING, _ERROR = (1, 0), (-1, 0)  # precedence: an error before any stop


class ProcessAgreement(Agreement):
    """The agreement of the ranks of a process group; one all-gather of 24 bytes per rank if no rank wants to stop.

    Every method begins with the same all-gather.  An error of one rank therefore reaches the others in any method.

    group  a process group of torch.distributed; None for all processes
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._group, self._device = group, message_device(group)
        self._over = False  # whether an error has reached all ranks

    def stop(self, wanted: Stop | None) -> Stop | None:
        if wanted is None:
            told = self._tell(None)
        else:
            entries = [wanted.outcome.name, wanted.message, wanted.record, wanted.failed]
            told = self._tell(entries, wanted.precedence(self.rank)[:2])
        if told is None:
            return None
        outcome, message, record, failed = told
        return Stop(Outcome[outcome], message, record, failed)

    def any(self, flag: bool) -> bool:
        return self._tell([True] if flag else None) is not None

    def share_error(self, error: Exception | None, told: Exception | None = None) -> None:
        if error is None:
            self._tell(None)
            return
        if not (self._over or lost(error)):
            told = error if told is None else told
            self._tell([type(told).__name__, str(told)], _ERROR)
        raise error

    def _tell(self, entries: list[Any] | None, precedence: tuple[int, int] = _NOTHING) -> list[Any] | None:
        """All-gathers the requests of the ranks and returns one of them; None if there is none.

        It is the one of the highest precedence, then of the lowest rank.  The error of another rank is raised here.

        entries     the request of this rank, in JSON's types; None for no request
        precedence  the sort key; the smallest wins
        """
        # (length, precedence) of every rank
        text = b"" if entries is None else json.dumps(entries).encode()
        own = torch.tensor([len(text), *map(int, precedence)], dtype=torch.int64, device=self._device)
        gathered = torch.empty(self.size, len(own), dtype=own.dtype, device=self._device)
        dist.all_gather(list(gathered), own, group=self._group)
        found = [(*order, rank, length) for rank, (length, *order) in enumerate(gathered.tolist()) if length]
        if not found:
            return None
        # the winner's entries, as JSON
        *order, rank, length = min(found)
        if rank != self.rank:
            text = bytes(length)
        message = torch.tensor(list(text), dtype=torch.uint8, device=self._device)
        dist.broadcast(message, group=self._group, group_src=rank)
        first: list[Any] = json.loads(bytes(message.tolist()))
        if tuple(order) != _ERROR:
            return first
        self._over = True
        if precedence != _ERROR:
            name, told = first
            raise _kind(name)(f"rank {rank}: {told}")
        return None


def _kind(name: str) -> type[Exception]:
    """The class of an error by its name in this library or in Python; RuntimeError for any other name."""
    kind = getattr(errors, name, getattr(builtins, name, None))
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError
