"""Forward and both pull-backs of a small CIFAR-10 CNN's convolutions, and what a Gram matrix of patches adds to them.

    python benchmarks/convolution_step.py [--rounds 20] [--threads 2] [--json FILE]

Three convolutions, 3-32-64-128 channels on 32 x 32 images with strides 1, 2, 2 and a batch of 100.  A step applies each
map to given inputs and pulls given signals back to its parameters and, except for the images, to its inputs.
Autograd does the same with a graph for each map.  A move is (AᵀA/m + tI)⁻¹ of the gradient with AᵀA/m from some of the
patches; fused Adam is its opponent.  All competitors are timed in turn in one process; a ratio is the median of the
ratios of the rounds.

The process keeps memory that tensors leave.  Otherwise the C library may return megabytes to the system after a step
and ask for them again in the next, which adds up to a half to the time of whichever competitor it meets.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from _interleaved import arguments, report
from _rounds import compare, timed
from _tables import plain
from torch import Tensor, nn

from lifted_bregman.maps import Convolution, LayerMap
from lifted_bregman.maps.traced import trace_chain

BATCH, DAMPING = 100, 0.1
SHAPES = ((3, 32, 32, 1), (32, 64, 32, 2), (64, 128, 16, 2))  # inputs, units, side, stride
PATCHES = (512, 1024, 2048)
AUTOGRAD, ADAM = "autograd", "autograd, fused Adam"

Step = Callable[[], None]


class Part(NamedTuple):
    """One convolution with its inputs and the signal at its outputs."""

    module: nn.Conv2d
    x: Tensor
    d: Tensor


def keep_memory() -> None:
    """Tells glibc to serve tensors of up to 32 MB from memory that it does not give back; nothing elsewhere."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # of malloc.h
        mallopt(mmap_threshold, 2**25)
        mallopt(trim_threshold, 2**30)


def parts() -> list[Part]:
    torch.manual_seed(0)
    found = []
    for inputs, units, side, stride in SHAPES:
        module = nn.Conv2d(inputs, units, 3, stride, padding=1)
        x = torch.randn(BATCH, inputs, side, side)
        found.append(Part(module, x, torch.randn(BATCH, units, side // stride, side // stride) / BATCH))
    return found


def through_maps(make: Callable[[nn.Conv2d], LayerMap]) -> Step:
    """Forward and pull-backs, one after the other."""
    held = [(make(part.module), part) for part in parts()]

    def step() -> None:
        for number, (f, part) in enumerate(held):
            f.apply(part.x)
            f.pull_back_parameters(part.x, part.d)
            if number:
                f.pull_back_input(part.x, part.d)

    return step


def through_convolutions(patches: int | None = None) -> Step:
    """Forward and pull-backs, both at once; with a number of patches also the move."""
    held = [(Convolution(part.module), part) for part in parts()]

    def step() -> None:
        for number, (f, part) in enumerate(held):
            f.apply(part.x)
            gradient = f.pull_back(part.x, part.d)[1] if number else f.pull_back_parameters(part.x, part.d)
            if patches is not None:
                move(f, part.x, gradient, patches)

    return step


@torch.no_grad()
def move(f: Convolution, x: Tensor, gradient: dict[str, Tensor], patches: int) -> None:
    """Θ ← Θ - 10⁻³ (AᵀA/m + tI)⁻¹ ∇ with t = 0.1 times the mean of the diagonal."""
    K = f.gram(x, patches)
    K.diagonal().add_(K.diagonal().mean() * DAMPING)
    joined = torch.cat((f.unit_rows(gradient["weight"]), gradient["bias"][:, None]), 1)
    delta = torch.cholesky_solve(joined.t(), torch.linalg.cholesky_ex(K).L).t()
    weight, bias = f.module.weight, f.module.bias
    weight.sub_(f.from_unit_rows(delta[:, :-1].contiguous(), weight), alpha=1e-3)
    if bias is not None:
        bias.sub_(delta[:, -1], alpha=1e-3)


def through_autograd(adam: bool) -> Step:
    held = parts()
    for part in held[1:]:
        part.x.requires_grad_()
    weights = [p for part in held for p in part.module.parameters()]
    optimiser = torch.optim.Adam(weights, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        for part in held:
            part.x.grad = None
            torch.autograd.backward(part.module(part.x), part.d)
        if adam:
            optimiser.step()

    return step


def measure(rounds: int) -> list[dict[str, Any]]:
    """One row for each pair that is compared."""
    maps: dict[str, Step] = {
        "Convolution, both at once": through_convolutions(),
        "Convolution, one by one": through_maps(Convolution),
        "TracedMap": through_maps(lambda module: trace_chain(module, affine=True)),
    }
    moves = {f"Convolution, move from {patches} patches": through_convolutions(patches) for patches in PATCHES}
    others = {AUTOGRAD: through_autograd(adam=False), ADAM: through_autograd(adam=True)}
    found = timed({**maps, **moves, **others}, rounds)
    pairs = [(name, AUTOGRAD) for name in maps] + [(name, other) for name in moves for other in others]
    return [{"step": name, "beside": other, **compare(found[name], found[other])} for name, other in pairs]


def table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    head = ("step", "ms", "beside", "ms", "ratio", "10 to 90 %")
    return [head] + [
        (
            row["step"],
            f"{row['ours_ms']:.1f}",
            row["beside"],
            f"{row['other_ms']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_10_percent']:.2f} to {row['ratio_90_percent']:.2f}",
        )
        for row in rows
    ]


def main() -> None:
    given = arguments(__doc__, rounds=20)
    keep_memory()
    rows = measure(given.rounds)
    print(plain(table(rows)), end="\n\n")
    report(given, {"rows": rows})


if __name__ == "__main__":
    main()
