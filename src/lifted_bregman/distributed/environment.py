"""Rank, world size and address of this process, as the launcher, torchrun or SLURM set them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from lifted_bregman.errors import SettingError

LAUNCHER = "LIFTED_LAUNCHER"
"""The environment variable with the process id of the launcher that started a worker."""

ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
"""The variable in which torchrun and the launcher count how often the processes have been started again."""

LOST = 75
"""The exit code of a worker that lost another worker: the launcher restarts all of them."""

RESULT, ERROR = "result", "error"
"""File names beside a worker's pickle: the result of rank 0, and the error of a rank as error-RANK."""


@dataclass(frozen=True)
class ProcessInfo:
    """Rank, world size and rendezvous address of this process."""

    rank: int
    """Rank in the world, from 0."""
    size: int
    """The number of processes in the world."""
    local_rank: int
    """Rank on this machine, from 0."""
    attempt: int
    """The number of restarts so far."""
    address: str
    """The host of the rendezvous store."""
    port: int
    """The port of the rendezvous store."""


def process_info() -> ProcessInfo | None:
    """Return rank, size and address of this process in its world; None for a process without a world.

    torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; srun sets SLURM_PROCID, SLURM_STEP_NUM_TASKS and
    SLURM_STEP_ID, which a batch script that is not run by srun does not have.
    """
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return ProcessInfo(
            rank=_number("RANK"),
            size=_number("WORLD_SIZE"),
            local_rank=_number("LOCAL_RANK", _number("RANK")),
            attempt=_number(ATTEMPT, 0),
            address=os.environ["MASTER_ADDR"],
            port=_number("MASTER_PORT"),
        )
    if {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS"} <= os.environ.keys():
        size = _number("SLURM_STEP_NUM_TASKS", _number("SLURM_NTASKS"))
        if size > 1:
            nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "localhost")
            return ProcessInfo(
                rank=_number("SLURM_PROCID"),
                size=size,
                local_rank=_number("SLURM_LOCALID", 0),
                attempt=_number("SLURM_RESTART_COUNT", 0),
                address=os.environ.get("MASTER_ADDR") or first_node(nodes),
                port=_number("MASTER_PORT", _port(_number("SLURM_JOB_ID", 0), _number("SLURM_STEP_ID"))),
            )
    return None


def first_node(nodes: str) -> str:
    """Return the first of a list of nodes as SLURM writes it: "gpu[07-09,12],login" begins with gpu07."""
    found = re.match(r"([^,\[\]]*)(?:\[(\w+)[^\]]*\]([^,\[\]]*))?", nodes)
    assert found is not None
    return "".join(part or "" for part in found.groups())


def _port(job: int, step: int) -> int:
    """Return a port that differs for most pairs of job and step, because steps on one node cannot share it."""
    return 15000 + (job + 101 * step) % 20000


def follows() -> bool:
    """Return whether this process has a rank above 0: it then prints nothing, because rank 0 reports for all."""
    process = process_info()
    return process is not None and process.rank > 0


def restarted() -> bool:
    """Return whether the processes of this world were restarted after a loss."""
    process = process_info()
    return process is not None and process.attempt > 0


def launched() -> bool:
    """Return whether the launcher started this process, and will restart it after a loss."""
    return LAUNCHER in os.environ


def _number(name: str, default: int | None = None) -> int:
    value = os.environ.get(name)
    if value is None and default is not None:
        return default
    if value is None or not value.isdigit():
        raise SettingError(f"the environment variable {name} is {value!r}; it must be a whole number of at least 0.")
    return int(value)
