"""Two hosts whose link is cut: both processes end by themselves, with a sentence that says what happened.

The hosts are network namespaces, and the processes real programs, started as a cluster's scheduler would.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.cli.program import PROGRAM, environment
from tests.distributed.hosts import DEVICE, Hosts, hindrance, two_hosts
from tests.distributed.processes import connected, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TIMEOUT = 5.0
JOINING = 60.0  # seconds that processes may start after each other, as docs/distributed.md has it
MARGIN = 30.0  # for a busy machine; the timeout that nobody asked for is 60 seconds, and that of TCP 15 minutes
PORT = 29511
CUTS = {"unplugged": Hosts.unplug, "packets lost": Hosts.lose_packets}

Cut = Callable[[Hosts], None]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    reason = hindrance()
    if reason is not None:
        pytest.skip(reason)
    with two_hosts() as made:
        yield made


@pytest.fixture(params=CUTS.values(), ids=CUTS)
def cut(request: pytest.FixtureRequest) -> Cut:
    chosen: Cut = request.param
    return chosen


@contextmanager
def training(
    hosts: Hosts, folder: Path, degrees: str, size: int = 2, torchrun: bool = False
) -> Iterator[list[subprocess.Popen[str]]]:
    """`lifted train` on both hosts, as ranks 0 and 1 of `size`, into `folder / "run"`."""
    table = folder / "table.npz"
    X = np.random.default_rng(0).normal(size=(60, 6))
    np.savez(table, X=X, y=(X[:, 0] + X[:, 1] > 0).astype(np.int64))
    parallel = f"{degrees},timeout={TIMEOUT:g},interface={DEVICE}"
    settings = f"--hidden 8,7 --batch-size 10 --threads 1 --quiet --epochs {10**6} --parallel {parallel}"
    arguments = ["train", "--data", str(table), *settings.split(), "--out", str(folder / "run")]
    address, processes = hosts.pair[0].address, []
    for rank, host in enumerate(hosts.pair):
        if torchrun:
            place = f"--nnodes {size} --node-rank {rank} --master-addr {address} --master-port {PORT}"
            start, world = [PROGRAM[0], "-m", "torch.distributed.run", *place.split()], {}
        else:
            start, world = PROGRAM[:1], {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0"}
            world |= {"MASTER_ADDR": address, "MASTER_PORT": str(PORT)}
        quiet = environment(TORCH_CPP_LOG_LEVEL="FATAL", **world)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(host.run([*start, *PROGRAM[1:], *arguments], env=quiet, **pipes))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ends(processes: list[subprocess.Popen[str]], within: float, lines: int | None = 1) -> list[str]:
    """What each says at its end, which is one of its own and within the time; None for any number of lines."""
    said, last = [], time.monotonic() + within + MARGIN
    for process in processes:
        out, err = process.communicate(timeout=max(0.0, last - time.monotonic()))
        assert (process.returncode, out) == (1, "") and lines in (None, err.count("\n")), (process.returncode, out, err)
        said.append(err)
    return said


@pytest.mark.parametrize(("degrees", "torchrun"), [("data=2", False), ("layer=2", False), ("data=2", True)])
def test_a_link_cut_in_training_is_a_lost_process_on_both(
    hosts: Hosts, cut: Cut, degrees: str, torchrun: bool, tmp_path: Path
) -> None:
    """torchrun adds its own account of what it has lost."""
    history = tmp_path / "run" / "history.jsonl"

    def rows() -> int:
        assert all(process.poll() is None for process in processes), [process.communicate() for process in processes]
        return len(history.read_text().splitlines()) if history.exists() else 0

    with training(hosts, tmp_path, degrees, torchrun=torchrun) as processes:
        until(lambda: rows() >= 3)
        cut(hosts)
        for rank, said in enumerate(ends(processes, TIMEOUT, None if torchrun else 1)):
            assert said.startswith(f"lifted: rank {rank} of 2 lost another process, which ended or was silent"), said


def test_a_link_cut_before_they_meet(hosts: Hosts, cut: Cut, tmp_path: Path) -> None:
    cut(hosts)
    with training(hosts, tmp_path, "data=2") as processes:
        first, second = ends(processes, JOINING)
    assert "of 2 processes rank 1 did not come within 60 seconds" in first
    assert f"rank 1 of 2 had no answer from {hosts.pair[0].address}:{PORT}" in second


def test_a_link_cut_while_they_wait_for_a_third(hosts: Hosts, cut: Cut, tmp_path: Path) -> None:
    """Rank 1 has reached the store, and waits there for one that never comes."""
    with training(hosts, tmp_path, "data=3", size=3) as processes:
        until(lambda: connected(processes[1].pid, PORT))
        cut(hosts)
        first, second = ends(processes, JOINING)
    assert "did not come within 60 seconds" in first
    assert f"rank 1 of 3 had no answer from {hosts.pair[0].address}:{PORT}" in second
    assert not (tmp_path / "run" / "history.jsonl").exists()
