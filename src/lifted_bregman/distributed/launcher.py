"""The launcher: workers on this machine, started by torch's elastic agent, and again when they are lost.

The store through which workers find each other listens on loopback, or on the interface that is named, and nowhere
else.  Workers end with the launcher, whatever ends it.  Signal handlers and environment of the calling process are put
back.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SubprocessContext
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.distributed.place import LAUNCHER, LOST
from lifted_bregman.errors import WorkerError

_GRACE = 3.0  # seconds in which workers end by themselves when one of them has failed
_STOPS = (signal.SIGINT, signal.SIGTERM)
_HANDLED_BY_TORCH = "TORCHELASTIC_SIGNALS_TO_HANDLE"  # the variable in which it looks for their names
_ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR


def launch(
    arguments: Sequence[str],
    parallel: Parallel,
    *,
    terminate: bool = True,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Runs data · layer workers with these arguments of `lifted_bregman.distributed.worker`, and returns an exit code.

    0 if all ended well; else what the first worker that failed by itself returned, 128 + n for signal n.  Workers that
    are killed, or that lost another one, are all started again, `parallel.restarts` times; then it is a `WorkerError`.
    SIGINT is passed on to the workers, SIGTERM too with `terminate`; a second SIGINT is passed on and ends them.
    Workers have the environment of this process, and `variables`.
    """
    parallel.require_interface()
    with _quiet(), _Signals(terminate) as signals:
        store = _Store(parallel.interface or "lo")
        spec = WorkerSpec(
            role="worker",
            local_world_size=parallel.size,
            rdzv_handler=store,
            entrypoint=sys.executable,
            args=("-P", "-m", "lifted_bregman.distributed.worker", *arguments),
            max_restarts=parallel.restarts,
        )
        agent = _Agent(spec, _Streams({**_variables(parallel), **(variables or {})}), signals)
        result = agent.run()
    if not result.is_failed():
        return 0
    return agent.exit_code(result)


class _Agent(LocalElasticAgent):
    """torch's agent, which starts again what was lost and nothing that failed by itself."""

    def __init__(self, spec: WorkerSpec, streams: _Streams, signals: _Signals) -> None:
        super().__init__(spec, streams, shutdown_timeout=int(_GRACE))
        self._signals = signals
        self._failing_since: float | None = None
        self._ended_here: set[int] = set()

    def exit_code(self, result: RunResult) -> int:
        """What the workers' own ends amount to."""
        code = self._final(self._own_ends(result))
        if code is not None:
            return code
        if self._signals.received is not None:
            return 128 + self._signals.received
        spec = self._worker_group.spec
        raise WorkerError(f"{self._described(result)} {_tried(spec.max_restarts)}")

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._failing_since, self._ended_here = None, set()
        with self._signals.starting() as workers:
            pids: dict[int, Any] = super()._start_workers(worker_group)
            workers += pids.values()
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._end_the_others()
        if self._failing_since is not None and self._running():
            return RunResult(state=worker_group.state)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            ends = self._own_ends(result)
            if self._signals.received is not None or self._final(ends) is not None:
                self._remaining_restarts = 0
        return result

    def _end_the_others(self) -> None:
        """Where one worker has failed, the others have a little time to end by themselves before they are killed.

        They have none where one was killed: what is on disk survives that.
        """
        now = time.monotonic()
        codes = [code for process in self._processes().values() if (code := process.poll())]
        if self._failing_since is None and codes:
            self._failing_since = now
        since = self._failing_since or self._signals.pressed_at
        if since is not None and (now - since > _GRACE or any(map(_killed, codes))):
            for rank, process in self._running().items():
                self._ended_here.add(rank)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _processes(self) -> dict[int, Any]:
        assert isinstance(self._pcontext, SubprocessContext)
        return {rank: handler.proc for rank, handler in self._pcontext.subprocess_handlers.items()}

    def _running(self) -> dict[int, Any]:
        return {rank: process for rank, process in self._processes().items() if process.poll() is None}

    def _own_ends(self, result: RunResult) -> dict[int, int]:
        """The exit codes of the workers that failed, but for those that were ended here."""
        failures = {rank: failure.exitcode for rank, failure in sorted(result.failures.items())}
        return {rank: code for rank, code in failures.items() if rank not in self._ended_here}

    def _final(self, ends: Mapping[int, int]) -> int | None:
        """The exit code of an end that would come again, None where workers were lost."""
        if any(map(_killed, ends.values())):
            return None
        return next((code if code > 0 else 128 - code for code in ends.values() if code != LOST), None)

    def _described(self, result: RunResult) -> str:
        for rank, code in self._own_ends(result).items():
            if code < 0:
                return f"worker {rank} of {len(self._processes())} was ended by {signal.Signals(-code).name}."
        silent = ", ".join(map(str, sorted(self._ended_here))) or "another"
        return f"worker {silent} of {len(self._processes())} did not answer in time."


class _Signals:
    """What the calling process was sent while its workers run, passed on to them.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self, terminate: bool) -> None:
        self.received: int | None = None
        self.pressed_at: float | None = None
        """When a second SIGINT came."""
        self.workers: list[int] = []
        self._numbers = _STOPS if terminate else (signal.SIGINT,)
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.signal(number, self._receive) for number in self._numbers}
            self._previous = {number: signal.SIG_DFL if h is None else h for number, h in before.items()}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def starting(self) -> Iterator[list[int]]:
        """Takes the new workers, which are born with signals held until they can deal with them.

        What came when there were none is passed on to them.  torch puts no handlers of its own.
        """
        self.workers = []
        mask, variable = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS), os.environ.get(_HANDLED_BY_TORCH)
        os.environ[_HANDLED_BY_TORCH] = "none"
        started: list[int] = []
        try:
            yield started
            self.workers = started
            if self.received is not None:
                self._pass_on(self.received)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if variable is None:
                del os.environ[_HANDLED_BY_TORCH]
            else:
                os.environ[_HANDLED_BY_TORCH] = variable

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
        elif number == signal.SIGINT:
            self.pressed_at = self.pressed_at or time.monotonic()
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for pid in self.workers:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


class _Store(RendezvousHandler):
    """A rendezvous of this machine alone, and the store that its workers use, which listens on one interface only."""

    def __init__(self, interface: str) -> None:
        self._run = uuid.uuid4().hex
        self._rounds = 0
        listener = socket.create_server((_address(interface), 0))
        self._address, self._port = listener.getsockname()[:2]
        self._store = TCPStore(
            self._address,
            self._port,
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listener.detach(),
        )

    def next_rendezvous(self) -> RendezvousInfo:
        self._rounds += 1
        store = PrefixStore(f"agent/{self._rounds}", self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(self._address, self._port))

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "lifted"

    def get_run_id(self) -> str:
        return self._run

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


class _Streams(LogsSpecs):
    """Workers write where the calling process does; here they get their variables too."""

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


def _killed(code: int) -> bool:
    """Whether an exit code is that of a process ended by a signal that asks for nothing."""
    return code < 0 and -code not in _STOPS


def _variables(parallel: Parallel) -> dict[str, str]:
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


def _address(interface: str) -> str:
    """The IPv4 address of a network interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked.fileno(), _ADDRESS_OF_INTERFACE, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's agent reports every lost worker at length; here `launch` says what there is to say."""
    logger, nowhere = logging.getLogger("torch.distributed.elastic"), logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(nowhere)
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(nowhere)


def _tried(restarts: int) -> str:
    if not restarts:
        return "No restarts were allowed: resume, or allow some with Parallel(restarts=...)."
    return f"{restarts} restart{'s' if restarts > 1 else ''} did not help: see what ends it, then resume."
