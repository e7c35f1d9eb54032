"""The world: the process groups of a run, and how a process joins them."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from lifted_bregman.distributed.environment import ProcessInfo, process_info
from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.errors import LiftedBregmanError, SettingError, WorkerError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_JOINING = 60.0  # seconds between the starts of two processes, unless the timeout is longer
_ANSWER = 5.0  # more seconds after which a store that does not reply counts as unreachable
_LOOPBACK = ("localhost", "127.0.0.1")
_joined = 0  # how often this process has joined; part of its names in the store
_stores: dict[tuple[str, int], Store] = {}  # kept while the process lives: others may read after it has left the world

_T = TypeVar("_T")


@dataclass(frozen=True)
class World:
    """The process groups of a run that this process has joined."""

    rank: int
    size: int
    data: dist.ProcessGroup
    """The processes with the same layers and other samples."""
    layer: dist.ProcessGroup | None = None
    """The processes with the same samples and other layers; None if layers are not shared."""
    mesh: DeviceMesh | None = None
    """Both groups as a mesh ("data", "layer"); None unless both degrees are above 1."""

    @property
    def shares_samples(self) -> bool:
        """Whether several processes share the samples of a batch."""
        return self.data.size() > 1

    def first(self, number: int) -> int:
        """The `number` of rank 0, broadcast to all ranks."""
        told = _message(number)
        dist.broadcast(told, 0)
        return int(told)

    def most(self, number: int) -> int:
        """The largest of the numbers of all ranks."""
        told = _message(number)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return int(told)

    def spread(self, value: torch.Tensor) -> None:
        """Broadcasts the tensor of rank 0, in place."""
        dist.broadcast(value, 0)


@contextmanager
def join(parallel: Parallel, device: torch.device | None = None) -> Iterator[World]:
    """Joins the world of this process, and leaves it at the end of the `with` block.

    gloo sends tensors on CPUs, NCCL those on GPUs.  An existing default process group is used and not destroyed.  Names
    in the store contain the attempt and a count of joins, because a store that outlives its processes holds addresses
    of dead ones.  A process that is lost or silent for `timeout` seconds raises `WorkerError` in the others.

    Args:
        parallel: the world must have data · layer processes.
        device: where the model is; the CPU if None.
    """
    process = process_info()
    if process is None:
        raise SettingError("this process has no world to join: start it with torchrun, or let fit start the workers.")
    parallel.require_world(dist.get_world_size() if dist.is_initialized() else process.size)
    parallel.require_interface()
    if dist.is_initialized():
        with _losses_told(process):
            yield _world(parallel, device or torch.device("cpu"))
        return
    with _talking_over(parallel.interface or ("lo" if process.address in _LOOPBACK else None)):
        try:
            with _losses_told(process):
                yield _init(parallel, process, device or torch.device("cpu"))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def has_joined() -> bool:
    """Whether this process has ever joined a world."""
    return _joined > 0


def end_at_once(code: int) -> None:
    """Ends this process after flushing its output, without finalising the interpreter.

    A gloo thread that frees its last tensors during finalisation would abort the process by SIGABRT, and the launcher
    would count it as lost.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def lost(error: BaseException) -> bool:
    """Whether an error means that another process is gone or silent; gloo's errors show it in their text only."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def _init(parallel: Parallel, process: ProcessInfo, device: torch.device) -> World:
    global _joined
    _joined += 1
    patience = max(parallel.timeout, _JOINING)
    store = _answered(partial(_store, process, patience), process, patience)
    named = PrefixStore(f"lifted/{process.attempt}/{_joined}", store)
    _answered(partial(_wait_for_all, named, process, patience), process, patience)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return _answered(partial(_connected, parallel, process, device, named), process, patience)


def _connected(parallel: Parallel, process: ProcessInfo, device: torch.device, store: Store) -> World:
    options: dict[str, Any] = {"backend": "gloo"}
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of this thread
        options = {"backend": "cpu:gloo,cuda:nccl", "device_id": device}
    timeout = timedelta(seconds=parallel.timeout)
    dist.init_process_group(store=store, rank=process.rank, world_size=process.size, timeout=timeout, **options)
    return _world(parallel, device)


def _answered(work: Callable[[], _T], process: ProcessInfo, seconds: float) -> _T:
    """Calls `work`, which uses the store, in a second thread; `WorkerError` if it takes too long.

    torch ignores its timeout when it connects to an unreachable store, and waits for ever.
    """
    answer: Future[_T] = Future()

    def ask() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(seconds + _ANSWER)
    except TimeoutError as error:
        raise _unanswered(process, seconds) from error


def _unanswered(process: ProcessInfo, seconds: float) -> WorkerError:
    return WorkerError(
        f"rank {process.rank} of {process.size} had no answer from {process.address}:{process.port}, where the "
        f"processes meet, within {seconds:g} seconds: see that rank 0 runs there, and that the network lets them reach "
        "each other."
    )


def _store(process: ProcessInfo, seconds: float) -> Store:
    """The rendezvous store, hosted by the elastic agent or by rank 0, which listens on loopback for a local address."""
    address, port = process.address, process.port
    host = process.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    if (address, port) in _stores:
        return _stores[address, port]
    options: dict[str, Any] = {"is_master": host, "timeout": timedelta(seconds=seconds)}
    try:
        if host and address in _LOOPBACK:
            options["master_listen_fd"] = socket.create_server(("127.0.0.1", port)).detach()
        store = TCPStore(address, port, wait_for_workers=False, multi_tenant=True, **options)
    except (dist.DistError, OSError) as error:
        if not host:
            raise _unanswered(process, seconds) from error
        raise SettingError(
            f"the processes cannot meet at {address}:{port} ({str(error).splitlines()[0]}): MASTER_ADDR has to be an "
            "address of the machine that rank 0 runs on, and MASTER_PORT free there."
        ) from error
    return _stores.setdefault((address, port), store)


def _wait_for_all(store: Store, process: ProcessInfo, seconds: float) -> None:
    keys = {rank: f"here/{rank}" for rank in range(process.size)}
    store.set(keys[process.rank], "1")
    try:
        store.wait(list(keys.values()), timedelta(seconds=seconds))
    except dist.DistError as error:
        absent = [str(rank) for rank, key in keys.items() if not store.check([key])]
        raise WorkerError(
            f"of {process.size} processes rank {', '.join(absent)} did not come within {seconds:g} seconds: see why it "
            "did not start, or whether the network keeps it away."
        ) from error


def _world(parallel: Parallel, device: torch.device) -> World:
    rank, size = dist.get_rank(), dist.get_world_size()
    everybody = dist.group.WORLD
    assert everybody is not None
    if parallel.layer == 1:
        return World(rank, size, everybody)
    places = torch.arange(size).view(parallel.data, parallel.layer)
    timeout = timedelta(seconds=parallel.timeout)
    layer = _own_group(places, timeout) if parallel.data > 1 else everybody
    data = _own_group(places.T, timeout)
    if parallel.data == 1:
        return World(rank, size, data, layer)
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh.from_group([data, layer], device.type, mesh=places, mesh_dim_names=("data", "layer"))
    return World(rank, size, data, layer, mesh)


def _own_group(rows: torch.Tensor, timeout: timedelta) -> dist.ProcessGroup:
    """The process group of this rank's row.  Every process creates the groups of all rows, as torch requires."""
    groups: dict[int, dist.ProcessGroup] = {
        row: dist.new_group(ranks, timeout=timeout) for row, ranks in enumerate(rows.tolist())
    }
    own = int((rows == dist.get_rank()).any(1).nonzero())
    return groups[own]


def _message(number: int) -> torch.Tensor:
    from lifted_bregman.distributed.process_shard import message_device

    return torch.tensor([number], dtype=torch.int64, device=message_device(None))


@contextmanager
def _losses_told(process: ProcessInfo) -> Iterator[None]:
    try:
        yield
    except LiftedBregmanError:
        raise
    except Exception as error:
        if not lost(error):
            raise
        raise WorkerError(
            f"rank {process.rank} of {process.size} lost another process, which ended or was silent for longer than "
            "the timeout: see why, then resume."
        ) from error


@contextmanager
def _talking_over(interface: str | None) -> Iterator[None]:
    """Sets the interface for gloo and NCCL in the environment, and restores the environment afterwards."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    before = {name: os.environ.get(name) for name in names}
    if interface is not None:
        os.environ.update(dict.fromkeys(names, interface))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
