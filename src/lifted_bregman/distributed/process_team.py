"""The workers of model averaging in several processes, by torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from lifted_bregman.distributed.process_shard import message_device
from lifted_bregman.problem import LiftedState
from lifted_bregman.solvers import Team
from lifted_bregman.solvers.parameters import LayerTensors, accumulate, flatten, overwrite, set_to_zero, unflatten


@dataclass(frozen=True)
class Processes(Team):
    """Runs worker p of model averaging on rank p mod n, for n processes; results are bitwise those of `OneProcess`.

    Every process has the whole data and executes the same run.  In a round the processes all-gather the parameters of
    each worker and the variables of its samples, and add them in the order of workers.

    group  a process group of torch.distributed; None for all processes
    """

    group: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)

    def average(
        self,
        work: Callable[[int], None],
        shares: list[float],
        parameters: LayerTensors,
        common: LayerTensors,
        mean: LayerTensors,
    ) -> None:
        set_to_zero(mean)
        flat = flatten(parameters)
        for first in range(0, len(shares), self._size):
            own = first + self._rank
            if own < len(shares):
                overwrite(parameters, common)
                work(own)
                flat = flatten(parameters)
            for result, share in zip(self._gather(flat), shares[first:], strict=False):
                accumulate(mean, unflatten(result, mean), share)
        overwrite(parameters, mean)

    def gather(
        self, parts: list[Tensor], variables: LiftedState | None, work: Mapping[str, float]
    ) -> Mapping[str, float]:
        for first in range(0, len(parts), self._size):
            group = parts[first : first + self._size]
            for x in variables or ():
                rows = x.new_zeros(max(map(len, group)), *x.shape[1:])
                if self._rank < len(group):
                    rows[: len(group[self._rank])] = x[group[self._rank]]
                for part, done in zip(group, self._gather(rows), strict=False):
                    x[part] = done[: len(part)]
        own = torch.tensor(list(work.values()), dtype=torch.int64, device=message_device(self.group))
        counts = self._gather(own).sum(0)
        return dict(zip(work, counts.tolist(), strict=True))

    @property
    def _rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def _size(self) -> int:
        return dist.get_world_size(self.group)

    def _gather(self, message: Tensor) -> Tensor:
        gathered = message.new_empty(self._size, *message.shape)
        dist.all_gather(list(gathered), message, group=self.group)
        return gathered
