"""A model of the time of a step with 1 to 1,024 workers, from what `lifted bench scale` has measured with two.

    python lab/scripts/cluster_model.py docs/figures/scale.json > docs/figures/cluster_model.inc

It prints its tables as Markdown: the inputs, what cheaper sums would gain, predictions beside measurements that nothing
was fitted to, and predictions for clusters that nobody has measured.

The inputs are what a worker takes to compute a layer and what messages take.  With n samples in a worker's part of the
batch, k layers of m units in its part of the network, d workers to a layer and p workers to a sample, M micro-batches
and w bytes to a number:

    computing          C = k (a n m² + b n m + c m² + e)
    back-propagation   C + sum(w k (m² + m), d)
    Gram sweep         C + sum of the bytes in the table of the documentation, in 3k + 2 messages
    simultaneous       max(C, row) + row + sum(w k (m² + m), d) + gather(w k n m, d)       row = message(w n m)
    in micro-batches   C (f (M + p - 1)/M + 1 - f) + 2 (p - 1) message(w n m/M) + sum(w k (m² + m), d)

f is the part of the time that goes into passes through the layers: all of a pipelined sweep, and two of the three
products of a Gram sweep, whose third moves the parameters of all layers at once.  A simultaneous sweep sends the
pull-back while there is still something to compute, and the moved variable afterwards.  Sums take the best of the known
algorithms for many workers: 2 log₂ d messages with 2 (d - 1)/d of the bytes in all.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from lifted_bregman_lab.scale.cases import MICRO_BATCHES, Case, Use
from lifted_bregman_lab.scale.measuring import ALONE, BESIDE, SHARED
from lifted_bregman_lab.scale.results import ScaleStudy, read_scale
from lifted_bregman_lab.scale.tables import NUMBER, markdown, milliseconds, sizes, sum_bytes
from lifted_bregman_lab.text import Rows

PASSES = {"pipelined sweep": 1.0, "Gram sweep in parts": 2.0 / 3.0}
"""f, of the algorithms in micro-batches."""
BACKPROP = "back-propagation"
SHARING_BOTH = ("simultaneous sweep", "pipelined sweep")
SHARING_LAYERS = (*SHARING_BOTH, "Gram sweep in parts")
WORKERS = tuple(2**power for power in range(11))
WITHIN = 0.2
"""The relative error that predictions are to keep."""


class Network(NamedTuple):
    """L layers of m units, and n samples in the whole batch."""

    depth: int
    width: int
    samples: int

    def part(self, data: int, layer: int) -> Network:
        """Of the worker with the most to do, where so many workers share the batch and the layers."""
        return Network(-(-self.depth // layer), self.width, -(-self.samples // data))

    def features(self) -> tuple[int, int, int, int]:
        """What the terms of C are multiples of: L n m², L n m, L m², L."""
        L, m, n = self
        return L * n * m * m, L * n * m, L * m * m, L


@dataclass(frozen=True)
class Link:
    """What messages between two workers take: seconds for each, and bytes in a second."""

    latency: float
    bandwidth: float

    def message(self, size: float) -> float:
        """From one to another."""
        return self.latency + size / self.bandwidth

    def sum(self, size: float, workers: int, messages: int = 1) -> float:
        """A sum over the workers that all of them get, of so many bytes in so many messages."""
        if workers == 1:
            return 0.0
        return messages * 2 * math.log2(workers) * self.latency + 2 * (workers - 1) / workers * size / self.bandwidth

    def gather(self, size: float, workers: int) -> float:
        """The bytes of each worker to all others."""
        return 0.0 if workers == 1 else (workers - 1) * size / self.bandwidth + math.log2(workers) * self.latency

    @classmethod
    def fit(cls, measured: Sequence[tuple[int, float]], messages: float = 1.0) -> Link:
        """From (bytes, seconds) for two workers, where a transfer of any size takes `messages` latencies."""
        latency, per_byte = fit([(messages, size) for size, _ in measured], [seconds for _, seconds in measured])
        return cls(latency, 1.0 / per_byte if per_byte else math.inf)


def fit(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, ...]:
    """The coefficients >= 0 with the least sum of squared relative errors."""
    relative = np.array(features, float) / np.array(seconds)[:, None]
    scale = relative.max(0)  # units of very different size
    return tuple(float(value) for value in nnls(relative / scale, np.ones(len(seconds)))[0] / scale)


@dataclass(frozen=True)
class Model:
    """The inputs.

    costs  (a, b, c, e) of each algorithm, of a worker while others work too
    sums   the link of sums
    rows   the link of rows to a neighbour
    """

    costs: Mapping[str, tuple[float, ...]]
    sums: Link
    rows: Link

    @classmethod
    def fit(cls, scale: ScaleStudy) -> Model:
        """From measurements; computing is that of two processes at once, each for itself."""
        if scale.links is None:
            raise SystemExit("the file has no times of messages alone: run `lifted bench scale` without --quick.")
        points: dict[str, list[tuple[Network, float]]] = {}
        for measured in scale.measured:
            if measured.case.use is Use.CALIBRATE:
                point = (network_of(measured.case), median(measured.times[BESIDE]))
                points.setdefault(measured.case.algorithm, []).append(point)
        costs = {name: fit([n.features() for n, _ in own], [s for _, s in own]) for name, own in points.items()}
        return cls(costs, Link.fit(scale.links["sum"], messages=2), Link.fit(scale.links["rows"]))

    def computing(self, algorithm: str, network: Network) -> float:
        """C, seconds of one worker that has the whole network and batch."""
        return float(np.dot(network.features(), self.costs[algorithm]))

    def step(self, algorithm: str, network: Network, data: int = 1, layer: int = 1, hidden: bool = False) -> float:
        """Seconds of a step; `hidden` sums hide behind computing as far as that is possible at all."""
        own = network.part(data, layer)
        computing, rows = self.computing(algorithm, own), NUMBER * own.samples * own.width
        size, messages = sum_bytes(algorithm, own.depth, own.width)
        summing = self.sums.sum(size, data, messages)
        if algorithm == "simultaneous sweep":
            summing += self.rows.gather(own.depth * rows, data)
            if layer > 1:
                border = self.rows.message(rows)
                computing = max(computing, border) + border
        elif algorithm in PASSES:
            waits = layer - 1
            computing *= 1.0 + PASSES[algorithm] * waits / MICRO_BATCHES
            computing += 2 * waits * self.rows.message(rows / MICRO_BATCHES) if waits else 0.0
        elif layer > 1:
            raise ValueError(f"{algorithm} does not share layers")
        return max(computing, summing) if hidden else computing + summing


class Cluster(NamedTuple):
    """A network, and workers to which the model is applied.

    name     for people
    network  with its batch
    link     between any two workers
    faster   how many times as fast as here a worker computes
    """

    name: str
    network: Network
    link: Link
    faster: float = 1.0


ETHERNET = Link(latency=50e-6, bandwidth=1.25e9)
INFINIBAND = Link(latency=5e-6, bandwidth=12.5e9)
CLUSTERS = (
    Cluster("20 layers of 784, batch 200, 10 Gbit/s", Network(20, 784, 200), ETHERNET),
    Cluster("20 layers of 784, batch 200, 100 Gbit/s", Network(20, 784, 200), INFINIBAND),
    Cluster("128 layers of 2048, batch 1024, 10 Gbit/s", Network(128, 2048, 1024), ETHERNET),
    Cluster("the same, workers 100 times as fast, 100 Gbit/s", Network(128, 2048, 1024), INFINIBAND, faster=100.0),
)


def predict(model: Model, cluster: Cluster) -> pd.DataFrame:
    """The least seconds of a step for each number of workers, and the layout (data, layer) that takes them.

    The columns "kind" are back-propagation, whose sums are hidden behind all that it computes, and lifted training with
    a shared batch ("data"), with shared "layers" by the best sweep and by the Gram sweep alone, and with "both" shared.
    """
    costs = {name: tuple(value / cluster.faster for value in cost) for name, cost in model.costs.items()}
    here = Model(costs, cluster.link, cluster.link)
    options = []
    for workers in WORKERS:
        for data in (data for data in WORKERS if data <= workers):
            layer = workers // data
            if data > cluster.network.samples or layer > cluster.network.depth:
                continue
            kinds: dict[str, Sequence[str]] = {BACKPROP: (BACKPROP,), "data": ("Gram sweep", *SHARING_BOTH)}
            if layer > 1:
                kinds = {"both": SHARING_BOTH}
                if data == 1:
                    kinds = {"layers": SHARING_LAYERS, "layers, Gram sweep": SHARING_LAYERS[-1:]}
            for kind, algorithms in kinds.items():
                for name in algorithms:
                    seconds = here.step(name, cluster.network, data, layer, hidden=name == BACKPROP)
                    options.append((workers, kind, seconds, f"{data} x {layer}"))
    table = pd.DataFrame(options, columns=["workers", "kind", "seconds", "layout"])
    return table.loc[table.groupby(["workers", "kind"])["seconds"].idxmin()].pivot(index="workers", columns="kind")


def input_rows(model: Model) -> Rows:
    """The inputs of the model, as measured here."""
    links = {"a sum": model.sums, "rows to a neighbour": model.rows}
    found: list[tuple[str, ...]] = [
        (f"{name}: latency, bandwidth", f"{1e6 * link.latency:.0f} µs, {link.bandwidth / 1e9:.2f} GB/s")
        for name, link in links.items()
    ]
    for name, (a, b, c, e) in model.costs.items():
        text = f"{1e12 * a:.1f} ps n m² + {1e9 * b:.2f} ns n m + {1e9 * c:.2f} ns m² + {1e6 * e:.0f} µs"
        found.append((f"{name}, a layer", text))
    return ("input", "value"), found


def relief_rows(scale: ScaleStudy, model: Model) -> Rows:
    """Speed-ups where sums would cost less than they do: measured times less what the model says is saved."""
    header = ("solver", "network", "batch", "as it is", "16-bit sums", "sums every 4th step", "sums hidden")
    rows: list[tuple[str, ...]] = []
    for measured in scale.measured:
        case = measured.case
        if case.shared == "data" and case.algorithm in model.costs:
            alone, shared = (median(measured.times[turn]) for turn in (ALONE, SHARED))
            size, messages = sum_bytes(case.algorithm, case.depth, case.width)
            summing, half = (model.sums.sum(part, 2, messages) for part in (size, size / 2))
            others = shared - summing
            times = (shared, others + half, others + summing / 4, max(others, summing))
            rows.append((case.algorithm, *sizes(case), *(f"{alone / time:.2f}" for time in times)))
    return header, rows


def check_rows(scale: ScaleStudy, model: Model) -> Rows:
    """The model beside measurements that it was not fitted to."""
    header = ("solver", "shared", "network", "batch", "measured, ms", "model, ms", "error", f"within {WITHIN:.0%}")
    rows: list[tuple[str, ...]] = []
    for measured in scale.measured:
        case = measured.case
        if case.use is Use.CHECK and case.algorithm in model.costs:
            seconds = median(measured.times[SHARED])
            data, layer = (2, 1) if case.shared == "data" else (1, 2)
            predicted = model.step(case.algorithm, network_of(case), data, layer)
            error = predicted / seconds - 1.0
            times = (milliseconds(seconds), milliseconds(predicted), f"{error:+.0%}")
            rows.append((case.algorithm, case.shared, *sizes(case), *times, "yes" if abs(error) <= WITHIN else "no"))
    return header, rows


def cluster_rows(predicted: pd.DataFrame) -> Rows:
    """Milliseconds of a step for each number of workers."""
    kinds = [BACKPROP, "data", "layers", "layers, Gram sweep", "both"]
    rows: list[tuple[str, ...]] = []
    for workers, found in predicted.iterrows():
        times = (milliseconds(s) if s == s else "" for s in found["seconds"].reindex(kinds))
        layout = found.get(("layout", "both"))
        rows.append((str(workers), *times, layout if isinstance(layout, str) else ""))
    return ("workers", *kinds, "layout of both"), rows


def ahead(predicted: pd.DataFrame) -> str:
    """With how many workers a lifted step with shared layers takes less than one of back-propagation, in words."""
    kinds = {
        "with shared layers, or both": ["layers", "both"],
        "of the Gram sweep with shared layers": ["layers, Gram sweep"],
    }
    seconds, found = predicted["seconds"], []
    for words, names in kinds.items():
        least = seconds.reindex(columns=names).min(axis="columns")
        workers = list(seconds.index[least < seconds[BACKPROP]])
        counts = f"{workers[0]} to {workers[-1]}" if len(workers) > 1 else "".join(map(str, workers)) or "no number of"
        found.append(f"one {words} with {counts} workers")
    return f"Model: a step takes less than one of back-propagation with as many workers: {'; '.join(found)}."


def page(scale: ScaleStudy) -> str:
    """All tables as Markdown."""
    model = Model.fit(scale)
    parts = ["### The model: its inputs", markdown(input_rows(model))]
    parts += ["### The model: what would relieve sums", markdown(relief_rows(scale, model))]
    parts += ["### The model: predictions of what it was not fitted to", markdown(check_rows(scale, model))]
    parts += ["### The model: 1 to 1,024 workers"]
    for cluster in CLUSTERS:
        predicted = predict(model, cluster)
        parts += [f"Model, ms of a step: {cluster.name}.", markdown(cluster_rows(predicted)), ahead(predicted)]
    return "\n\n".join(parts) + "\n"


def network_of(case: Case) -> Network:
    """The network and the whole batch of a case."""
    return Network(case.depth, case.width, case.samples)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stored", type=Path, help="the scale.json of `lifted bench scale --out FOLDER`")
    print(page(read_scale(parser.parse_args().stored)), end="")
