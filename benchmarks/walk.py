"""The way through the library that a command takes: functions, files, depth of the stack, calls per step.

    python benchmarks/walk.py [--json FILE]

Traces `lb.fit` with a lifted model, `lifted train` and `lifted resume` with `sys.setprofile`.  It counts functions and
files of this library.  The depth is the largest number of the library's frames on the stack, and that of all frames
from the call on.  Modules are imported before the trace starts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch

import lifted_bregman as lb
from lifted_bregman.cli import main as lifted
from lifted_bregman.cli.commands import installed

LIBRARY = str(Path(lb.__file__).parent)
EPOCHS, SAMPLES, BATCH = 5, 1000, 100


class Walk:
    """Counts calls of the library's functions while `work` runs."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.depth = self.all_depth = 0
        self._frames = self._all = 0

    def run(self, work: Callable[[], Any]) -> None:
        sys.setprofile(self._profile)
        try:
            work()
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return"):
            return
        step = 1 if event == "call" else -1
        self._all += step
        self.all_depth = max(self.all_depth, self._all)
        code = frame.f_code
        if not code.co_filename.startswith(LIBRARY) or (code.co_name.startswith("<") and code.co_name != "<lambda>"):
            return
        self._frames += step
        self.depth = max(self.depth, self._frames)
        if step == 1:
            self.calls[code] += 1

    def row(self, steps: int) -> dict[str, float]:
        """What was counted."""
        return {
            "functions": len(self.calls),
            "files": len({code.co_filename for code in self.calls}),
            "depth": self.depth,
            "depth_with_others": self.all_depth,
            "calls_per_step": sum(self.calls.values()) / steps,
        }

    def by_room(self) -> dict[str, int]:
        """Functions by folder."""
        rooms = Counter(Path(code.co_filename).relative_to(LIBRARY).parts[0] for code in self.calls)
        return dict(sorted(rooms.items()))


def quietly(*arguments: str) -> None:
    """`lifted` with these arguments; its output is thrown away."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert lifted(arguments) == 0, arguments


def walks(folder: Path) -> dict[str, Walk]:
    """The three walks, each the second time it is gone, so that caches and imports do not count."""
    X = torch.randn(SAMPLES, 20, generator=torch.Generator().manual_seed(0))
    y = (X[:, 0] > 0).long()
    np.savez(folder / "table.npz", X=X.numpy(), y=y.numpy())

    def fit(turn: int) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        lb.fit(lb.lift(model, loss=lb.CrossEntropy()), (X, y), epochs=EPOCHS, batch_size=BATCH)

    settings = ["--hidden", "16", "--epochs", str(EPOCHS), "--batch-size", str(BATCH), "--threads", "1", "--quiet"]
    settings += ["--validation", "none", "--data", str(folder / "table.npz")]
    for command in installed().values():
        command.load()

    def train(turn: int) -> None:
        quietly("train", *settings, "--out", str(folder / f"run-{turn}"))

    def resume(turn: int) -> None:
        quietly("resume", str(folder / f"run-{turn}"), "--epochs", str(2 * EPOCHS), "--quiet")

    found = {}
    for name, work in {"lb.fit": fit, "lifted train": train, "lifted resume": resume}.items():
        for turn in (0, 1):
            found[name] = Walk()
            found[name].run(partial(work, turn))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    steps = EPOCHS * SAMPLES // BATCH
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = walks(Path(folder))
    rows = {name: walk.row(steps) for name, walk in found.items()}
    for name, row in rows.items():
        print(
            f"{name:<14} {row['functions']} functions in {row['files']} files, stack {row['depth']} "
            f"({row['depth_with_others']} with other libraries), {row['calls_per_step']:.0f} calls per step"
        )
        print(f"{'':<14} {', '.join(f'{room} {count}' for room, count in found[name].by_room().items())}")
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
