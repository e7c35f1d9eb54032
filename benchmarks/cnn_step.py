"""The time of a training step of a small CIFAR-10 CNN: the default solver against autograd with fused Adam.

    python benchmarks/cnn_step.py [--rounds 12] [--batch 100] [--norm]

One thread, processor time, in turns; the ratio is that of medians.  Random images stand for CIFAR-10: a step costs the
same.  Aims: at most 1.3 times fused Adam without the metric of the patches, at most 1.5 times with it.
"""

import argparse
import copy
import math
import statistics
import time

import torch
from convolution_step import keep_memory
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.solvers import Batch


def network(norm: bool) -> nn.Sequential:
    """3-32-64-128 channels, 3 x 3, two poolings."""

    def block(inputs: int, outputs: int, pool: bool) -> list[nn.Module]:
        norms = [nn.BatchNorm2d(outputs)] if norm else []
        return [nn.Conv2d(inputs, outputs, 3, padding=1), *norms, nn.ReLU(), *([nn.MaxPool2d(2)] if pool else [])]

    body = [*block(3, 32, True), *block(32, 64, True), *block(64, 128, False)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--norm", action="store_true", help="with batch normalisation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    torch.manual_seed(0)
    first = network(options.norm)
    X, labels = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 10, (options.batch,))

    adam_model = copy.deepcopy(first)
    adam = torch.optim.Adam(adam_model.parameters(), 1e-3, fused=True)

    def adam_step() -> None:
        adam.zero_grad()
        F.cross_entropy(adam_model(X), labels).backward()
        adam.step()

    steps = {"autograd, fused Adam": adam_step}
    for name, solver in (
        ("lifted, gradient moves", lb.GramSweep(damping=math.inf)),
        ("lifted, metric", lb.GramSweep()),
    ):
        problem = lb.lift(copy.deepcopy(first), loss=lb.CrossEntropy())
        batch = Batch.whole(problem, X, labels)
        state = solver.init(problem, batch)
        steps[name] = lambda solver=solver, problem=problem, state=state, batch=batch: solver.step(
            problem, state, batch
        )
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(options.rounds + 2):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if round_ >= 2:
                times[name].append(time.process_time() - start)
    reference = statistics.median(times["autograd, fused Adam"])
    for name, measured in times.items():
        median = statistics.median(measured)
        spread = f"({min(measured) * 1e3:.1f} to {max(measured) * 1e3:.1f})"
        print(f"{name:26s} {1e3 * median:7.1f} ms  {spread}  {median / reference:.2f}")


if __name__ == "__main__":
    main()
