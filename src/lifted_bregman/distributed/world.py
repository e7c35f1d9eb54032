"""The world: the processes that share a run, joined."""

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

_JOINING = 60.0  # seconds that processes may start after each other, where the timeout is not longer
_ANSWER = 5.0  # seconds more until a store that has not even said no is out of reach
_LOOPBACK = ("localhost", "127.0.0.1")
_joined = 0  # how often this process has joined: each time has names of its own in the store
_stores: dict[tuple[str, int], Store] = {}  # kept as long as the process: others may still read when this one has left

_T = TypeVar("_T")


@dataclass(frozen=True)
class World:
    """The processes of a run, joined."""

    rank: int
    size: int
    data: dist.ProcessGroup
    """Those that hold other samples of the same layers."""
    layer: dist.ProcessGroup | None = None
    """Those that hold other layers of the same samples, where layers are shared."""
    mesh: DeviceMesh | None = None
    """Both as a mesh ("data", "layer"), where there are both."""

    @property
    def shares_samples(self) -> bool:
        """Whether there are several processes to a layer."""
        return self.data.size() > 1

    def first(self, number: int) -> int:
        """The number that rank 0 has, on every rank."""
        told = _message(number)
        dist.broadcast(told, 0)
        return int(told)

    def most(self, number: int) -> int:
        """The largest number that any rank has, on every rank."""
        told = _message(number)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return int(told)

    def spread(self, value: torch.Tensor) -> None:
        """Gives every rank what rank 0 has, in place."""
        dist.broadcast(value, 0)


@contextmanager
def join(parallel: Parallel, device: torch.device | None = None) -> Iterator[World]:
    """Joins the given world, and leaves it in the end.

    gloo carries what is on the CPU, NCCL what is on a GPU.  A process group that is there already is used and left
    alone.  Each attempt and each time of joining has names of its own in the store, for a store that outlives its
    processes has the addresses of dead ones.  Others that are lost, or silent for `timeout` seconds, are a
    `WorkerError`.

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


def joined() -> bool:
    """Whether this process has ever joined a world."""
    return _joined > 0


def end_at_once(code: int) -> None:
    """Ends this process with what it has printed, but without the end of the interpreter.

    A thread of gloo that drops its last tensors while the interpreter ends would abort the process: SIGABRT, as if it
    had been lost.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def lost(error: BaseException) -> bool:
    """Whether an error says that another process is gone or silent; gloo says so in the text only."""
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
    """What `work` returns, which asks the store.

    It does so in a thread of its own: torch waits for a store that is out of reach without end, whatever its timeout.
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
    """The store of the world: the agent hosts it, or else rank 0, on loopback only where that is its address."""
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
    """The group of the row that this process is in; every process makes all of them, as torch wants it."""
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
    """gloo and NCCL read the interface from the environment, which is put back."""
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
