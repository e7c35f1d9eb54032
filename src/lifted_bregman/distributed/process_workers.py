"""The workers of asynchronous PIAG in several processes, by torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lifted_bregman.distributed.process_shard import message_device
from lifted_bregman.distributed.process_team import Processes
from lifted_bregman.solvers import AsynchronousTeam
from lifted_bregman.solvers.asynchronous_round import Contribution, Fault, Round
from lifted_bregman.solvers.parameters import (
    LayerTensors,
    copy_parameters,
    flatten,
    overwrite,
    parameters_in_place,
    tensor_list,
    unflatten,
    zero_parameters,
)

_NOBODY = -1  # sent in place of a worker's number when the round is over


@dataclass(frozen=True)
class AsynchronousProcesses(AsynchronousTeam):
    """Runs worker p of asynchronous PIAG on rank p mod n, for n processes.

    Rank 0 coordinates, and also runs workers, in a second thread.  Its first thread waits for the next contribution,
    updates Θ and sends Θ to the workers that contributed.  It waits for one particular worker only when that worker has
    reached the bound on delays.  A slow process, rank 0 included, therefore does not hold up the others.  Workers of
    the same rank run one after another.  Each message has the size of the parameters; gloo sends it from the CPU.  At
    the end of a round rank 0 broadcasts gradients, variables and counters of work.

    The result depends on the order of arrival.  `Recorded` replays that order in one process, with bitwise equal
    results.

    group  a process group of torch.distributed; None for all processes
    """

    group: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)

    def run(self, round: Round) -> None:
        round.solver.require_processes(dist.get_world_size(self.group))
        before = round.problem.work.as_dict()
        if dist.get_rank(self.group) == 0:
            self._coordinate(round)
        else:
            self._serve(round)
        self._share(round)
        done = {name: count - before[name] for name, count in round.problem.work.as_dict().items()}
        done = dict(Processes(self.group).gather(round.rows, round.state.variables, done))
        round.problem.work.reset({name: before[name] + count for name, count in done.items()})
        round.close()
        if round.fault is not None:
            diverged = round.fault.diverged()
            host = max(round.fault.worker, 0) % dist.get_world_size(self.group)
            diverged.since = 0 if host == dist.get_rank(self.group) else None
            raise diverged

    def _coordinate(self, round: Round) -> None:
        theta = copy_parameters(round.problem)  # the model holds the version that the worker of this process uses
        desk = _Desk(round, theta, self.group)
        try:
            round.coordinate(theta, desk.hand, desk.receive)
            desk.end()
        finally:
            desk.close()
        overwrite(parameters_in_place(round.problem), theta)

    def _serve(self, round: Round) -> None:
        """Computes a contribution for each message of rank 0; the last message has the final parameters."""
        parameters = parameters_in_place(round.problem)
        message = _packed(torch.zeros(2, dtype=torch.int64), parameters)
        while True:
            dist.recv(message, group=self.group, group_src=0)
            (worker, version), theta = _opened(message, 2, torch.int64, parameters)
            overwrite(parameters, theta)
            if worker == _NOBODY:
                return
            gradient, curvature = round.work(int(worker), int(version))
            answer = _packed(_bounds(curvature, round), gradient)
            dist.send(answer, group=self.group, group_dst=0, tag=int(worker))

    def _share(self, round: Round) -> None:
        """Broadcasts the state of the round from rank 0."""
        # counters: fault, updates, versions, delays, arrivals
        state, ledger, device = round.state, round.ledger, message_device(self.group)
        told = [*(round.fault or (0, 0, 0)), state.at_bound, ledger.update, *ledger.versions, *state.delays.tolist()]
        numbers = torch.cat((torch.tensor(told), state.arrived.flatten().long())).to(device)
        dist.broadcast(numbers, group=self.group, group_src=0)
        worker, layer, update, state.at_bound, ledger.update = numbers[:5].tolist()
        round.fault = Fault(worker, layer, update) if layer else None
        sizes = [len(ledger.versions), len(state.delays), state.arrived.numel()]
        versions, delays, arrived = numbers[5:].cpu().split(sizes)
        ledger.versions[:] = versions.tolist()
        state.delays, state.arrived = delays.clone(), arrived.bool().view_as(state.arrived)
        # the last gradient of each worker, and its Lipschitz constants
        for p, part in enumerate(state.parts):
            bounds = _bounds(state.curvature[p], round).to(device)
            flat = flatten(part)
            dist.broadcast(bounds, group=self.group, group_src=0)
            dist.broadcast(flat, group=self.group, group_src=0)
            state.curvature[p] = _curvature(bounds)
            overwrite(part, unflatten(flat, part))


class _Desk:
    """Rank 0's exchange with the workers: sends parameters, receives contributions."""

    def __init__(self, round: Round, theta: LayerTensors, group: dist.ProcessGroup | None) -> None:
        self._round, self._theta, self._group = round, theta, group
        self._size, self._parameters = dist.get_world_size(group), parameters_in_place(round.problem)
        self._own = ThreadPoolExecutor(1)  # the parameters of the model serve one worker at a time
        self._others = ThreadPoolExecutor(len(round.rows))
        self._under_way: dict[int, Future[Contribution]] = {}
        self._sent: dict[int, tuple[Any, Tensor]] = {}  # messages are kept until they are sent

    def hand(self, workers: Sequence[int], version: int) -> None:
        """Sends the present parameters to these workers."""
        for p in workers:
            message = _packed(torch.tensor([p, version]), self._theta)
            if p % self._size == 0:
                self._under_way[p] = self._own.submit(self._work, message)
            else:
                self._send(p, message, p % self._size)
                self._under_way[p] = self._others.submit(self._receive, p)

    def receive(self, due: Sequence[int]) -> dict[int, Contribution]:
        """The contribution of each worker in `due`, {worker: contribution}; if `due` is empty, of one finished worker.

        Of several finished workers the one with the oldest Θ is taken.
        """
        if due:
            wait([self._under_way[p] for p in due])
            return {p: self._under_way.pop(p).result() for p in due}
        done, _ = wait(self._under_way.values(), return_when=FIRST_COMPLETED)
        handed = self._round.ledger.handed
        first = min((p for p, future in self._under_way.items() if future in done), key=lambda p: handed[p])
        return {first: self._under_way.pop(first).result()}

    def end(self) -> None:
        """Waits for the workers that still compute after a fault, and sends the final parameters to all processes."""
        for future in self._under_way.values():
            future.result()
        message = _packed(torch.tensor([_NOBODY, self._round.ledger.update]), self._theta)
        for rank in range(1, self._size):
            self._send(rank, message, rank)
        for sending, _ in self._sent.values():
            sending.wait()

    def close(self) -> None:
        """Ends the threads.  A thread that waits for a lost process ends when the process group is destroyed."""
        for pool in (self._own, self._others):
            pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, message: Tensor) -> Contribution:
        (worker, version), theta = _opened(message, 2, torch.int64, self._parameters)
        overwrite(self._parameters, theta)
        return self._round.work(int(worker), int(version))

    def _send(self, worker: int, message: Tensor, rank: int) -> None:
        if worker in self._sent:
            self._sent[worker][0].wait()  # returns at once, because the worker has answered
        self._sent[worker] = dist.isend(message, group=self._group, group_dst=rank), message

    def _receive(self, worker: int) -> Contribution:
        message = _packed(_bounds({}, self._round), self._theta)
        dist.recv(message, group=self._group, group_src=worker % self._size, tag=worker)
        bounds, received = _opened(message, self._round.problem.depth, torch.float64, self._theta)
        gradient = zero_parameters(self._round.problem)
        overwrite(gradient, received)
        return Contribution(gradient, _curvature(bounds))


def _packed(numbers: Tensor, anchor: LayerTensors) -> Tensor:
    """A message of bytes on the CPU: 8 for each number, then the tensors."""
    flat = flatten(anchor)
    return torch.cat((numbers.view(torch.uint8), flat.cpu().view(torch.uint8)))


def _opened(message: Tensor, count: int, dtype: torch.dtype, like: LayerTensors) -> tuple[Tensor, LayerTensors]:
    """The numbers and tensors of a message, as views of it in the shapes of `like`."""
    numbers, rest = message[: 8 * count].view(dtype), message[8 * count :]
    kind = torch.cat([t.reshape(-1)[:0] for t in tensor_list(like)]).dtype
    return numbers, unflatten(rest.view(kind), like)


def _bounds(curvature: dict[int, float], round: Round) -> Tensor:
    """The Lipschitz constant of each layer, (L,); NaN for a layer without one."""
    values = [curvature.get(layer, torch.nan) for layer in range(1, round.problem.depth + 1)]
    return torch.tensor(values, dtype=torch.float64)


def _curvature(bounds: Tensor) -> dict[int, float]:
    return {layer: value for layer, value in enumerate(bounds.tolist(), start=1) if value == value}
