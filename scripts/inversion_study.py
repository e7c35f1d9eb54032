"""Inversion of networks: a perceptron's picture, the rate in the noise, and an autoencoder by depth.

    python scripts/inversion_study.py [--seconds 20] [--out docs/figures]

- picture: a ReLU perceptron 64² -> 512 with total variation, α = 0.015, on a phantom and on a photograph.
- rates: D_J(u_α, u†) for α proportional to the noise δ, where u† satisfies the source condition.
- depth: inputs of the first 1 .. 6 layers of a convolutional autoencoder, by the lifted energy and by proximal gradient
  descent with autograd on ½‖N(u) - y‖² + αJ(u) (Landweber), accelerated or not, with the same processor time each,
  and for each the best of three α.

Rows are stored as inversion.json and drawn as inversion.png in the folder.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.penalties import SquaredL2, TotalVariation
from lifted_bregman.penalties.sums import prox_from

Row = dict[str, Any]
WEIGHTS = (3e-3, 1e-3, 3e-4)
CUTS = {1: 2, 2: 4, 3: 7, 4: 9, 5: 12, 6: 13}
"""Layers and the modules of the autoencoder that they end with."""


def phantom(size: int = 64) -> Tensor:
    """Ellipses and a square on a dark ground, (size, size), float64."""
    y, x = torch.meshgrid(*[torch.linspace(-1.0, 1.0, size, dtype=torch.float64)] * 2, indexing="ij")
    u = torch.zeros(size, size, dtype=torch.float64)
    u[(x / 0.8) ** 2 + (y / 0.9) ** 2 < 1] = 0.4
    u[((x - 0.2) / 0.3) ** 2 + ((y + 0.3) / 0.25) ** 2 < 1] = 1.0
    u[((x + 0.35) / 0.2) ** 2 + ((y - 0.2) / 0.4) ** 2 < 1] = 0.8
    u[((x - 0.3).abs() < 0.15) & ((y - 0.4).abs() < 0.15)] = 0.1
    return u


def photograph(size: int = 64) -> Tensor:
    """The flower of scikit-learn in grey, averaged down to (size, size), float64."""
    from sklearn.datasets import load_sample_image

    grey = torch.from_numpy(load_sample_image("flower.jpg").copy()).double().mean(2) / 255.0
    return nn.functional.adaptive_avg_pool2d(grey[None, None, :420, 140:560], size)[0, 0]


def perceptron(size: int = 64, outputs: int = 512, seed: int = 0) -> nn.Sequential:
    """ReLU(Wu + b) of pictures, W with independent normal entries of variance 1/outputs and b = 0."""
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(size * size, outputs, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(outputs, size * size, generator=generator) / math.sqrt(outputs))
        linear.bias.zero_()
    return nn.Sequential(nn.Flatten(), linear, nn.ReLU())


def psnr(found: Tensor, truth: Tensor) -> float:
    """Peak signal-to-noise ratio in dB, for a peak of 1; mean over samples."""
    errors = (found - truth).square().flatten(1).mean(1)
    return float((-10.0 * torch.log10(errors)).mean())


def picture(weight: float = 0.015, steps: int = 3000) -> tuple[list[Row], list[Tensor]]:
    """Rows, and the true and found pictures of both."""
    model, rows, shown = perceptron(), [], []
    for name, truth in (("phantom", phantom()), ("flower", photograph())):
        with torch.no_grad():
            y = model(truth[None])
        for J, what in ((TotalVariation(weight), "total variation"), (SquaredL2(weight), "squared norm")):
            began = time.process_time()
            found = lb.invert(model, y, penalty=J, shape=(64, 64), steps=steps, tolerance=1e-6, record_every=50)
            assert found.gap is not None
            rows.append(
                {
                    "study": "picture",
                    "picture": name,
                    "penalty": what,
                    "psnr": psnr(found.input, truth[None]),
                    "energy": float(found.energy),
                    "gap": float(found.gap),
                    "seconds": time.process_time() - began,
                }
            )
            shown += [truth, found.input[0]] if what == "total variation" else [found.input[0]]
    return rows, shown


def rates(seed: int = 0, ratio: float = 0.1) -> list[Row]:
    """D_J(u_α, u†) at five noise levels δ with α = ratio·δ, for a ReLU perceptron 64 -> 40 and signals.

    u† solves the problem with α₀ = 0.05 for some data y₀, so that p† = Wᵀω with ω = (y₀ - σ(Wu†))/α₀ is a subgradient
    of J at u†: the source condition.  ω vanishes on units that are inactive at u†.
    """
    n, m, first = 64, 40, 0.05
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(m, n, generator=generator, dtype=torch.float64) / math.sqrt(m)
    model = nn.Sequential(nn.Linear(n, m, bias=False, dtype=torch.float64), nn.ReLU())
    u = torch.zeros(1, n, dtype=torch.float64)
    u[:, 10:25], u[:, 25:40], u[:, 50:] = 1.0, 0.3, 0.7
    J = TotalVariation(1.0, dims=1)
    with torch.no_grad():
        model[0].weight.copy_(W)
        y0 = model(u)
    while True:
        exact = lb.invert(
            model, y0, penalty=TotalVariation(first, dims=1), steps=40_000, tolerance=1e-11, record_every=100
        ).input
        inactive = (exact @ W.T <= 0.0) & (y0 > 0.0)
        if not bool(inactive.any()):
            break
        y0 = torch.where(inactive, 0.0, y0)
    y = (exact @ W.T).clamp(min=0.0)
    subgradient = (y0 - y) / first @ W
    noise = torch.randn(m, generator=generator, dtype=torch.float64) * (y[0] > 0.0)
    rows = []
    for k in range(5):
        given = (y + 0.00625 * 0.5**k * y.norm() * noise / noise.norm()).clamp(min=0.0)
        delta = float((given - y).norm())
        found = lb.invert(
            model,
            given,
            penalty=TotalVariation(ratio * delta, dims=1),
            steps=40_000,
            tolerance=1e-10,
            record_every=100,
            start=exact,
        ).input
        # D_J(u, u†) = J(u) - <p†, u>, since J(u†) = <p†, u†>
        distance = float(J.value(found)) - float((subgradient * found).sum())
        rows.append({"study": "rates", "seed": seed, "noise": delta, "bregman_distance": distance})
    return rows


def autoencoder() -> tuple[nn.Sequential, Tensor]:
    """Six layers with a code of 300, trained on 4,000 digits by `lb.fit`; and 16 new digits."""
    torch.manual_seed(0)
    digits = lb.data.load("mnist-5k")
    X, new = (part.X.view(-1, 1, 28, 28) for part in (digits.train, digits.test))
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 784), nn.ReLU(), nn.Unflatten(1, (16, 7, 7))),
        *(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1)),
    )
    problem = lb.lift(model, loss=lb.SquaredError(), example=X[:2])
    lb.fit(problem, (X, X), epochs=4, batch_size=50, seed=0)
    return model, new[:16]


def lifted(model: nn.Module, y: Tensor, weight: float, seconds: float, start: float = 0.0) -> tuple[Tensor, int]:
    """The lifted energy, for so many seconds of processor time."""
    began = time.process_time()
    found = lb.invert(
        model,
        y,
        penalty=TotalVariation(weight, tolerance=1e-3),
        start=torch.full((len(y), 1, 28, 28), start),
        solver=lb.DescentInversion(),
        steps=1_000_000,
        tolerance=0.0,
        record_every=5,
        callback=lambda row: time.process_time() - began > seconds,
    )
    return found.input, int(found.history[-1]["step"])


def landweber(
    model: nn.Module, y: Tensor, weight: float, seconds: float, accelerate: bool, start: float = 0.0
) -> tuple[Tensor, int]:
    """min ½‖N(u) - y‖² + αJ(u) by proximal gradient steps, gradients by autograd; FISTA if accelerate.

    The first step size is 1; it is halved until the quadratic bound holds, and grows by 2 % a step.
    """
    J, t, momentum, steps, memory = TotalVariation(weight, tolerance=1e-3), 1.0, 1.0, 0, None
    u = ahead = torch.full((len(y), 1, 28, 28), start)
    last, began = math.inf, time.process_time()

    def loss(x: Tensor) -> Tensor:
        return 0.5 * (model(x) - y).square().sum()

    while time.process_time() - began < seconds:
        steps += 1
        at = ahead.detach().requires_grad_(True)
        value = loss(at)
        (gradient,) = torch.autograd.grad(value, at)
        with torch.no_grad():
            while True:
                new, kept = prox_from(J, ahead - t * gradient, t, memory, 200)
                move = new - ahead
                reached = float(loss(new))
                bound = float(value + (gradient * move).sum() + move.square().sum() / (2.0 * t))
                if reached <= bound + 1e-6 * abs(float(value)) or t < 1e-8:
                    break
                t *= 0.5
        energy = reached + float(J.value(new).sum())
        memory, t = kept, 1.02 * t
        if accelerate and energy > last:
            momentum, ahead, last = 1.0, u, math.inf
            continue
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2)) if accelerate else 1.0
        ahead = new + (momentum - 1.0) / following * (new - u)
        u, momentum, last = new, following, energy
    return u, steps


def depth(seconds: float) -> tuple[list[Row], dict[str, Tensor]]:
    """PSNR by depth and method, and the pictures of six layers."""
    model, truth = autoencoder()
    methods: dict[str, Callable[[nn.Module, Tensor, float, float], tuple[Tensor, int]]] = {
        "lifted": lifted,
        "lifted, start 0.5": lambda *given: lifted(*given, start=0.5),
        "landweber": lambda *given: landweber(*given, accelerate=False),
        "fista": lambda *given: landweber(*given, accelerate=True),
        "fista, start 0.5": lambda *given: landweber(*given, accelerate=True, start=0.5),
    }
    rows: list[Row] = []
    shown = {"true": truth}
    for layers, cut in CUTS.items():
        network = model[:cut]
        with torch.no_grad():
            y = network(truth)
        for name, method in methods.items():
            best = -math.inf
            for weight in WEIGHTS:
                u, steps = method(network, y, weight, seconds)
                reached = psnr(u, truth)
                with torch.no_grad():
                    residual = float((network(u) - y).flatten(1).norm(dim=1).mean())
                rows.append(
                    {
                        "study": "depth",
                        "layers": layers,
                        "method": name,
                        "weight": weight,
                        "psnr": reached,
                        "residual": residual,
                        "steps": steps,
                        "seconds": seconds,
                    }
                )
                print(rows[-1], flush=True)
                if layers == max(CUTS) and reached > best:
                    best, shown[name] = reached, u
    return rows, shown


def draw(rows: list[Row], pictures: list[Tensor], digits: dict[str, Tensor], path: Path) -> None:
    """All three studies in one figure."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(11, 8), layout="constrained")
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=[1.3, 1.2, 1.3])
    names = ["true", "total variation", "squared norm"] * 2
    for axes, image, name in zip(top.subplots(1, 6), pictures, names, strict=True):
        axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set(title=name, xticks=[], yticks=[])
    left, right = middle.subplots(1, 2)
    for seed in sorted({row["seed"] for row in rows if row["study"] == "rates"}):
        own = [row for row in rows if row["study"] == "rates" and row["seed"] == seed]
        left.loglog([r["noise"] for r in own], [r["bregman_distance"] for r in own], "o-", label=f"seed {seed}")
    left.set(xlabel="noise δ", ylabel="D_J(u_α, u†)", title="α proportional to δ")
    left.xaxis.set_minor_formatter(NullFormatter())
    left.legend()
    own = [row for row in rows if row["study"] == "depth"]
    for method in dict.fromkeys(row["method"] for row in own):
        reached = [max(r["psnr"] for r in own if r["method"] == method and r["layers"] == k) for k in CUTS]
        right.plot(list(CUTS), reached, "o-", label=method)
    right.set(xlabel="layers", ylabel="PSNR, dB", title="best of three α, equal processor time")
    right.legend()
    grid = bottom.subplots(len(digits), 12)
    for line, (name, images) in zip(grid, digits.items(), strict=True):
        for axes, image in zip(line, images, strict=False):
            axes.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Runs the studies, stores their rows and draws them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="processor time of each run by depth")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="where the rows and the figure go")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, pictures = picture()
    rows += [row for seed in range(3) for row in rates(seed)]
    print(*rows, sep="\n", flush=True)
    by_depth, digits = depth(arguments.seconds)
    rows += by_depth
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "inversion.json").write_text(json.dumps(rows, indent=1) + "\n")
    draw(rows, pictures, digits, arguments.out / "inversion.png")


if __name__ == "__main__":
    main()
