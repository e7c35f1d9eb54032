"""Real processes for tests: forks of this one, which are cheap, and what the kernel says of any process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lifted_bregman.distributed import Parallel, worker
from lifted_bregman.distributed.environment import LAUNCHER

PATIENCE = 120.0  # seconds after which something hangs; never a judgement of speed


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
        return port


def world_variables(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    """What torchrun tells a process."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **more,
    }


def forked(count: int, work: Callable[[int], Any], port: int | None = None, **more: str) -> list[Any]:
    """What `work(rank)` returns, or the exception it raises, in each of `count` forks that are in one world.

    None for one that ended before.
    """
    context, port = multiprocessing.get_context("fork"), port or free_port()
    pipes = [context.Pipe(duplex=False) for _ in range(count)]

    def child(rank: int) -> None:
        torch.set_num_threads(1)  # threads do not survive a fork
        os.environ.update(world_variables(rank, count, port, **more))
        try:
            answer: Any = work(rank)
        except BaseException as error:
            answer = error
            traceback.print_exc()
        try:
            pipes[rank][1].send_bytes(pickle.dumps(answer))
        finally:
            os._exit(0)

    children = [context.Process(target=child, args=(rank,)) for rank in range(count)]
    for process in children:
        process.start()
    for _, writer in pipes:
        writer.close()
    try:
        answers = []
        for rank, (reader, _) in enumerate(pipes):
            assert reader.poll(PATIENCE), f"rank {rank} hangs"
            try:
                answers.append(pickle.loads(reader.recv_bytes()))
            except EOFError:
                answers.append(None)
        return answers
    finally:
        for process in children:
            process.kill()
            process.join()


def launch_forks(
    arguments: Sequence[str], parallel: Parallel, *, terminate: bool = True, variables: Mapping[str, str] | None = None
) -> int:
    """In the place of `launcher.launch`: the same workers as forks of this process, which need not import anything."""

    def work(rank: int) -> int:
        with open(os.devnull, "w") as nowhere:
            sys.stdout = nowhere
            return worker._run(arguments[1:]) if arguments[0] == "-m" else worker._call(Path(arguments[0]))

    ends = forked(parallel.size, work, **{LAUNCHER: str(os.getpid()), **(variables or {})})
    return next((end if isinstance(end, int) else 1 for end in ends if end != 0), 0)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be asked does not."""
    try:
        return stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stat(pid: int) -> list[str]:
    """State, parent and more of a process, from behind its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def children_of(pid: int) -> list[int]:
    """The processes that it has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            try:
                if int(stat(int(entry.name))[1]) == pid:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return sorted(found)


def children_here() -> list[int]:
    """The children of this process, without those that wait for other tests."""
    waiting = (b"tests.distributed.crew", b"tests.fresh")
    return [pid for pid in children_of(os.getpid()) if not any(name in _command(pid) for name in waiting)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def variables_of(pid: int) -> Mapping[str, str]:
    """The environment that a process was started with."""
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)


def listening(pid: int) -> list[str]:
    """The addresses on which a process accepts connections, as the kernel has them."""
    own = {link for link in _links(pid) if link.startswith("socket:[")}
    found = []
    for words in _sockets(pid):
        if words[3] == "0A" and f"socket:[{words[9]}]" in own:
            number = bytes.fromhex(words[1].partition(":")[0])
            turned = b"".join(number[i : i + 4][::-1] for i in range(0, len(number), 4))
            found.append(socket.inet_ntop(socket.AF_INET if len(number) == 4 else socket.AF_INET6, turned))
    return found


def connected(pid: int, port: int) -> bool:
    """Whether somebody in the network of a process has a connection to this port."""
    return any(words[3] == "01" and int(words[2].rpartition(":")[2], 16) == port for words in _sockets(pid))


def _sockets(pid: int) -> Iterator[list[str]]:
    """Local and remote address, state, inode and more of every TCP socket in the network of a process."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            yield line.split()


def until(answer: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """The first answer that is true."""
    end = time.monotonic() + patience
    while not (found := answer()):
        assert time.monotonic() < end, f"{answer} stays {found!r}"
        time.sleep(0.005)
    return found


@contextmanager
def nothing_left(*pids: int) -> Iterator[None]:
    """Kills what a failing test would leave."""
    try:
        yield
    finally:
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def _links(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield os.readlink(entry)
        except FileNotFoundError:
            continue
