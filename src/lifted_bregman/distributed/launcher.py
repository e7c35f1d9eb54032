"""The launcher: starts workers on this machine by torch's elastic launcher, and starts them again when some are lost.

Workers rendezvous at a store that listens only on loopback, or on the interface that `Parallel` names.  They end when
the process of the launcher ends, even if it is killed.  `start_processes` of torch starts them.  This module decides
when the failure of one worker ends the others.  torch would send the others SIGTERM at once, and a worker takes SIGTERM
as the user's request to stop the run.
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, PContext, start_processes

from lifted_bregman.distributed.environment import ATTEMPT, LAUNCHER, LOST
from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.errors import WorkerError

GRACE = 3.0
"""Seconds in which workers may end by themselves after one has failed, or after a second SIGINT."""

_STOPS = (signal.SIGINT, signal.SIGTERM)
_INTERVAL = 0.05  # seconds between two polls of the workers
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
    store = _listen(_address(parallel.interface) if parallel.interface else "127.0.0.1")
    environment = {**_environment(parallel, store), **(variables or {})}
    with _quiet(), _receive_signals(terminate) as signals:
        for attempt in range(parallel.restarts + 1):
            ends = _run(arguments, parallel.size, {**environment, ATTEMPT: str(attempt)}, signals)
            code = _final_code(ends)
            if code is None and signals:
                code = 128 + signals[0].number
            if code is not None:
                return code
    raise WorkerError(f"{_describe_loss(ends, parallel.size)} {_describe_restarts(parallel.restarts)}")


class _Ends(NamedTuple):
    """How the workers of one attempt ended."""

    codes: dict[int, int]
    """Exit code of each rank that ended by itself, -n for signal n."""
    killed: set[int]
    """Ranks that were killed here, because another one had failed."""


def _run(arguments: Sequence[str], size: int, environment: Mapping[str, str], signals: Sequence[_Received]) -> _Ends:
    """Run one attempt to its end, and pass on signals meanwhile.

    A thread starts the workers: torch installs its signal handlers in the main thread only.  The thread blocks SIGINT
    and SIGTERM, so that workers start with both blocked until they can handle them.  It lives as long as the workers,
    which the kernel ends with the thread that started them.
    """
    command = ("-P", "-m", "lifted_bregman.distributed.worker", *arguments)
    own = {rank: {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)}
    with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, _STOPS)) as thread:
        started = thread.submit(start_processes, "worker", sys.executable, dict.fromkeys(own, command), own, _Streams())
        workers: PContext = started.result()
        try:
            return _supervise(workers.pids(), signals)
        finally:
            workers.close(signal.SIGKILL)  # kills what still runs after an exception here


def _supervise(pids: Mapping[int, int], signals: Sequence[_Received]) -> _Ends:
    """Wait until every worker has ended, and end those that would wait for a failed one.

    If a worker was killed, the others are killed at once; a restart reads the last checkpoint from the disk.  If a
    worker failed, the others have `GRACE` seconds to report their errors and to save.
    """
    codes: dict[int, int] = {}
    killed: set[int] = set()
    sent: set[tuple[_Received, int]] = set()
    deadline = math.inf  # by the monotonic clock in seconds
    while len(codes) + len(killed) < len(pids):
        time.sleep(_INTERVAL)
        running = {rank: pid for rank, pid in pids.items() if rank not in codes and rank not in killed}
        # Collect the exit codes of workers that have ended since the last look.
        codes |= {rank: code for rank, pid in running.items() if (code := _exit_code(pid)) is not None}
        running = {rank: pid for rank, pid in running.items() if rank not in codes}
        # Pass on each signal once to each worker.
        new = {(received, pid) for received in signals for pid in running.values()} - sent
        for received, pid in sorted(new):
            os.kill(pid, received.number)
        sent |= new
        # Kill the workers whose time is over.
        if any(map(_was_killed, codes.values())):
            deadline = 0.0
        elif any(codes.values()) or any(number == signal.SIGINT for _, number in signals[1:]):
            deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline:
            for pid in running.values():
                _kill(pid)
            killed |= running.keys()
    return _Ends(codes, killed)


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a child process, -n for signal n, None while it runs; torch still finds it afterwards."""
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _kill(pid: int) -> None:
    """Kill a worker and the processes that it started, and wait for its end."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _was_killed(code: int) -> bool:
    """Return whether an exit code is that of a process ended by another signal than SIGINT and SIGTERM."""
    return code < 0 and -code not in _STOPS


def _final_code(ends: _Ends) -> int | None:
    """Return the exit code of a failure that a restart would repeat; None if workers were killed or lost others."""
    failed = [code for _, code in sorted(ends.codes.items()) if code]
    if not failed and not ends.killed:
        return 0
    if any(map(_was_killed, failed)):
        return None
    return next((code if code > 0 else 128 - code for code in failed if code != LOST), None)


def _describe_loss(ends: _Ends, size: int) -> str:
    for rank, code in sorted(ends.codes.items()):
        if code < 0:
            return f"worker {rank} of {size} was ended by {signal.Signals(-code).name}."
    return f"worker {', '.join(map(str, sorted(ends.killed))) or 'another'} of {size} did not answer in time."


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
    """Let workers write where this process writes."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        here = dict.fromkeys(envs, "")
        return LogsDest(stdouts=here, stderrs=here, error_files=dict.fromkeys(envs, os.devnull))

    @property
    def root_log_dir(self) -> str:
        return os.devnull


def _environment(parallel: Parallel, store: TCPStore) -> dict[str, str]:
    """Return the variables that every worker gets; those of the first group are torchrun's."""
    interface = parallel.interface or "lo"
    cores = len(os.sched_getaffinity(0))
    variables = {
        "WORLD_SIZE": str(parallel.size),
        "LOCAL_WORLD_SIZE": str(parallel.size),
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": f"lifted-{os.getpid()}",
        "TORCHELASTIC_USE_AGENT_STORE": str(True),
        LAUNCHER: str(os.getpid()),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    defaults = {"OMP_NUM_THREADS": str(max(1, cores // parallel.size)), "TORCH_CPP_LOG_LEVEL": "FATAL"}
    return variables | {name: value for name, value in defaults.items() if name not in os.environ}


def _listen(address: str) -> TCPStore:
    """Return a store that listens on this address only; torch would listen on every interface."""
    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _address(interface: str) -> str:
    """Return the IPv4 address of a network interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _ADDRESS_OF_INTERFACE, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of torch's launcher; `launch` reports by its exit code and `WorkerError`."""
    logger, nowhere = logging.getLogger("torch.distributed.elastic"), logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(nowhere)
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(nowhere)
