"""A process finds the world it was started in, joins it under names of its own, and says who is missing."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lifted_bregman as lb
from lifted_bregman.distributed import environment, world
from lifted_bregman.errors import SettingError, WorkerError
from tests.distributed.processes import PATIENCE, forked, listening

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "gpu[07-09]",
    "SLURM_NTASKS": "6",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}

SetVariables = Callable[[Mapping[str, str]], None]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> SetVariables:
    """An environment without any world, and a way to put one there."""
    for name in [*os.environ]:
        if name in OURS or name.startswith("SLURM_"):
            monkeypatch.delenv(name)

    def put(given: Mapping[str, str]) -> None:
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    return put


@contextmanager
def lasting_store() -> Iterator[int]:
    """A store that outlives its processes, as the agent of torchrun has it; its port."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


def test_a_process_without_a_world_cannot_join(variables: SetVariables) -> None:
    assert environment.process_info() is None and not environment.follows() and not environment.launched()
    with pytest.raises(SettingError, match="torchrun"), world.join(lb.Parallel(data=2)):
        pass


def test_the_variables_of_torchrun(variables: SetVariables) -> None:
    variables(TORCHRUN)
    assert environment.process_info() == environment.ProcessInfo(3, 4, 1, 0, "node1", 29500) and environment.follows()
    variables({"TORCHELASTIC_RESTART_COUNT": "2", "RANK": "0"})
    assert (
        environment.process_info() == environment.ProcessInfo(0, 4, 1, 2, "node1", 29500) and not environment.follows()
    )
    variables(SRUN)
    assert environment.process_info() == environment.ProcessInfo(
        0, 4, 1, 2, "node1", 29500
    )  # torchrun was started by srun


@pytest.mark.parametrize("name", [name for name in TORCHRUN if name != "LOCAL_RANK"])
def test_an_incomplete_set_of_variables_is_no_world(name: str, variables: SetVariables) -> None:
    variables({key: value for key, value in TORCHRUN.items() if key != name})
    assert environment.process_info() is None


def test_the_variables_of_srun(variables: SetVariables) -> None:
    variables(SRUN)
    assert environment.process_info() == environment.ProcessInfo(5, 6, 1, 0, "gpu07", 15000 + 4711)
    variables({"SLURM_RESTART_COUNT": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"})
    assert environment.process_info() == environment.ProcessInfo(5, 6, 1, 1, "10.0.0.1", 1234)


def test_a_batch_script_without_srun_is_no_world(variables: SetVariables) -> None:
    """The script itself has rank and number of tasks too, but no step: only srun starts the tasks."""
    variables(
        {name: value for name, value in SRUN.items() if not name.startswith("SLURM_STEP")} | {"SLURM_PROCID": "0"}
    )
    assert environment.process_info() is None


def test_a_step_of_one_task_is_no_world(variables: SetVariables) -> None:
    variables(SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})
    assert environment.process_info() is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[3-5]", "node3"),
        ("node[003,007-009]", "node003"),
        ("a[1-2]-ib,b[1-2]", "a1-ib"),
        ("login-2.cluster,a[1-2]", "login-2.cluster"),
    ],
)
def test_first_node_reads_slurms_list_of_nodes(nodes: str, first: str) -> None:
    assert environment.first_node(nodes) == first


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"])
def test_a_variable_that_is_not_a_number_is_refused_by_name(name: str, variables: SetVariables) -> None:
    variables(TORCHRUN | {name: "many"})
    with pytest.raises(SettingError, match=f"{name} is 'many'"):
        environment.process_info()


def test_a_world_that_does_not_factor_is_refused_at_once(variables: SetVariables) -> None:
    variables(TORCHRUN)
    with pytest.raises(SettingError, match="6 processes in all, and there are 4"), world.join(lb.Parallel(3, 2)):
        pass
    with pytest.raises(SettingError, match="does not have"), world.join(lb.Parallel(4, interface="nowhere9")):
        pass


def joining(rank: int) -> Any:
    """Joined twice, as a script with two fits does; what was summed, and what is left of it."""
    before, told = dict(os.environ), []
    for time_of_joining in (1, 2):
        with world.join(lb.Parallel(data=3)) as joined:
            x = torch.tensor([float(time_of_joining + joined.rank)])
            dist.all_reduce(x, group=joined.data)
            told.append((float(x), joined.first(10 * rank + 7), joined.size, joined.layer, listening(os.getpid())))
    return told, dist.is_initialized(), dict(os.environ) == before


