"""The launcher: starts workers on this machine by torch's elastic agent, and starts them again when some are lost.

Workers meet through a store that listens on loopback, or on the interface that `Parallel` names, and nowhere else.
They end when the process of the launcher ends, even if that is killed.  Only public names of torch are used; each
attempt is one agent without restarts, because torch's agent would restart a worker whose error comes again every time.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.distributed.place import ATTEMPT, GRACE, LAUNCHER, LOST, ended_key, failed_key
from lifted_bregman.errors import WorkerError

_STOPS = (signal.SIGINT, signal.SIGTERM)
_INTERVAL = 0.05  # seconds between two looks at the workers
_ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR


def launch(
    arguments: Sequence[str],
    parallel: Parallel,
    *,
    terminate: bool = True,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run data · layer workers with these arguments of `lifted_bregman.distributed.worker`; return an exit code.

    The code is 0 if all workers ended well.  Else it is the code of the lowest rank that failed by itself, 128 + n
    for signal n.  If workers are killed, or lose another one, all are started again, up to `parallel.restarts` times;
    then `WorkerError` is raised.

    SIGINT is passed on to the workers, SIGTERM too if `terminate`.  A second SIGINT is passed on as well, and workers
    that still run `GRACE` seconds later are killed.  Workers inherit this process's environment, plus `variables`.
    """
    parallel.require_interface()
    address = _address(parallel.interface) if parallel.interface else "127.0.0.1"
    environment = {**_environment(parallel), **(variables or {})}
    with _quiet(), _receive_signals(terminate) as signals:
        store = _listen(address)
        for attempt in range(parallel.restarts + 1):
            result = _run(arguments, parallel.size, attempt, environment, store, signals)
            if not result.is_failed():
                return 0
            codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
            code = _final_code(codes, _announced_codes(store, attempt, parallel.size))
            if code is None and signals:
                code = 128 + signals[0].number
            if code is not None:
                return code
    raise WorkerError(f"{_describe_loss(codes, parallel.size)} {_describe_restarts(parallel.restarts)}")


def _run(
    arguments: Sequence[str],
    size: int,
    attempt: int,
    environment: Mapping[str, str],
    store: TCPStore,
    signals: Sequence[_Received],
) -> RunResult:
    """Run one attempt to its end, and pass on signals meanwhile.

    The agent has a thread of its own, in which torch installs no signal handlers.  That thread blocks SIGINT and
    SIGTERM, so that workers start with both blocked until they can handle them.
    """
    spec = WorkerSpec(
        role="worker",
        local_world_size=size,
        rdzv_handler=StaticTCPRendezvous(store.host, store.port, 0, 1, run_id=str(attempt), timeout=60),
        entrypoint=sys.executable,
        args=("-P", "-m", "lifted_bregman.distributed.worker", *arguments),
        max_restarts=0,
    )
    agent = LocalElasticAgent(spec, _Streams({**environment, ATTEMPT: str(attempt)}))
    sent: set[tuple[_Received, int]] = set()
    kill_silent = kill_all = math.inf  # when, by the monotonic clock in seconds
    with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, _STOPS)) as thread:
        run: Future[RunResult] = thread.submit(agent.run)
        try:
            while not run.done():
                wait([run], _INTERVAL)
                pids, now = _pids(agent), time.monotonic()
                # Pass on each signal once to each worker.  A second SIGINT gives them GRACE seconds to end.
                new = {(received, pid) for received in signals for pid in pids.values()} - sent
                for received, pid in sorted(new):
                    _send(received.number, pid)
                sent |= new
                kill_all = next((at + GRACE for at, number in signals[1:] if number == signal.SIGINT), math.inf)
                # After a failure the others have GRACE seconds to end by themselves, and as long to obey SIGTERM.
                if kill_silent == math.inf and store.check([failed_key(attempt)]):
                    kill_silent = now + 2 * GRACE
                if now > min(kill_all, kill_silent):
                    ended = _announced_codes(store, attempt, size) if now <= kill_all else {}
                    _kill(pid for rank, pid in pids.items() if rank not in ended)
        finally:  # workers are left here only if an exception interrupted this thread
            while not run.done():
                _kill(_pids(agent).values())
                wait([run], _INTERVAL)
    return run.result()


