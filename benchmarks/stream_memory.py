"""Resident memory while a network is trained on a stream of 10 million samples, of which one batch is held at a time.

    python benchmarks/stream_memory.py [--quick] [--steps 50000] [--rounds 10] [--threads 1] [--json FILE]

The set computes its samples from their indices: 16 numbers and one of 4 classes.  Held in memory as float32 it would
take 720 MB.  It is given to `fit` as it is, in batches of 200, so that 50,000 steps are one epoch.  Memory is read
--rounds times, after equal numbers of steps.  Growth counts from the first reading after a tenth of the steps, when the
order of the epoch (10 million places of 8 bytes) and torch's own pools are there.  It takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from _interleaved import report
from torch import Tensor, nn
from torch.utils.data import Dataset

import lifted_bregman as lb
from lifted_bregman.solvers import Outcome, Run

SAMPLES, FEATURES, CLASSES, BATCH = 10_000_000, 16, 4, 200
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Computed(Dataset[tuple[Tensor, Tensor]]):
    """x_j(i) = sin(ω_j i), y(i) the quarter that x_0 and x_1 are in: nothing is stored."""

    frequencies = torch.sqrt(torch.arange(2.0, 2.0 + FEATURES, dtype=torch.float64))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        X = torch.sin(torch.outer(torch.tensor(indices, dtype=torch.float64), self.frequencies))
        y = 2 * (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
        return list(zip(X.float().unbind(), y.unbind(), strict=True))


class Memory(lb.callbacks.Callback):
    """Reads the resident memory every so many steps, in megabytes, and ends the run after `steps`."""

    def __init__(self, every: int, steps: int) -> None:
        self.every, self.steps = every, steps
        self.readings: list[tuple[int, float]] = []

    def stepped(self, run: Run) -> None:
        if run.state.steps % self.every == 0:
            self.readings.append((run.state.steps, resident()))
            print(f"{run.state.steps:>7} steps  {self.readings[-1][1]:>8.1f} MB", flush=True)
        if run.state.steps == self.steps:
            run.stop(Outcome.STOPPED, "All steps are taken.", record=True)


def resident() -> float:
    """Megabytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6


def measure(steps: int, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    problem = lb.lift(model, loss=lb.CrossEntropy())
    memory, before, began = Memory(max(1, steps // max(rounds, 10)), steps), resident(), time.process_time()
    print(f"      0 steps  {before:>8.1f} MB")
    result = lb.fit(problem, Computed(), epochs=1 + steps * BATCH // SAMPLES, batch_size=BATCH, callbacks=[memory])
    seconds = time.process_time() - began
    settled = [entry for entry in memory.readings if entry[0] >= steps // 10]
    (first_step, first), (last_step, last) = settled[0], settled[-1]
    print(f"growth from step {first_step} to {last_step}: {last - first:+.1f} MB")
    accuracy, milliseconds = result.history[-1]["running_accuracy"], 1e3 * seconds / steps
    print(f"running accuracy {accuracy:.4f}, {milliseconds:.2f} ms of processor time a step")
    return {
        "steps": steps,
        "before_mb": before,
        "settled_mb": first,
        "last_mb": last,
        "peak_mb": max(value for _, value in memory.readings),
        "growth_mb": last - first,
        "running_accuracy": accuracy,
        "ms_a_step": milliseconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000, help="of batches of 200 (50000)")
    parser.add_argument("--quick", action="store_true", help="500 steps")
    parser.add_argument("--rounds", type=int, default=10, help="readings, at least 10 (10)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = parser.parse_args()
    given.load = os.getloadavg()[0]
    torch.set_num_threads(given.threads)
    report(given, measure(500 if given.quick else given.steps, given.rounds))


if __name__ == "__main__":
    main()
