"""Four resident processes joined by gloo, on which tests run a function as 2 or as 4 processes would.

They are started when first needed, once for a pytest process: one fresh process imports everything and forks four.  A
function is named, not sent: it has to be at the top of a module of tests.  It gets a `Mate`, and its arguments.  When
it raises in a process, `run` raises `CrewError` with that process's traceback, and the next call starts a new crew.
The processes die with the one that started them.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

SIZE = 4
ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds after which something hangs; never a judgement of speed
_KEY = b"crew"


class CrewError(AssertionError):
    """A function failed in one of the processes, or did not end in time."""


@dataclass(frozen=True)
class Mate:
    """One of the processes that run a function."""

    rank: int
    size: int
    group: Any = None
    """A torch.distributed process group; None for one process."""
    pairs: Any = None
    """Of four processes as two rows of two: the group of its column, and that of its row."""

    def ranks(self) -> Any:
        from lifted_bregman.distributed import ProcessRanks
        from lifted_bregman.solvers import DataRanks

        return DataRanks() if self.group is None else ProcessRanks(self.group)

    def agreement(self) -> Any:
        from lifted_bregman.distributed import ProcessAgreement
        from lifted_bregman.solvers import Agreement

        return Agreement() if self.group is None else ProcessAgreement(self.group)


class Crew:
    """The processes, as tests see them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connections: list[Connection] = []

    def run(self, size: int, function: Callable[..., Any], *arguments: Any, **settings: Any) -> list[Any]:
        """What function(mate, *arguments, **settings) returned in each of `size` processes; with 1, in this one."""
        if size == 1:
            return [function(Mate(0, 1), *arguments, **settings)]
        if self._process is None:
            self._start()
        request = (size, function.__module__, function.__qualname__, arguments, settings)
        for connection in self._connections[:size]:
            connection.send_bytes(pickle.dumps(request))
        found: dict[int, Any] = {}
        deadline = time.monotonic() + PATIENCE
        while len(found) < size:
            waiting = [c for rank, c in enumerate(self._connections[:size]) if rank not in found]
            for ready in wait(waiting, max(0.0, deadline - time.monotonic())):
                rank = self._connections.index(ready)
                try:
                    good, found[rank] = pickle.loads(ready.recv_bytes())  # not `recv`, which shares a tensor's memory
                except EOFError:
                    good, found[rank] = False, "the process is gone"
                if not good:
                    self.dismiss()
                    raise CrewError(f"rank {rank} of {size} failed:\n{found[rank]}")
            if time.monotonic() > deadline and len(found) < size:
                self.dismiss()
                late = sorted(set(range(size)) - set(found))
                raise CrewError(f"ranks {late} of {size} had no answer in {PATIENCE} s")
        return [found[rank] for rank in range(size)]

    def _start(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            listener = Listener(f"{folder}/crew", "AF_UNIX", authkey=_KEY)
            listener._listener._socket.settimeout(PATIENCE)
            environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            command = [sys.executable, "-m", "tests.distributed.crew", folder]
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment)
            try:
                arrived: dict[int, Connection] = {}
                while len(arrived) < SIZE:
                    connection = listener.accept()
                    arrived[connection.recv()] = connection
                self._connections = [arrived[rank] for rank in range(SIZE)]
                for connection in self._connections:
                    connection.recv()  # it has joined the others
            except BaseException:
                self.dismiss()
                raise
            finally:
                listener.close()

    def dismiss(self) -> None:
        """Ends the processes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for connection in self._connections:
                connection.close()
        self._process, self._connections = None, []


def die_with_parent() -> None:
    """From now on the kernel ends this process with the one that started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _serve(rank: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    connection = Client(f"{folder}/crew", "AF_UNIX", authkey=_KEY)
    connection.send(rank)
    store = dist.FileStore(f"{folder}/store", SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=60))
    groups = {size: dist.new_group(list(range(size))) for size in (2, SIZE)}
    columns, rows = [[0, 2], [1, 3]], [[0, 1], [2, 3]]
    made = [[(ranks, dist.new_group(ranks)) for ranks in kind] for kind in (columns, rows)]
    pairs = tuple(next(group for ranks, group in kind if rank in ranks) for kind in made)
    connection.send(None)
    while True:
        try:
            size, module, name, arguments, settings = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            function: Any = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            answer = True, function(Mate(rank, size, groups[size], pairs), *arguments, **settings)
        except BaseException:
            answer = False, traceback.format_exc()
        connection.send_bytes(pickle.dumps(answer))


def main(folder: str) -> None:
    """Imports what the tests need, forks the crew, and waits for its end."""
    die_with_parent()
    for module in ("lifted_bregman", "lifted_bregman.distributed.process_shard", "tests.cases"):
        importlib.import_module(module)
    children = []
    for rank in range(SIZE):
        child = os.fork()
        if child == 0:
            die_with_parent()
            try:
                _serve(rank, folder)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1])