def _pids(agent: LocalElasticAgent) -> dict[int, int]:
    """Return the process id of each rank that has been started."""
    return {w.global_rank: w.id for w in agent.get_worker_group().workers if w.id is not None}


def _announced_codes(store: TCPStore, attempt: int, size: int) -> dict[int, int]:
    """Return the exit code of each rank that is about to end by itself."""
    keys = {rank: ended_key(attempt, rank) for rank in range(size)}
    return {rank: int(store.get(key)) for rank, key in keys.items() if store.check([key])}


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        _send(signal.SIGKILL, pid)


def _send(number: int, pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _final_code(codes: Mapping[int, int], announced: Mapping[int, int]) -> int | None:
    """Return the exit code of an end that would come again, None if workers were killed or lost others.

    codes      exit code of each failed rank, -n for signal n, in the order in which they failed; torch ended those
      after the first with SIGTERM, so that a later -n says nothing
    announced  exit code that each rank announced before it ended
    """
    first = next(iter(codes.values()))
    if first < 0 and -first in _STOPS:
        return 128 - first
    return next((code for _, code in sorted({**codes, **announced}.items()) if code > 0 and code != LOST), None)


def _describe_loss(codes: Mapping[int, int], size: int) -> str:
    first, code = next(iter(codes.items()))
    if code < 0:
        return f"worker {first} of {size} was ended by {signal.Signals(-code).name}."
    silent = ", ".join(str(rank) for rank, code in sorted(codes.items()) if code < 0) or "another"
    return f"worker {silent} of {size} did not answer in time."


def _describe_restarts(restarts: int) -> str:
    if not restarts:
        return "No restarts were allowed: resume, or allow some with Parallel(restarts=...)."
    return f"{restarts} restart{'s' if restarts > 1 else ''} did not help: see what ends it, then resume."


class _Received(NamedTuple):
    """A signal that this process received."""

    at: float
    """When, by the monotonic clock in seconds."""
    number: int


@contextmanager
def _receive_signals(terminate: bool) -> Iterator[list[_Received]]:
    """Collect SIGINT, and SIGTERM if `terminate`; put the previous handlers back in the end.

    Outside the main thread, where Python delivers no signals, none are received.
    """
    signals: list[_Received] = []
    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in _STOPS if terminate else (signal.SIGINT,):
            previous[number] = signal.signal(number, lambda n, _: signals.append(_Received(time.monotonic(), n)))
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class _Streams(LogsSpecs):
    """Let workers write where this process writes, and give them their environment variables."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__()
        self._variables = variables

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for variables in envs.values():
            variables.update(self._variables)
        here = dict.fromkeys(envs, "")
        return LogsDest(stdouts=here, stderrs=here, error_files=dict.fromkeys(envs, os.devnull))

    @property
    def root_log_dir(self) -> str:
        return os.devnull


def _environment(parallel: Parallel) -> dict[str, str]:
    """Return the variables that every worker gets."""
    interface = parallel.interface or "lo"
    cores = len(os.sched_getaffinity(0))
    variables = {
        LAUNCHER: str(os.getpid()),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    defaults = {"OMP_NUM_THREADS": str(max(1, cores // parallel.size)), "TORCH_CPP_LOG_LEVEL": "FATAL"}
    return variables | {name: value for name, value in defaults.items() if name not in os.environ}


def _listen(address: str) -> TCPStore:
    """Return a store that listens on this address only; torch would listen on every interface.

    torch's rendezvous opens the same port again, and with `multi_tenant` shares this server.
    """
    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    return TCPStore(
        address, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
    )


def _address(interface: str) -> str:
    """Return the IPv4 address of a network interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _ADDRESS_OF_INTERFACE, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's agent, which reports every lost worker at length; `launch` says what there is to say."""
    logger, nowhere = logging.getLogger("torch.distributed.elastic"), logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(nowhere)
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(nowhere)
