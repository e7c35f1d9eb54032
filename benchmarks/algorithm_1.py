"""Algorithm 1 with N = 15 inner steps, as a ratio to its literal implementation: spectral norms by SVD, and by power.

    python benchmarks/algorithm_1.py [--rounds 5] [--threads 2] [--inner-steps 15] [--small] [--json FILE]

On 784-784-784-784-784 at batch 20 and 784-784-64-64-10 at batch 100, in float32.  The competitors of a pair take the
same batches from the same weights and are interleaved: each round times both, in alternating order, and the ratio is
the median of those of the rounds.  Aims: at most 0.1 of the literal implementation with singular values, and at most
one third of the one with power iterations.  First it is shown, in float64 and with fixed step sizes, that all make the
same iterates.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from _interleaved import arguments, ratios, report, sentence
from reference_algorithm_1 import Algorithm1, PowerNorms, svd_norm
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch

AIMS = {"SVD": 1.0 / 10.0, "power iterations": 1.0 / 3.0}


class Network:
    """Widths, batch size, hidden activations and τ."""

    def __init__(self, widths: Sequence[int], batch: int, hidden: Sequence[lb.activations.Activation], tau: float):
        self.widths, self.batch, self.hidden, self.tau = tuple(widths), batch, list(hidden), tau
        self.name = f"{'-'.join(map(str, widths))} at batch {batch}"

    def model(self, dtype: torch.dtype) -> nn.Sequential:
        torch.manual_seed(0)
        linears = [nn.Linear(a, b, dtype=dtype) for a, b in pairwise(self.widths)]
        modules: list[nn.Module] = []
        for linear, activation in zip(linears, self.hidden, strict=False):
            modules += [linear, activation.as_module()]
        return nn.Sequential(*modules, linears[-1])

    def batches(self, dtype: torch.dtype, count: int = 4) -> list[tuple[Tensor, Tensor]]:
        """Images are not negative, and neither are these numbers."""
        generator = torch.Generator().manual_seed(1)
        X = torch.rand(count, self.batch, self.widths[0], generator=generator, dtype=dtype)
        Y = torch.rand(count, self.batch, self.widths[-1], generator=generator, dtype=dtype)
        return list(zip(X, Y, strict=True))


def ours(network: Network, dtype: torch.dtype, solver: lb.ImplicitSGD) -> tuple[Callable[[int], None], nn.Sequential]:
    model = network.model(dtype)
    problem = lb.lift(model, loss=lb.SquaredError())
    whole = [Batch.whole(problem, X, Y) for X, Y in network.batches(dtype)]
    state = solver.init(problem, whole[0])

    def step(number: int) -> None:
        solver.step(problem, state, whole[number % len(whole)])

    return step, model


def literal(network: Network, dtype: torch.dtype, **settings: object) -> tuple[Callable[[int], None], Algorithm1]:
    linears = [module for module in network.model(dtype) if isinstance(module, nn.Linear)]
    reference = Algorithm1(
        [linear.weight for linear in linears],
        [linear.bias for linear in linears],
        network.hidden,
        prox_weight=network.tau,
        **settings,  # type: ignore[arg-type]
    )
    data = network.batches(dtype)
    return lambda number: reference.step(*data[number % len(data)]) and None, reference


def timer(step: Callable[[int], None]) -> Callable[[], float]:
    number = 0

    def seconds() -> float:
        nonlocal number
        start = time.perf_counter()
        step(number)
        number += 1
        return time.perf_counter() - start

    return seconds


def difference(network: Network, inner_steps: int) -> float:
    """The largest difference of parameters after two batches in float64, with the same fixed step sizes."""
    parameter, variable = 0.5 / (network.widths[0] / 3 + network.tau), 0.3
    fixed = lb.solvers.Corrected(lb.solvers.FixedStep(parameter, variable))
    step, model = ours(network, torch.float64, lb.ImplicitSGD(network.tau, inner_steps, reading=fixed))
    other, reference = literal(network, torch.float64, inner_steps=inner_steps, step_sizes=(parameter, variable))
    for number in range(2):
        step(number), other(number)
    found = [module for module in model if isinstance(module, nn.Linear)]
    pairs = [(f.weight, W) for f, W in zip(found, reference.W, strict=True)]
    pairs += [(f.bias, b) for f, b in zip(found, reference.b, strict=True)]
    return max(float((a.detach() - b).abs().max()) for a, b in pairs)


def networks(small: bool) -> list[Network]:
    relu, soft = lb.activations.ReLU(), lb.activations.SoftThreshold(0.09)
    if small:
        return [Network((30,) * 5, 5, (relu, soft, relu), 1.0), Network((30, 30, 8, 8, 4), 10, (relu,) * 3, 100.0)]
    return [Network((784,) * 5, 20, (relu, soft, relu), 1.0), Network((784, 784, 64, 64, 10), 100, (relu,) * 3, 100.0)]


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--inner-steps", type=int, default=15, help="N (15)")
    parser.add_argument("--small", action="store_true", help="small networks, to see that it runs")
    own, sys.argv[1:] = parser.parse_known_args()
    given = arguments(__doc__, rounds=5)
    result: dict[str, float] = {"inner_steps": float(own.inner_steps)}
    for network in networks(own.small):
        print(network.name)
        apart = difference(network, own.inner_steps)
        print(f"  the same iterates: parameters differ by at most {apart:.1e} in float64")
        result[f"{network.name}, difference"] = apart
        for name, norms in {"SVD": svd_norm, "power iterations": PowerNorms()}.items():
            fast, _ = ours(network, torch.float32, lb.ImplicitSGD(network.tau, own.inner_steps))
            slow, _ = literal(network, torch.float32, inner_steps=own.inner_steps, norms=norms)
            found = ratios(timer(fast), timer(slow), given.rounds)
            print(f"  {name}: {found['ours_ms']:.1f} ms against {found['other_ms']:.1f} ms, ", end="")
            print(sentence(found, f"at most {AIMS[name]:.2f}"))
            result |= {f"{network.name}, {name}, {key}": value for key, value in found.items()}
    report(given, result)


if __name__ == "__main__":
    main()
