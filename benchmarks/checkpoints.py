"""Saving a checkpoint of 100 MB, as a ratio to a plain copy of a file of that size, fsynced.

    python benchmarks/checkpoints.py [--rounds 15] [--threads 2] [--json FILE]

It writes to a temporary folder below the current one: run it on the disk that is meant.  Each round saves one
checkpoint (a model of 60 MB, auxiliary variables of 40 MB) and copies one file of 100 MB that is in the page cache, in
alternating order; both remove what the round before has written.  The save also looks for NaN, hashes on a second core,
and fsyncs five files and three directories.  Aim: at most 2.  Loading, which verifies every byte, is shown beside it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path

import torch
from _interleaved import arguments, ratios, report, sentence

from lifted_bregman.training.checkpoints import Checkpoints, Snapshot

LIMIT = 2.0
MEGABYTE = 1_000_000


def snapshot(step: int) -> Snapshot:
    model = {f"{layer}.weight": torch.randn(1250, 1000) for layer in range(12)}  # 5 MB each
    return Snapshot(step, {"model": model, "variables": {"x_1": torch.randn(10_000, 1000)}}, {"epoch": 1}, {})


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main() -> None:
    given = arguments(__doc__, rounds=15)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        here = Path(name)
        checkpoints = Checkpoints(here / "checkpoints", keep=1)
        content, steps = snapshot(0), count(1)
        source = here / "source"
        source.write_bytes(os.urandom(100 * MEGABYTE))
        sync(source)

        def save() -> float:
            taken = Snapshot(next(steps), content.parts, content.state, content.settings)
            start = time.perf_counter()
            checkpoints.save(taken)
            return time.perf_counter() - start

        def copy() -> float:
            number = next(steps)
            start = time.perf_counter()
            target = here / f"copy-{number}"
            shutil.copyfile(source, target)
            sync(target)
            sync(here)
            for old in here.glob("copy-*"):
                if old != target:
                    old.unlink()
            return time.perf_counter() - start

        result = ratios(save, copy, given.rounds) | {"limit": LIMIT}
        loads = []
        for _ in range(5):
            start = time.perf_counter()
            checkpoints.load()
            loads.append(time.perf_counter() - start)
        size = sum(path.stat().st_size for path in checkpoints.load().path.iterdir())
    result |= {"load_ms": 1e3 * statistics.median(loads), "megabytes": size / MEGABYTE}
    print(f"checkpoint of {size / MEGABYTE:.1f} MB   {result['ours_ms']:.1f} ms")
    print(f"copy of 100.0 MB         {result['other_ms']:.1f} ms")
    print(sentence(result, f"at most {LIMIT}"))
    print(f"loading it               {result['load_ms']:.1f} ms")
    report(given, result)


if __name__ == "__main__":
    main()
