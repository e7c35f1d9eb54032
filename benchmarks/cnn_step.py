"""The time of a training step of a small CIFAR-10 CNN: the default solver against autograd with fused Adam.

    python benchmarks/cnn_step.py [--rounds 12] [--threads 2] [--json FILE]

In turns, with and without batch normalisation.  Random images stand for CIFAR-10: a step costs the same.  Aims: at most
1.3 times fused Adam with gradient moves, at most 1.5 times with the metric of the patches.
"""

import copy
import statistics
from collections.abc import Callable
from functools import partial

import torch
from _interleaved import arguments, report
from _rounds import timed
from convolution_step import keep_memory
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.solvers import Batch

BATCH = 100
REFERENCE = "autograd, fused Adam"


def network(norm: bool) -> nn.Sequential:
    """3-32-64-128 channels, 3 x 3, two poolings."""

    def block(inputs: int, outputs: int, pool: bool) -> list[nn.Module]:
        norms = [nn.BatchNorm2d(outputs)] if norm else []
        return [nn.Conv2d(inputs, outputs, 3, padding=1), *norms, nn.ReLU(), *([nn.MaxPool2d(2)] if pool else [])]

    body = [*block(3, 32, True), *block(32, 64, True), *block(64, 128, False)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def competitors(norm: bool) -> dict[str, Callable[[], object]]:
    """One step of each, from the same parameters, on one batch."""
    torch.manual_seed(0)
    first = network(norm)
    X, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    model = copy.deepcopy(first)
    adam = torch.optim.Adam(model.parameters(), 1e-3, fused=True)

    def adam_step() -> None:
        adam.zero_grad()
        F.cross_entropy(model(X), labels).backward()
        adam.step()

    steps: dict[str, Callable[[], object]] = {REFERENCE: adam_step}
    solvers = {"lifted, default": lb.GramSweep()}
    for name, solver in solvers.items():
        problem = lb.lift(copy.deepcopy(first), loss=lb.CrossEntropy())
        batch = Batch.whole(problem, X, labels)
        steps[name] = partial(solver.step, problem, solver.init(problem, batch), batch)
    return steps


def main() -> None:
    """Prints the medians and their ratios."""
    given = arguments(__doc__, rounds=12)
    keep_memory()
    result: dict[str, float] = {}
    for norm in (False, True):
        times = {name: [1e3 * t for t in seconds] for name, seconds in timed(competitors(norm), given.rounds).items()}
        print("with batch normalisation" if norm else "without normalisation")
        reference = statistics.median(times[REFERENCE])
        for name, measured in times.items():
            median = statistics.median(measured)
            result[f"{name}{', batch normalisation' if norm else ''}"] = median
            spread = f"({min(measured):.1f} to {max(measured):.1f})"
            print(f"  {name:24s} {median:7.1f} ms  {spread}  {median / reference:.2f}")
    report(given, result)


if __name__ == "__main__":
    main()
