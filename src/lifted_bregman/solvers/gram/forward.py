"""The forward pass of the default solver, and what the pull-backs of its terms add up."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.graph import ModelInput
from lifted_bregman.graph.inputs import input_tensors
from lifted_bregman.maps import Borrowing, LayerMap
from lifted_bregman.maps.base import Inputs, PullBack
from lifted_bregman.maps.traced import core_of
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers.gram.parallel import receive_inputs, send_outputs


@dataclass(frozen=True, eq=False)
class Forward:
    """A forward pass of the terms on this rank, micro-batch by micro-batch."""

    parts: list[slice]
    """The rows of each micro-batch."""
    x: dict[int, Tensor]
    """x_v of the terms here and of what they read, (samples, ...); the model's inputs are numbered 0, -1, -2, .."""
    z: dict[int, Tensor]
    """z_l of the terms here, (samples, ...)."""
    pulls: dict[int, list[PullBack]]
    """The pull-backs of linearised terms, one for each micro-batch."""
    core_inputs: dict[int, Tensor]
    """What the core of a map reads, where calls without parameters come first (`core_of`)."""
    heads: dict[int, list[PullBack]]
    """The pull-backs of these calls, one for each micro-batch."""

    def read(self, problem: LiftedProblem, layer: int) -> Inputs:
        """What the core of f_l reads: x_{l-1} in a chain."""
        return self.core_inputs[layer] if layer in self.core_inputs else problem.network.read(self.x, layer)


def core(problem: LiftedProblem, layer: int) -> LayerMap:
    """The dense or convolution map at the end of f_l, where calls without parameters come first; else f_l."""
    return core_of(problem.network[layer].map)[1]


def forward(problem: LiftedProblem, X: ModelInput, parts: list[slice], linearised: Container[int]) -> Forward:
    """z_l = f_l(x), x_l = σ_l(z_l); the pull-backs of `linearised` terms keep what this pass computed."""
    partition, network = problem.partition, problem.network
    lowest = partition.terms[0] - 1
    given = {-place: t for place, t in enumerate(input_tensors(X))}  # by their numbers in Layer.inputs
    x: dict[int, list[Tensor]] = {v: [] for v in ((lowest,) if partition.borrowed else given)}
    x |= {layer: [] for layer in partition.terms}
    z: dict[int, list[Tensor]] = {layer: [] for layer in partition.terms}
    pulls: dict[int, list[PullBack]] = {layer: [] for layer in partition.terms if layer in linearised}
    core_inputs: dict[int, list[Tensor]] = {}
    heads: dict[int, list[PullBack]] = {}
    shape = problem.shapes(X)[lowest - 1] if partition.borrowed else ()
    for rows in parts:
        if partition.borrowed:
            x[lowest].append(receive_inputs(problem, given[0].new_empty((len(X[rows]), *shape))))
        for v, values in given.items() if not partition.borrowed else ():
            x[v].append(values[rows])
        here: dict[int, Any] = {v: values[-1] for v, values in x.items() if values}
        for layer in partition.terms:
            own, read = network[layer], network.read(here, layer)
            head, last = core_of(own.map)
            if head is not None:
                read, pull = head.linearise(read)
                heads.setdefault(layer, []).append(pull)
                core_inputs.setdefault(layer, []).append(read)
            if layer in pulls:
                value, pull = last.linearise(read)
                pulls[layer].append(pull)
            else:
                value = last.apply(read)
            here[layer] = own.activate(value)
            z[layer].append(value)
            x[layer].append(here[layer])
        send_outputs(problem, here)
    if not partition.borrowed:
        x |= {v: [values] for v, values in given.items()}  # the tensors themselves, by which rows are gathered once
    return Forward(parts, _joined(x), _joined(z), pulls, _joined(core_inputs), heads)


def _joined(parts: Mapping[int, list[Tensor]]) -> dict[int, Tensor]:
    return {layer: rows[0] if len(rows) == 1 else torch.cat(rows) for layer, rows in parts.items()}


class Gradients:
    """J_Θᵀ E/m of linearised terms: sums over micro-batches, and over the terms that share a parameter."""

    def __init__(self, problem: LiftedProblem, weights: Tensor | None, samples: int) -> None:
        self._problem, self._weights, self._scale = problem, weights, 1.0 / samples
        self._sums: dict[int, dict[str, Tensor]] = {}

    def pull(self, layer: int, pull: PullBack, E: Tensor, rows: slice, inputs: bool) -> Inputs:
        """J_xᵀ E of one micro-batch, None without `inputs`; adds its J_Θᵀ E/m to the sums of the owners."""
        f = self._problem.network[layer].map
        lenders = f.lenders if isinstance(f, Borrowing) else {}
        weights = None if self._weights is None else self._weights[rows]
        below, gradient = pull(E if weights is None else E * by_row(weights, E), self._scale, inputs)
        for name, g in gradient.items():
            owner, there = lenders.get(name, (layer, name))
            sums = self._sums.setdefault(owner, {})
            sums[there] = sums[there] + g if there in sums else g
        if weights is None or not inputs:
            return below
        # Each sample's rows of J_xᵀ (w E) are w_i times those of J_xᵀ E.
        many = isinstance(below, tuple)
        undone = tuple(g / by_row(weights, g) for g in (below if many else (below,)))
        return undone if many else undone[0]

    def take(self, layer: int) -> dict[str, Tensor]:
        """The gradient in the parameters that a term owns; empty where it has none."""
        return self._sums.pop(layer, {})


def add_pulled(pulled: dict[int, Tensor], inputs: Sequence[int], below: Inputs, wanted: Sequence[int]) -> None:
    """Adds J_xᵀ E of one term to the sums of the variables that are wanted."""
    for v, g in zip(inputs, below if isinstance(below, tuple) else (below,), strict=False):
        if v in wanted:
            pulled[v] = pulled[v] + g if v in pulled else g


def by_row(values: Tensor, like: Tensor) -> Tensor:
    """values (n,) in a shape that multiplies the rows of `like`."""
    return values.view(-1, *[1] * (like.ndim - 1))
