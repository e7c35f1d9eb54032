"""Deep networks with the default solver of `fit`, beside back-propagation, with settings taken over from 16 layers.

    python benchmarks/depth.py [--rounds 3] [--epochs 20] [--threads 1] [--json FILE]

Digits of scikit-learn, a quarter for testing, cross-entropy, batches of 100, 64 units in each layer:

- plain: ReLU layers with He's initial weights, 16 and 50 of them;
- residual: h + W₂ ReLU(W₁ h), pre-activation blocks without normalisation, 8 and 64 of them (16 and 128 layers).  W₁
  has He's initial weights; W₂ has the variance 1/(width · blocks), so that the stream keeps its size at any depth.

Each method has the same initial weights, order of samples and epochs.  `GramSweep` has its defaults; AdamW and SGD have
a grid of rates.  The table gives the mean test accuracy over the seeds at the rate that is best with 16 layers, taken
over to the deep network, and at the rate that is best there, both chosen on the test samples in favour of
back-propagation.  A second table compares the error signals E_l of all activations with the gradients in z_l of
autograd, in float64, before training and after it: ‖E_l‖/‖∇_l‖, the smallest and the largest over the layers.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from _tables import plain
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.activations import Identity
from lifted_bregman.solvers import Batch, Solver

WIDTH, TEST_SHARE = 64, 0.25
RATES = {"AdamW": (1e-4, 3e-4, 1e-3, 3e-3), "SGD": (3e-3, 1e-2, 3e-2, 1e-1)}
DEPTHS = {"plain": (16, 50), "residual": (16, 128)}


class Block(nn.Module):
    """h + W₂ ReLU(W₁ h), one of `blocks`."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        _initialise(self.inner, 2.0)
        _initialise(self.outer, 1.0 / blocks)

    def forward(self, h: Tensor) -> Tensor:
        branch: Tensor = self.outer(torch.relu(self.inner(h)))
        return h + branch