def test_joining_and_leaving() -> None:
    for told, initialised, same in forked(3, joining):
        assert not initialised and same
        for time_of_joining, (total, first, size, layer, addresses) in enumerate(told, start=1):
            assert total == 3 * time_of_joining + 3 and first == 7 and size == 3 and layer is None
            assert set(addresses) == {"127.0.0.1"}


def in_a_mesh(rank: int) -> Any:
    with world.join(lb.Parallel(data=2, layer=3)) as joined:
        assert joined.mesh is not None and joined.layer is not None
        sums = []
        for group in (joined.data, joined.layer):
            x = torch.tensor([10.0**rank])
            dist.all_reduce(x, group=group)
            sums.append(float(x))
        return sums, joined.mesh.mesh_dim_names, joined.mesh.get_coordinate()


def test_data_and_layer_make_a_mesh() -> None:
    """Ranks 0 1 2 have the layers of the first samples, 3 4 5 those of the others."""
    for rank, (sums, names, here) in enumerate(forked(6, in_a_mesh)):
        row, column = divmod(rank, 3)
        across = sum(10.0**other for other in (column, column + 3))
        along = sum(10.0**other for other in range(3 * row, 3 * row + 3))
        assert sums == [across, along] and names == ("data", "layer") and tuple(here) == (row, column)


def test_a_process_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "_JOINING", 1.0)

    context = multiprocessing.get_context("fork")
    both, told = context.Barrier(2), context.Semaphore(0)

    def work(rank: int) -> str:
        if rank == 1:  # comes when the others have given it up
            return "late" if all(told.acquire(timeout=PATIENCE) for _ in range(2)) else "never"
        both.wait(PATIENCE)
        with pytest.raises(WorkerError, match=r"of 3 processes rank 1 did not come within 1 seconds"):
            with world.join(lb.Parallel(data=3, timeout=0.5)):
                pass
        told.release()
        return "told"

    with lasting_store() as port:
        assert forked(3, work, port, TORCHELASTIC_USE_AGENT_STORE="True") == ["told", "late", "told"]


def test_silence_is_a_loss_after_the_timeout() -> None:
    """Rank 1 is there and does not answer, until rank 0 has given it up."""
    noticed = multiprocessing.get_context("fork").Event()

    def work(rank: int) -> Any:
        if rank == 1:
            with world.join(lb.Parallel(data=2, timeout=1.0)):
                return noticed.wait(PATIENCE)
        with pytest.raises(WorkerError, match="rank 0 of 2 lost another process"):
            with world.join(lb.Parallel(data=2, timeout=1.0)) as joined:
                started = time.monotonic()
                dist.all_reduce(torch.ones(1), group=joined.data)
        waited = time.monotonic() - started
        noticed.set()
        return waited >= 1.0

    assert forked(2, work) == [True, True]


def ended(rank: int) -> str:
    try:
        with world.join(lb.Parallel(data=2, timeout=60.0)) as joined:
            if rank == 1:
                os._exit(0)
            dist.all_reduce(torch.ones(1), group=joined.data)
    except WorkerError as error:
        return str(error)
    return "nothing was noticed"


def test_the_end_of_a_process_is_noticed_at_once() -> None:
    told, _ = forked(2, ended)
    assert "rank 0 of 2 lost another process" in told


def test_errors_of_others_pass(variables: SetVariables) -> None:
    def work(rank: int) -> str:
        with pytest.raises(ZeroDivisionError), world.join(lb.Parallel(data=2)):
            raise ZeroDivisionError
        return "passed" if not dist.is_initialized() else "still there"

    assert forked(2, work) == ["passed", "passed"]


def summed(rank: int) -> float:
    """Joins, sums, and ends without a word."""
    context = world.join(lb.Parallel(data=2, timeout=10.0))
    joined = context.__enter__()
    x = torch.tensor([1.0 + rank])
    dist.all_reduce(x, group=joined.data)
    return float(x)


def test_each_attempt_has_names_of_its_own() -> None:
    with lasting_store() as port:
        more = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        for attempt in range(4):
            assert forked(2, summed, port, TORCHELASTIC_RESTART_COUNT=str(attempt), **more) == [3.0, 3.0]


def test_a_group_that_is_there_is_used_and_left() -> None:
    def work(rank: int) -> tuple[bool, float]:
        dist.init_process_group("gloo", rank=rank, world_size=2)
        with world.join(lb.Parallel(data=2)) as joined:
            x = torch.ones(1)
            dist.all_reduce(x, group=joined.data)
        kept = dist.is_initialized()
        dist.destroy_process_group()
        return kept, float(x)

    assert forked(2, work) == [(True, 2.0), (True, 2.0)]
