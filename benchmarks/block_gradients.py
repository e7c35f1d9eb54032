"""Block gradients of a 784-784-64-64-10 network at batch 100, as a ratio to the bare matrix products they need.

    python benchmarks/block_gradients.py [--rounds 200] [--threads 2] [--json FILE]

The two competitors are interleaved: each round times both, in alternating order, and the reported ratio is the median
of the ratios of the rounds.  Aim: at most 1.3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch
from _interleaved import arguments, ratios, report, sentence
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


def main() -> None:
    given = arguments(__doc__, rounds=200)
    ours, bare = competitors()
    result = ratios(lambda: seconds(ours), lambda: seconds(bare), given.rounds) | {"limit": LIMIT}
    print(f"block gradients   {result['ours_ms']:.3f} ms")
    print(f"matrix products   {result['other_ms']:.3f} ms")
    print(sentence(result, f"at most {LIMIT}"))
    report(given, result)


if __name__ == "__main__":
    main()