def network(
    kind: str, layers: int, seed: int, width: int = WIDTH, inputs: int = 64, classes: int = 10
) -> nn.Sequential:
    """A plain network of `layers` layers, or a residual one with `layers` of them in its blocks."""
    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    if kind == "residual":
        modules += [nn.Linear(inputs, width), *(Block(width, layers // 2) for _ in range(layers // 2))]
        _initialise(modules[0], 1.0)
    else:
        for layer in range(layers - 1):
            modules += [nn.Linear(inputs if layer == 0 else width, width), nn.ReLU()]
            _initialise(modules[-2], 2.0)
    modules.append(nn.Linear(width, classes))
    _initialise(modules[-1], 1.0)
    return nn.Sequential(*modules)


def _initialise(linear: nn.Module, gain: float) -> None:
    """Normal weights of variance gain/inputs, and biases 0."""
    assert isinstance(linear, nn.Linear)
    nn.init.normal_(linear.weight, std=math.sqrt(gain / linear.in_features))
    nn.init.zeros_(linear.bias)


def digits(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test samples, a split for each seed; pixels are centred, with variance 1 on average."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    X, y = torch.as_tensor(pixels, dtype=torch.float32), torch.as_tensor(labels)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    count = round(TEST_SHARE * len(X))
    test, train = order[:count], order[count:]
    X = (X - X[train].mean(0)) / X[train].std()
    return (X[train], y[train]), (X[test], y[test])


def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """In per cent."""
    with torch.no_grad():
        return 100.0 * float((model(data[0]).argmax(1) == data[1]).double().mean())


def train(kind: str, layers: int, seed: int, epochs: int, solver: Solver | None = None) -> tuple[nn.Sequential, float]:  # type: ignore[type-arg]
    """A trained network and its accuracy on the test samples."""
    model, (own, test) = network(kind, layers, seed), digits(seed)
    problem = lb.lift(model, loss=lb.CrossEntropy())
    lb.fit(problem, own, solver, epochs=epochs, batch_size=100, seed=seed, record_every=epochs)
    return model, accuracy(model, test)


# Error signals


class Recording(lb.GramSweep):
    """A step without moves that keeps E_l of each hidden layer in `found`."""

    found: dict[int, Tensor]

    def _signal(self, problem: lb.LiftedProblem, layer: int, *arguments: Any) -> Tensor:
        E = super()._signal(problem, layer, *arguments)
        self.found[layer] = E.clone()
        return E

    def _collect(self, *arguments: object) -> None:
        pass


def signals(problem: lb.LiftedProblem, X: Tensor, Y: Tensor) -> dict[int, Tensor]:
    """E_l of the default solver at the present parameters, for each hidden variable."""
    solver, batch = Recording(), Batch.whole(problem, X, Y)
    object.__setattr__(solver, "found", {})
    solver.step(problem, solver.init(problem, batch), batch)
    return solver.found


def slopes(problem: lb.LiftedProblem, X: Tensor, Y: Tensor) -> dict[int, Tensor]:
    """The gradient of each sample's loss in z_l by autograd, for networks of ReLU and identity; Y are targets."""
    x, z = {0: X}, {}
    for l, layer in enumerate(problem.network, 1):
        z[l] = layer.map.evaluate(problem.network.read(x, l)).requires_grad_()
        z[l].retain_grad()
        x[l] = z[l] if isinstance(layer.activation, Identity) else torch.relu(z[l])
    output = z[problem.depth]
    nn.functional.cross_entropy(output, Y, reduction="sum").backward()
    return {l: value.grad for l, value in z.items() if value.grad is not None}


def ratios(model: nn.Sequential, X: Tensor, y: Tensor) -> list[float]:
    """‖E_l‖/‖∇_l‖ of the activations, E_l in the precision of the model and ∇_l in float64."""
    problem = lb.lift(model, loss=lb.CrossEntropy())
    found = signals(problem, X, y)
    expected = slopes(lb.lift(copy.deepcopy(model).double(), loss=lb.CrossEntropy()), X.double(), y)
    lifted = [l for l in found if not isinstance(problem.network[l].activation, Identity)]
    return [float(found[l].double().norm() / expected[l].norm()) for l in sorted(lifted)]


def measure(kind: str, rounds: int, epochs: int) -> list[dict[str, object]]:
    """A row for each depth and method."""
    rows: list[dict[str, object]] = []
    transferred: dict[str, float] = {}
    for layers in DEPTHS[kind]:
        default = [train(kind, layers, seed, epochs)[1] for seed in range(rounds)]
        rows.append(_row(kind, layers, "default", "-", default, "-", default))
        for name, rates in RATES.items():
            make = {"AdamW": lb.baselines.AdamW, "SGD": lb.baselines.SGD}[name]
            found: Mapping[float, list[float]] = {
                rate: [train(kind, layers, seed, epochs, make(rate))[1] for seed in range(rounds)] for rate in rates
            }
            best = max(found, key=lambda rate: mean(found[rate]))
            taken = transferred.setdefault(name, best)
            rows.append(_row(kind, layers, name, f"{taken:g}", found[taken], f"{best:g}", found[best]))
    return rows


def _row(
    kind: str, layers: int, method: str, taken: str, transferred: list[float], best: str, highest: list[float]
) -> dict[str, object]:
    return {
        "network": kind,
        "layers": layers,
        "method": method,
        "rate from 16": taken,
        "accuracy": mean(transferred),
        "best rate": best,
        "its accuracy": mean(highest),
        "lowest seed": min(highest),
    }


def signal_row(kind: str, layers: int, epochs: int) -> dict[str, object]:
    """The ratios before training, and after it."""
    (X, y), _ = digits(0)
    before = ratios(network(kind, layers, 0), X[:100], y[:100])
    after = ratios(train(kind, layers, 0, epochs)[0], X[:100], y[:100])
    named = {"smallest": min(before), "largest": max(before), "smallest after": min(after), "largest after": max(after)}
    return {"network": kind, "layers": layers, **named}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="seeds")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shown = [signal_row(kind, layers[-1], options.epochs) for kind, layers in DEPTHS.items()]
    print(_text(shown))
    rows = [row for kind in DEPTHS for row in measure(kind, options.rounds, options.epochs)]
    print(_text(rows))
    if options.json is not None:
        numbers = {"epochs": options.epochs, "rounds": options.rounds, "rows": rows, "signals": shown}
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")


def _text(rows: list[dict[str, object]]) -> str:
    cells = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    return plain([list(rows[0]), *cells]) + "\n"


if __name__ == "__main__":
    main()
