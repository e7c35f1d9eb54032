"""Step times of this tree against those of another commit, in turns.

    python benchmarks/against_commit.py REV [--rounds 40] [--threads 2] [--json FILE]

Each version runs in its own process, with its own library and its own benchmarks/_tasks.py.  The two processes take
turns and never compute at the same time.  A ratio is the median over the rounds of this tree's seconds for a step over
the other's: below 1 this tree is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS = 4  # steps that are timed together, a turn


def measured_steps() -> dict[str, Callable[[], object]]:
    """A step of each solver on each network, by name; made with whichever library and tasks are importable."""
    from _tasks import Task, solver_step

    import lifted_bregman as lb

    wide = Task("784⁴, batch 20", (784,) * 5, 20, code=2)
    large = Task("784⁴, batch 200", (784,) * 5, 200, code=2)
    classifier = Task("784-784-64-64-10, batch 100", (784, 784, 64, 64, 10), 100)
    deep = Task("20 x 64, batch 100", (64,) * 21, 100)
    table = Task("40-256-256-5, batch 100", (40, 256, 256, 5), 100)
    found = {}
    for task in (wide, large, classifier, deep, table):
        found[f"{task.name}: default"] = solver_step(task, lb.GramSweep())
    for task in (wide, classifier):
        found[f"{task.name}: Algorithm 1"] = solver_step(task, lb.ImplicitSGD(prox_weight=1.0, inner_steps=3))
        found[f"{task.name}: proximal gradient"] = solver_step(task, lb.ProximalGradient())
    return found


def worker(threads: int) -> None:
    """Reads the name of a step from each line of standard input, takes STEPS of them, and answers with the seconds."""
    import torch

    torch.set_num_threads(threads)
    steps = measured_steps()
    print(json.dumps(list(steps)), flush=True)
    for line in sys.stdin:
        step = steps[line.rstrip("\n")]
        started = time.process_time()
        for _ in range(STEPS):
            step()
        print((time.process_time() - started) / STEPS, flush=True)


class Version:
    """A process with the library of one source tree."""

    def __init__(self, tree: Path, threads: int) -> None:
        path = os.pathsep.join([str(tree / "src"), str(tree / "benchmarks")])
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--worker", "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # the script's own folder comes first in sys.path otherwise, with this tree's tasks
            env=os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        )
        self.names: list[str] = json.loads(self._answer())

    def seconds(self, name: str) -> float:
        """Of one step."""
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a worker ended with exit code {self._process.wait()}: its error is above")
        return line


def compare(other: Path, rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """For each step: seconds of both versions and their ratio."""
    from _interleaved import ratios

    versions = Version(ROOT, threads), Version(other, threads)
    found = {}
    for name in versions[0].names:
        if name in versions[1].names:
            found[name] = ratios(*(lambda v=v, n=name: v.seconds(n) for v in versions), rounds)
    for version in versions:
        version.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", default="HEAD", help="the commit to compare with (HEAD)")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each version (40)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.threads)
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree, given.revision], cwd=ROOT, check=True)
        try:
            result = compare(tree, given.rounds, given.threads)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    print(table(result))
    if load > 0.5:
        print(f"the machine was not idle before the run (load {load:.2f}): repeat it when it is.")
    if given.json:
        entries: dict[str, Any] = {"revision": given.revision, "threads": given.threads, "load_before": load}
        given.json.write_text(json.dumps(entries | {"steps": result}, indent=2) + "\n", encoding="utf-8")


def table(result: dict[str, dict[str, float]]) -> str:
    """A line a step."""
    lines = [f"{'step':44} {'this, ms':>9} {'other, ms':>9} {'ratio':>6}  10 to 90 %"]
    for name, row in result.items():
        lines.append(
            f"{name:44} {row['ours_ms']:9.2f} {row['other_ms']:9.2f} {row['ratio']:6.3f}  "
            f"{row['ratio_10_percent']:.3f} to {row['ratio_90_percent']:.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
