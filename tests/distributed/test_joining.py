"""A process that cannot meet the others says so in time, however the store through which they meet fails it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import torch.distributed as dist

import lifted_bregman as lb
from lifted_bregman.distributed import world
from lifted_bregman.errors import SettingError, WorkerError
from tests.distributed.processes import forked, until

TWO = lb.Parallel(data=2, timeout=1.0)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long."""
    monkeypatch.setattr(world, "_JOINING", 1.0)
    monkeypatch.setattr(world, "_ANSWER", 0.5)


def joins(rank: int) -> str:
    """What the second process is told; the first does not come."""
    if rank == 0:
        return "away"
    try:
        with world.join(TWO):
            return "joined"
    except (WorkerError, SettingError) as error:
        return str(error)


def required(port: int) -> str:
    return f"rank 1 of 2 had no answer from 127.0.0.1:{port}, where the processes meet, within 1 seconds: "


def test_a_store_that_does_not_listen_is_an_error_in_time() -> None:
    with socket.socket() as held:  # bound, so that nobody else gets the port
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert forked(2, joins, port)[1].startswith(required(port))


def test_a_store_that_never_answers_is_an_error_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert forked(2, joins, port)[1].startswith(required(port))


class Cable:
    """What lies between a process and the store; each direction can be cut, and what is sent then is lost."""

    def __init__(self, store: int) -> None:
        self.cut: set[str] = set()
        self._store = store
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._store))
                self._ends += [here, there]
                for ends in ((here, there, "up"), (there, here, "down")):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, to: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while content := source.recv(4096):
                if direction not in self.cut:
                    to.sendall(content)

    def close(self) -> None:
        for end in self._ends:
            end.close()


@contextmanager
def behind_a_cable() -> Iterator[tuple[dist.TCPStore, Cable]]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    cable = Cable(store.port)
    try:
        yield store, cable
    finally:
        cable.close()


@pytest.mark.long
@pytest.mark.parametrize("moment", ["while waiting for others", "when all have come", "never"])
def test_a_store_that_falls_silent_is_an_error_in_time(moment: str) -> None:
    """torch has sent its question by then, and waits for the answer without end."""
    with behind_a_cable() as (store, cable):
        seen = dist.PrefixStore("lifted/0/1", store)

        def cut() -> None:
            until(lambda: seen.check(["here/1"]))
            if moment == "while waiting for others":
                cable.cut |= {"up", "down"}
            elif moment == "when all have come":
                cable.cut.add("up")  # the second process learns that the first is there, and no more
                seen.set("here/0", "1")

        watcher = threading.Thread(target=cut, daemon=True)
        watcher.start()
        told = forked(2, joins, cable.port, TORCHELASTIC_USE_AGENT_STORE="True")[1]
        watcher.join()
    expected = required(cable.port) if moment != "never" else "of 2 processes rank 0 did not come within 1 seconds: "
    assert told.startswith(expected), told


def test_a_port_that_is_taken() -> None:
    def work(rank: int) -> str:
        if rank == 1:
            return "away"
        with pytest.raises(SettingError, match=f"cannot meet at 127.0.0.1:{port} .*MASTER_PORT"), world.join(TWO):
            pass
        return "told"

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert forked(2, work, port) == ["told", "away"]
