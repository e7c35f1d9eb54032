"""The warm process of `program.Warm`: reads requests from standard input and forks a `lifted` for each.

A fork may be asked to pause at a certain place.  Nothing is replaced: the function named there is called as always,
after the pause.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from lifted_bregman.cli import main
from lifted_bregman.cli.commands import installed

# Where a run can be caught: module, name and attribute of what is called there.
PLACES = {
    "data": ("lifted_bregman.experiments.tables", None, "read_array"),
    "step": ("lifted_bregman.solvers.implicit_sgd", "ImplicitSGD", "step"),
    "inner loop": ("lifted_bregman.solvers.inner_steps", None, "descend"),
    "evaluation": ("lifted_bregman.solvers._rows", None, "evaluate_network"),
    "save": ("lifted_bregman.training.files", None, "write_file"),
    "rename": ("os", None, "replace"),
}


def pause_at(place: str, count: int, folder: Path, hang: bool) -> None:
    module, owner, name = PLACES[place]
    home: Any = importlib.import_module(module)
    home = home if owner is None else getattr(home, owner)
    original = getattr(home, name)
    calls = 0

    def paused(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            (folder / "paused").write_text("1")
            while hang or not (folder / "sent").exists():
                time.sleep(0.002)
                if getattr(getattr(signal.getsignal(signal.SIGINT), "__self__", None), "received", None) is not None:
                    (folder / "received").write_text("1")
        return original(*arguments, **options)

    setattr(home, name, paused)


def obey_permissions() -> None:
    """Root without the right to write where permissions say no (capability 1, CAP_DAC_OVERRIDE)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << 1)  # of the effective ones
    assert libc.capset(header, sets) == 0


def child(request: dict[str, Any]) -> int:
    folder = Path(request["folder"])
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        target = os.open(request["terminal"] or folder / name, os.O_WRONLY | os.O_CREAT)
        if descriptor in request["closed"]:
            reader, target = os.pipe()
            os.close(reader)
        os.dup2(target, descriptor)
        setattr(sys, name, open(descriptor, "w", buffering=descriptor - 1 or -1, closefd=False))  # as in a new process
    if request["unprivileged"] and os.getuid() == 0:
        obey_permissions()
    os.environ.update(request["environment"])
    if request["grace"] is not None:
        importlib.import_module("lifted_bregman.training.signals")._GRACE = request["grace"]  # type: ignore[attr-defined]
    if request["pause"] is not None:
        pause_at(request["pause"], request["at"], folder, request["hang"])
    try:
        return main(request["arguments"])
    except SystemExit as ending:
        return int(ending.code or 0)


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for command in installed().values():
        command.load()
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])}
        else:
            pid = os.fork()
            if not pid:
                code = 99
                try:
                    code = child(request)
                except BaseException:
                    (Path(request["folder"]) / "crash").write_text(traceback.format_exc())
                finally:
                    os._exit(code)
            answer = {"pid": pid}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
