"""Splits the layers among ranks, so that all parts cost about the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from lifted_bregman.graph import ModelInput
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import layers


def layer_costs(problem: LiftedProblem, X: ModelInput) -> list[float]:
    """The multiplications of each layer in one sweep, for one sample, computed from shapes.

    A weight of m outputs and n inputs is used at each of the k positions of a sample (one for a dense layer, the pixels
    of a convolution's output) for z_l, the pull-back and the gradient: 3kmn multiplications.  Elementwise operations
    count as 16 for each number of x_l.
    """
    costs = []
    for layer, shape in zip(layers(problem.depth), problem.shapes(X), strict=True):
        size = math.prod(shape)
        weights = [p for p in problem.network[layer].map.parameters.values() if p.ndim > 1]
        costs.append(16.0 * size + sum(3.0 * p.numel() * size / p.shape[0] for p in weights))
    return costs


def balanced(costs: Sequence[float], parts: int) -> list[range]:
    """Splits the layers 1 .. L into contiguous parts, none empty, and minimises the cost of the most expensive part.

    Among several optimal splits it returns the one with the longest parts at the input.  Dynamic programming over the
    first j layers in k parts, O(parts · L²).
    """
    depth = len(costs)
    sums = [0.0, *accumulate(costs)]
    best = {(0, 0): 0.0}
    cut: dict[tuple[int, int], int] = {}
    # best[k, j] = min over i of max(best[k-1, i], cost of the layers i+1 .. j)
    for k in range(1, parts + 1):
        for j in range(k, depth + 1):
            for i in range(k - 1, j):
                if (k - 1, i) in best:
                    worst = max(best[k - 1, i], sums[j] - sums[i])
                    if worst <= best.get((k, j), math.inf):
                        best[k, j], cut[k, j] = worst, i
    # the parts, read back from the last
    found: list[range] = []
    end = depth
    for k in range(parts, 0, -1):
        start = cut[k, end]
        found.append(range(start + 1, end + 1))
        end = start
    return found[::-1]
