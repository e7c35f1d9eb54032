"""A model of the time that a step takes with any number of workers: computing, messages, and who waits for whom.

The inputs are what a worker takes to compute a layer (`ComputingCost`) and what messages take (`Link`).  With n samples
in a worker's part of the batch, k layers of m units in its part of the network, d workers to a layer and p workers to
a sample, M micro-batches and w bytes to a number:

    computing          C = k (a n m² + b n m + c m² + e)
    back-propagation   C + sum(w k (m² + m), d)
    Gram sweep         C + sum of the bytes in the table of the documentation, in 3k + 2 messages
    simultaneous       max(C, row) + row + sum(w k (m² + m), d) + gather(w k n m, d)       row = message(w n m)
    in micro-batches   C (f (M + p - 1)/M + 1 - f) + 2 (p - 1) message(w n m/M) + sum(w k (m² + m), d)

f is the part of the time that goes into passes through the layers: all of a pipelined sweep, and two of the three
products of a Gram sweep, whose third moves the parameters of all layers at once.  A neighbour is told of the pull-back
while there is still something to compute, and of the moved variable afterwards.  Sums take the best of the known
algorithms for many workers: 2 log₂ d messages with 2 (d - 1)/d of the bytes in all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from lifted_bregman_lab.scale.cases import MICRO_BATCHES

NUMBER = 4
"""w, the bytes of a number."""
PASSES = {"pipelined sweep": 1.0, "Gram sweep in parts": 2.0 / 3.0}
"""f, of the algorithms in micro-batches."""


@dataclass(frozen=True)
class Network:
    """L layers of m units, and n samples in the whole batch."""

    depth: int
    width: int
    samples: int

    def part(self, layout: Layout) -> Network:
        """What the worker with the most to do has of it."""
        return Network(-(-self.depth // layout.layer), self.width, -(-self.samples // layout.data))

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.depth * (self.width + 1) * self.width


@dataclass(frozen=True)
class Layout:
    """How many workers share the batch, and how many the layers."""

    data: int = 1
    layer: int = 1

    @property
    def workers(self) -> int:
        """All of them."""
        return self.data * self.layer


@dataclass(frozen=True)
class ComputingCost:
    """Seconds that a worker takes for a layer of m units and n samples: a n m² + b n m + c m² + e."""

    per_product: float
    per_unit: float
    per_weight: float
    per_layer: float

    def seconds(self, network: Network) -> float:
        """Of all layers."""
        return float(np.dot(_features(network), (self.per_product, self.per_unit, self.per_weight, self.per_layer)))

    def faster(self, times: float) -> ComputingCost:
        """That of a worker which is so many times as fast."""
        return replace(self, **{name: value / times for name, value in vars(self).items()})

    @classmethod
    def fit(cls, measured: Sequence[tuple[Network, float]]) -> ComputingCost:
        """The least sum of squared relative errors, with no part below 0."""
        rows = np.array([np.divide(_features(network), seconds) for network, seconds in measured])
        return cls(*_least_squares(rows))


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
        rows = np.array([(messages / seconds, size / seconds) for size, seconds in measured])
        latency, per_byte = _least_squares(rows)
        return cls(latency, 1.0 / per_byte if per_byte else math.inf)


@dataclass(frozen=True)
class Links:
    """Sums and rows take different ways through a machine."""

    sums: Link
    rows: Link


def step_seconds(
    algorithm: str, cost: ComputingCost, network: Network, layout: Layout, links: Links, overlap: bool = False
) -> float:
    """Seconds of a step; `overlap` hides sums behind computing as far as that is possible at all."""
    own = network.part(layout)
    computing, rows = cost.seconds(own), NUMBER * own.samples * own.width
    size, messages = sent(algorithm, network, layout)
    reducing = links.sums.sum(size, layout.data, messages)
    if algorithm == "simultaneous sweep":
        reducing += links.rows.gather(own.depth * rows, layout.data)
        if layout.layer > 1:
            border = links.rows.message(rows)
            computing = max(computing, border) + border
    elif algorithm in PASSES:
        waits = layout.layer - 1
        computing *= 1.0 + PASSES[algorithm] * waits / MICRO_BATCHES
        computing += 2 * waits * links.rows.message(rows / MICRO_BATCHES) if waits else 0.0
    elif layout.layer > 1:
        raise ValueError(f"{algorithm} does not share layers")
    return max(computing, reducing) if overlap else computing + reducing


def sent(algorithm: str, network: Network, layout: Layout) -> tuple[int, int]:
    """Bytes and messages of the sums over the workers of a layer, in a step."""
    own = network.part(layout)
    if layout.data == 1:
        return 0, 0
    if algorithm == "Gram sweep":
        a_layer = own.width * (own.width + 3)
        return NUMBER * own.depth * a_layer + 8 * 2 * own.depth + 8, 3 * own.depth + 2
    if algorithm == "simultaneous sweep":
        return NUMBER * own.parameters + 8 * own.depth * (own.width + 1), 2 * own.depth + 1
    return NUMBER * (own.parameters + (algorithm == "back-propagation")), 1


def _features(network: Network) -> tuple[float, float, float, float]:
    L, m, n = network.depth, network.width, network.samples
    return L * n * m * m, L * n * m, L * m * m, L


def _least_squares(rows: np.ndarray) -> list[float]:
    """argmin over t >= 0 of ‖rows t - 1‖: the best of the solutions in which some entries are 0 and no other is < 0."""
    best, least = [0.0] * rows.shape[1], float(len(rows))
    scale = np.abs(rows).max(0)
    for count in range(1, rows.shape[1] + 1):
        for places in combinations(range(rows.shape[1]), count):
            chosen = rows[:, places] / scale[list(places)]
            found = np.linalg.lstsq(chosen, np.ones(len(rows)), rcond=None)[0]
            error = float(((chosen @ found - 1.0) ** 2).sum())
            if (found >= 0.0).all() and error < least:
                best, least = [0.0] * rows.shape[1], error
                for place, value in zip(places, found, strict=True):
                    best[place] = float(value / scale[place])
    return best
