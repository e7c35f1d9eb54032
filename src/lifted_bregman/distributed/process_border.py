"""The messages between ranks that hold different terms, by torch.distributed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lifted_bregman.distributed.process_shard import message_device
from lifted_bregman.graph import Links, Partition
from lifted_bregman.problem import Border


class ProcessBorder(Border):
    """Messages between the ranks of a process group: rank r holds the r-th part of the terms of a chain.

    Sends between neighbours do not block, receives do.  A sender keeps its rows until they have arrived.

    links  the links of the network
    parts  the terms of each rank, contiguous and in order
    group  a process group of torch.distributed, gloo for CPUs and NCCL for GPUs; None for all processes
    """

    def __init__(self, links: Links, parts: Sequence[range], group: dist.ProcessGroup | None = None) -> None:
        self.count, self.rank = dist.get_world_size(group), dist.get_rank(group)
        super().__init__(Partition(links, tuple(parts), self.rank))
        self.sent = 0
        """Bytes that this rank has sent to its neighbours."""
        self.messages = 0
        """Messages that this rank has sent to its neighbours."""
        self._group, self._device = group, message_device(group)
        self._moment = 0  # twice the number of finished sweeps, the same on all ranks
        self._going: list[tuple[dist.Work, Tensor]] = []

    def send_above(self, rows: Tensor) -> None:
        self._send(rows, self.rank + 1)
        if self.rank == 0:
            self._moment += 2

    def from_below(self, like: Tensor) -> Tensor:
        self._moment += 2
        return self._receive(like, self.rank - 1)

    def send_below(self, rows: Tensor) -> None:
        self._send(rows, self.rank - 1)

    def from_above(self, like: Tensor) -> Tensor:
        return self._receive(like, self.rank + 1)

    def settle(self) -> None:
        for work, _ in self._going:
            work.wait()
        self._going.clear()

    def all_numbers(self, *numbers: float) -> list[tuple[float, ...]]:
        gathered = self._gather(torch.tensor(numbers, dtype=torch.float64, device=self._device))
        return [tuple(row) for row in gathered.tolist()]

    def all_terms(self, numbers: Tensor) -> Tensor:
        longest = max(map(len, self.partition.parts))
        padded = torch.cat((numbers, numbers.new_zeros(longest - len(numbers))))
        gathered = self._gather(padded)
        return torch.cat([row[: len(part)] for row, part in zip(gathered, self.partition.parts, strict=True)])

    def all_names(self, named: Mapping[str, float]) -> dict[str, float]:
        found: dict[str, float] = {}
        for text in self._texts(json.dumps(dict(named))):
            found |= {name: value for name, value in json.loads(text).items() if name not in found}
        return found

    def collect(self, value: Any) -> list[Any]:
        tensors: list[Tensor] = []
        texts = self._texts(json.dumps(_described(value, tensors)))
        if self.rank > 0:
            for tensor in tensors:
                if tensor.numel():
                    dist.send(tensor.contiguous(), group=self._group, group_dst=0)
            return []
        return [value, *(self._rebuilt(json.loads(text), source) for source, text in enumerate(texts[1:], start=1))]

    def _rebuilt(self, described: Any, source: int) -> Any:
        """The value that rank `source` described, with the tensors that it then sends in order."""
        kind, *content = described
        if kind == "mapping":
            return {key: self._rebuilt(entry, source) for key, entry in content}
        if kind == "list":
            return [self._rebuilt(entry, source) for entry in content]
        if kind == "value":
            return content[0]
        tensor = torch.empty(content[0], dtype=getattr(torch, content[1]), device=self._device)
        if tensor.numel():
            dist.recv(tensor, group=self._group, group_src=source)
        return tensor

    def spread(self, tensors: Mapping[int, Sequence[Tensor]]) -> None:
        for source, part in enumerate(self.partition.parts):
            for layer in part:
                for tensor in tensors[layer]:
                    dist.broadcast(tensor, group=self._group, group_src=source)

    def _send(self, rows: Tensor, to: int) -> None:
        self._going = [(work, sent) for work, sent in self._going if not work.is_completed()]
        if not rows.numel():
            return
        message = rows.contiguous()
        self.messages += 1
        self.sent += message.numel() * message.element_size()
        if self.fault is None and not bool(message.sum().isfinite()) and not bool(message.isfinite().all()):
            self.fault = self._moment + (to > self.rank)  # within a sweep, messages up follow those down
        work = dist.isend(message, group=self._group, group_dst=to)
        assert work is not None
        self._going.append((work, message))

    def _receive(self, like: Tensor, source: int) -> Tensor:
        rows = torch.empty_like(like, memory_format=torch.contiguous_format)
        if rows.numel():
            dist.recv(rows, group=self._group, group_src=source)
        return rows

    def _gather(self, message: Tensor) -> Tensor:
        gathered = message.new_empty(self.count, *message.shape)
        dist.all_gather(list(gathered), message, group=self._group)
        return gathered

    def _texts(self, own: str) -> list[str]:
        """The text of each rank."""
        content = own.encode()
        lengths = self._gather(torch.tensor([len(content)], device=self._device)).flatten().tolist()
        message = torch.zeros(max(lengths), dtype=torch.uint8, device=self._device)
        message[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        gathered = self._gather(message)
        return [bytes(row[:length].tolist()).decode() for row, length in zip(gathered, lengths, strict=True)]


def _described(value: Any, tensors: list[Tensor]) -> list[Any]:
    """A value in JSON's types, with shape and dtype in place of a tensor, which is appended to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return ["tensor", list(value.shape), str(value.dtype).removeprefix("torch.")]
    if isinstance(value, Mapping):
        return ["mapping", *([key, _described(entry, tensors)] for key, entry in value.items())]
    if isinstance(value, list):
        return ["list", *(_described(entry, tensors) for entry in value)]
    return ["value", value]
