"""How much an activation costs beside the plain torch function, on a 4096 x 784 float32 tensor.

    python benchmarks/activations.py [--json FILE]

Times are ratios inside one interleaved run: each round times every competitor once, and medians over the rounds are
divided.  Closed forms are to stay within 1.3 times the plain function, iterative proximal maps within 60 times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lifted_bregman import activations as act

SCALES = (0.1, 0.5, 2.0, 10.0)

PLAIN: list[tuple[act.Activation, Callable[[Tensor], Tensor]]] = [
    (act.Identity(), torch.clone),
    (act.ReLU(), torch.relu),
    (act.LeakyReLU(0.1), lambda z: F.leaky_relu(z, 0.1)),
    (act.Box(), F.hardtanh),
    (act.SoftThreshold(0.5), F.softshrink),
    (act.NonNegativeSoftThreshold(0.5), lambda z: torch.relu(z - 0.5)),
    (act.Tanh(), torch.tanh),
    (act.Sigmoid(), torch.sigmoid),
    (act.Softsign(), F.softsign),
    (act.Arctan(), torch.atan),
    (act.ISRU(), lambda z: z / torch.sqrt(1.0 + z * z)),
    (act.Asinh(), torch.asinh),
    (act.ELU(), F.elu),
    (act.Softplus(), F.softplus),
    (act.Softmax(), lambda z: torch.softmax(z, -1)),
    (act.Sparsemax(), lambda z: torch.softmax(z, -1)),
    (act.GroupSoftThreshold(0.5), lambda z: z * (1.0 - 0.5 / z.norm(dim=-1, keepdim=True)).clamp(min=0.0)),
    (act.BallProjection(1.0), lambda z: z * (1.0 / z.norm(dim=-1, keepdim=True)).clamp(max=1.0)),
]


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(rounds: int) -> list[dict[str, object]]:
    z = torch.randn(4096, 784, generator=torch.Generator().manual_seed(0))
    rows: list[dict[str, object]] = []
    for activation, plain in PLAIN:
        competitors: dict[str, Callable[[], object]] = {
            "plain": lambda plain=plain: plain(z),
            "call": lambda a=activation: a(z),
        }
        competitors |= {f"prox {c}": lambda a=activation, c=c: a.prox(z, c) for c in SCALES}
        times: dict[str, list[float]] = {key: [] for key in competitors}
        for turn in range(rounds + 1):
            for key, function in competitors.items():
                elapsed = seconds(function)
                if turn:  # the first round warms up
                    times[key].append(elapsed)
        medians = {key: statistics.median(values) for key, values in times.items()}
        ratios = {key: medians[key] / medians["plain"] for key in competitors if key != "plain"}
        rows.append({"activation": repr(activation), "plain_ms": 1e3 * medians["plain"], **ratios})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows = measure(options.rounds)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, 4096 x 784 float32; times the plain function")
    columns = ["call", *(f"prox {c}" for c in SCALES)]
    print(f"{'activation':40s}{'plain ms':>10s}" + "".join(f"{c:>11s}" for c in columns))
    for row in rows:
        print(f"{row['activation']:40s}{row['plain_ms']:10.2f}" + "".join(f"{row[c]:11.2f}" for c in columns))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
