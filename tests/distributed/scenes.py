"""What workers do in the tests of the launcher: `python -m tests.distributed.scenes SCENE FOLDER`."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import lifted_bregman as lb
from lifted_bregman.distributed import world
from lifted_bregman.distributed.environment import LOST, process_info
from lifted_bregman.errors import WorkerError

PARALLEL = lb.Parallel(data=2, timeout=30.0, restarts=1)


def note(folder: Path, what: str) -> None:
    process = process_info()
    assert process is not None
    (folder / f"{what}-{process.rank}-{process.attempt}").write_text(f"{os.getpid()} {torch.get_num_threads()}")


def sleep() -> None:
    """Ten minutes in short turns: a signal that comes just before a sleep begins is handled after it."""
    for _ in range(12_000):
        time.sleep(0.05)


def meet(folder: Path) -> None:
    """Joins, meets the other, waits to be let go, and meets it again."""
    with world.join(PARALLEL) as joined:
        dist.all_reduce(torch.ones(1), group=joined.data)
        note(folder, "met")
        while not (folder / "go").exists():
            time.sleep(0.01)
        dist.all_reduce(torch.ones(1), group=joined.data)


def killed_once(folder: Path) -> None:
    """In the first attempt rank 1 is killed while rank 0 waits for it."""
    process = process_info()
    assert process is not None
    with world.join(PARALLEL) as joined:
        note(folder, "joined")
        dist.all_reduce(torch.ones(1), group=joined.data)  # both have noted it
        if process.rank == 1 and process.attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1), group=joined.data)
        note(folder, "ended")


def fails(folder: Path) -> None:
    """Rank 1 has an error of its own, and rank 0 waits for it."""
    with world.join(PARALLEL) as joined:
        note(folder, "joined")
        dist.all_reduce(torch.ones(1), group=joined.data)  # both have noted it
        if joined.rank == 1:
            sys.exit(3)
        dist.all_reduce(torch.ones(1), group=joined.data)


def saves_late(folder: Path) -> None:
    """Rank 1 fails, and rank 0 has something left to save."""
    with world.join(PARALLEL) as joined:
        dist.all_reduce(torch.ones(1), group=joined.data)
        rank = joined.rank
    if rank == 1:
        sys.exit(3)
    time.sleep(1.0)  # torch would end workers a tenth of a second after one has exited
    note(folder, "saved")


def deaf(folder: Path) -> None:
    """Rank 1 fails, and rank 0 does not end by SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with world.join(PARALLEL) as joined:
        dist.all_reduce(torch.ones(1), group=joined.data)
        note(folder, "met")
        rank = joined.rank
    if rank == 1:
        sys.exit(3)
    sleep()


class Tripwire:
    """Aborts a process whose interpreter ends, as a thread of gloo may that still holds tensors."""

    def __del__(self) -> None:
        os.abort()


def aborts_late(folder: Path) -> None:
    """All is done, with something left to do in the end; then the end of the interpreter would abort it."""
    torch.tripwire = Tripwire()  # type: ignore[attr-defined]  # lives until then
    atexit.register(note, folder, "ended")
    sys.stdout.write("the last words")
    sys.exit(int((folder / "code").read_text()))


def stubborn(folder: Path) -> None:
    """Takes note of Ctrl-C, and does not end."""
    signal.signal(signal.SIGINT, lambda *_: note(folder, "pressed"))
    note(folder, "met")
    sleep()


def waits(folder: Path) -> None:
    """Does nothing for a long time."""
    note(folder, "met")
    sleep()


if __name__ == "__main__":
    scenes = (meet, killed_once, fails, saves_late, deaf, aborts_late, stubborn, waits)
    scene = {function.__name__: function for function in scenes}[sys.argv[1]]
    try:
        scene(Path(sys.argv[2]))
    except WorkerError:
        sys.exit(LOST)
