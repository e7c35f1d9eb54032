"""Comparing `GramSweep` with the slow reference that stands beside it in the library."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from lifted_bregman import solvers
from lifted_bregman.solvers.gram.reference import LayerMove, ReferenceSweep

F64 = torch.float64
TIGHT = {"rtol": 1e-10, "atol": 1e-10}
BATCHES = [(0, 7), (7, 14), (3, 8), (14, 15), (8, 15)]
"""Of 7, 7, 5, 1 and 7 samples; with blocks of at most 4, 3 or 2 the last block is often filled up."""


def relu(z: Tensor) -> Tensor:
    return torch.where(z > 0.0, z, torch.zeros_like(z))


def soft(threshold: float | Tensor):
    def shrink(z: Tensor) -> Tensor:
        return torch.sign(z) * relu(z.abs() - threshold)

    return shrink


@dataclass
class Oracle(ReferenceSweep):
    """The reference, which notes what has happened."""

    limited: list[bool] = field(default_factory=list)
    """Whether the trust limit was binding, for each move."""
    shortened: list[bool] = field(default_factory=list)
    """Whether samples had different nudges, for each batch and hidden layer."""

    def nudge(self, l: int, z: Tensor, g: Tensor) -> Tensor:
        nudge = super().nudge(l, z, g)
        self.shortened.append(bool((nudge != nudge[0]).any()))
        return nudge

    def lengths(self, l: int, move: LayerMove, size: float) -> Tensor:
        lengths, free = super().lengths(l, move, size), super().lengths(l, move, float("inf"))
        self.limited.append(not torch.equal(lengths, free))
        return lengths


def linears(problem) -> list[nn.Linear]:
    return [problem.network[l].map.module for l in range(1, problem.depth + 1)]


def packed(module: nn.Linear, values) -> torch.Tensor:
    """[W b] with `values` in place of what is trained."""
    parts = {name: p.detach() for name, p in module.named_parameters()} | values
    bias = parts.get("bias", torch.zeros(module.out_features, dtype=F64))
    return torch.cat([parts["weight"], bias[:, None]], 1)


def assert_follows(solver, problem, X, Y, oracle: Oracle, weights=None, batches=BATCHES):
    """After every batch Θ and V are the oracle's."""
    batch = solvers.Batch.whole(problem, X, Y, weights)
    state = solver.init(problem, batch)
    for start, stop in batches:
        part = batch.slice(start, stop)
        state = solver.step(problem, state, part)
        oracle.step(part.X, part.Y, part.weights)
        for l, module in enumerate(linears(problem), start=1):
            torch.testing.assert_close(packed(module, {}), oracle.theta[l - 1], **TIGHT)
            if solver.average:
                torch.testing.assert_close(packed(module, state.fast.get(l, {})), oracle.fast[l - 1], **TIGHT)
    assert bool(state.fast) == (solver.average > 0.0)  # without an average Θ is V, and nothing is kept
    assert state.steps == len(batches) and state.fallbacks == 0 and state.metrics["fallbacks"] == 0.0
    assert state.metrics["distance"] == pytest.approx(oracle.distance, rel=1e-9)
    assert state.metrics["output_residual"] == pytest.approx(oracle.residual, rel=1e-9)
