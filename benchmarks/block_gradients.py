"""Block gradients of a 784-784-64-64-10 network at batch 100, as a ratio to the bare matrix products they need.

    python benchmarks/block_gradients.py [--rounds 200] [--threads 2] [--json FILE]

The two competitors are interleaved: each round times both, in alternating order, and the reported ratio is the median
of the ratios of the rounds.  Aim: at most 1.3.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import lifted_bregman as lb

WIDTHS = (784, 784, 64, 64, 10)
BATCH = 100
LIMIT = 1.3
REPEATS = 5  # calls per timing, so that a timing is some milliseconds long


def competitors() -> tuple[Callable[[], object], Callable[[], object]]:
    """(block gradients of the library, the matrix products alone), on the same numbers."""
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for below, width in pairwise(WIDTHS):
        modules += [nn.Linear(below, width), nn.ReLU()]
    model = nn.Sequential(*modules[:-1])
    problem = lb.lift(model, loss=lb.SquaredError())
    X, Y = problem.prepare(torch.rand(BATCH, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (BATCH,)))
    state = problem.forward_state(X)
    weights = [module.weight.detach() for module in model if isinstance(module, nn.Linear)]
    inputs = [X, *state]
    residuals = [torch.randn(BATCH, width) for width in WIDTHS[1:]]

    def gradients() -> object:
        return problem.gradients(problem.evaluate(state, X, Y, check=False))

    def products() -> object:
        forward = [x @ W.t() for x, W in zip(inputs, weights, strict=True)]
        to_parameters = [d.t() @ x for x, d in zip(inputs, residuals, strict=True)]
        to_inputs = [d @ W for d, W in zip(residuals[1:], weights[1:], strict=True)]
        return forward, to_parameters, to_inputs

    return gradients, products


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(REPEATS):
        function()
    return (time.perf_counter() - start) / REPEATS


def measure(rounds: int) -> dict[str, float]:
    ours, bare = competitors()
    for _ in range(10):
        ours(), bare()
    pairs = []
    for index in range(rounds):
        if index % 2:
            a, b = seconds(ours), seconds(bare)
        else:
            b, a = seconds(bare), seconds(ours)
        pairs.append((a, b))
    ratios = sorted(a / b for a, b in pairs)
    return {
        "gradients_ms": 1e3 * statistics.median(a for a, _ in pairs),
        "products_ms": 1e3 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(ratios),
        "ratio_10_percent": ratios[len(ratios) // 10],
        "ratio_90_percent": ratios[len(ratios) * 9 // 10],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help="timings of each competitor (200)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    load = os.getloadavg()[0]
    result = measure(arguments.rounds) | {"threads": arguments.threads, "load_before": load, "limit": LIMIT}
    result["torch"] = torch.__version__
    print(f"block gradients   {result['gradients_ms']:.3f} ms")
    print(f"matrix products   {result['products_ms']:.3f} ms")
    print(
        f"ratio             {result['ratio']:.3f}  (10 % to 90 %: {result['ratio_10_percent']:.3f} to "
        f"{result['ratio_90_percent']:.3f}; aim: at most {LIMIT})"
    )
    print(f"torch {torch.__version__}, {arguments.threads} threads")
    if load > 0.5:
        print(f"the machine was not idle before the run (load {load:.2f}): repeat it when it is.")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
