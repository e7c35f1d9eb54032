"""A worker process: `python -m lifted_bregman.distributed.worker`, which only the launcher starts.

    -m MODULE ARGUMENTS    runs a module, as python -m does
    FILE                   calls the function in the pickle FILE, and saves its result as a pickle beside it

The library reads no other pickles.  One process of a run writes these for another, into a folder with mode 700 that is
removed when the run ends.  Checkpoints and run folders contain no pickles.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from lifted_bregman.distributed.environment import ERROR, LAUNCHER, LOST, RESULT, ProcessInfo, process_info
from lifted_bregman.distributed.world import end_at_once
from lifted_bregman.errors import LiftedBregmanError, WorkerError

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs the module or the pickled function that the arguments name (see above), and exits.

    The exit code is that of the module, and for a function 0, 1 after an error and `LOST` after the loss of another
    rank.  On Linux the kernel kills this process when its launcher ends.
    """
    code = 1
    atexit.register(lambda: end_at_once(code))  # registered first, and therefore called last
    try:
        end_with_launcher()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # blocked by the launcher
        code = _run(arguments[1:]) if arguments[0] == "-m" else _call(Path(arguments[0]))
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    if code == LOST:
        end_at_once(code)
    sys.exit(code)


def end_with_launcher() -> None:
    """Asks the kernel to kill this process when the launcher ends, even if the launcher is killed.  Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != int(os.environ[LAUNCHER]):
        os._exit(1)  # the launcher has ended already


def _run(command: Sequence[str]) -> int:
    sys.argv[:] = command
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if isinstance(ending.code, str):
            raise
        return ending.code or 0
    return 0


def _call(path: Path) -> int:
    process = process_info()
    assert process is not None
    try:
        returned = torch.load(path, weights_only=False, mmap=True, map_location=_own_device)()
    except WorkerError:
        return LOST
    except Exception as error:
        torch.save(_told(error, process), path.with_name(f"{ERROR}-{process.rank}"))
        return 1
    if process.rank == 0:
        torch.save(returned, path.with_name(RESULT))
    return 0


def _own_device(storage: Any, location: str) -> Any:
    """Moves CUDA tensors to the GPU of this worker, by its local rank."""
    process = process_info()
    assert process is not None
    return storage.cuda(process.local_rank) if location.startswith("cuda") else storage


def _told(error: Exception, process: ProcessInfo) -> Exception:
    """The error in a form that can be pickled; an error that is not of this library gets a note with its traceback."""
    where = f"In worker {process.rank} of {process.size}:\n{''.join(traceback.format_exception(error))}"
    try:
        told: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, LiftedBregmanError):
        told.add_note(where)
    return told


if __name__ == "__main__":
    main(sys.argv[1:])
