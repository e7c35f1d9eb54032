"""Two competitors timed in turn in one process, and the ratio of the rounds."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import torch


def ratios(ours: Callable[[], float], other: Callable[[], float], rounds: int) -> dict[str, float]:
    """Each function returns the seconds it took; each round calls both, in alternating order."""
    ours(), other()
    pairs = []
    for index in range(rounds):
        if index % 2:
            a, b = ours(), other()
        else:
            b, a = other(), ours()
        pairs.append((a, b))
    sorted_ratios = sorted(a / b for a, b in pairs)
    return {
        "ours_ms": 1e3 * statistics.median(a for a, _ in pairs),
        "other_ms": 1e3 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(sorted_ratios),
        "ratio_10_percent": sorted_ratios[len(sorted_ratios) // 10],
        "ratio_90_percent": sorted_ratios[len(sorted_ratios) * 9 // 10],
    }


def arguments(doc: str, rounds: int) -> argparse.Namespace:
    """--rounds, --threads and --json; sets torch's threads."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"timings of each competitor ({rounds})")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    given.load = os.getloadavg()[0]
    return given


def report(given: argparse.Namespace, result: dict[str, float]) -> None:
    """What every benchmark says at its end."""
    print(f"torch {torch.__version__}, {given.threads} threads")
    if given.load > 0.5:
        print(f"the machine was not idle before the run (load {given.load:.2f}): repeat it when it is.")
    if given.json:
        entries = {**result, "threads": given.threads, "load_before": given.load, "torch": torch.__version__}
        given.json.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def sentence(result: dict[str, float], aim: str) -> str:
    """The ratio with its spread."""
    low, high = result["ratio_10_percent"], result["ratio_90_percent"]
    return f"ratio {result['ratio']:.3f}  (10 % to 90 %: {low:.3f} to {high:.3f}; aim: {aim})"
