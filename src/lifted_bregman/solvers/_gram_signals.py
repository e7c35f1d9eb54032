"""What goes through the layers in a `GramSweep`: the forward pass, and the error signals that come back."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.graph import Layer, ModelInput
from lifted_bregman.graph.inputs import input_tensors
from lifted_bregman.maps import Borrowing
from lifted_bregman.maps.base import Inputs, PullBack
from lifted_bregman.maps.traced import core_of
from lifted_bregman.problem import LiftedProblem, Peers
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.solvers._gram_moves import by_row
from lifted_bregman.solvers._interface import Batch


@dataclass(frozen=True, eq=False)
class Signal:
    """E_l for some rows of the batch, with the x_l⁺ and ν_l/λ_l, (), that it comes from; for the output y and 1/λ_L."""

    rows: slice
    E: Tensor
    target: Tensor
    nudge: Tensor | float


@dataclass(frozen=True, eq=False)
class Forward:
    """A forward pass of the terms of this process, part after part of the batch."""

    x: dict[int, Tensor]
    """x_v of the terms here and of what they read; the model's inputs have the numbers 0, -1, -2, .."""
    z: dict[int, Tensor]
    """z_l of the terms here."""
    pulls: dict[int, list[PullBack]]
    """The pull-backs of terms that are linearised, one for each part."""
    fed: dict[int, Tensor]
    """What the core of a map reads, where calls without parameters come first (`core_of`)."""
    heads: dict[int, list[PullBack]]
    """The pull-backs of these calls, one for each part."""

    def read(self, problem: LiftedProblem, layer: int) -> Inputs:
        """What the core of the map f_l reads: x_{l-1} in a chain."""
        return self.fed[layer] if layer in self.fed else problem.network.read(self.x, layer)


def forward(problem: LiftedProblem, X: ModelInput, parts: list[slice], linearised: Container[int]) -> Forward:
    """x_l = σ_l(z_l) and z_l; `linearised` are the terms whose pull-backs are wanted with what they computed here."""
    span, network = problem.span, problem.network
    lowest = span.layers[0] - 1
    given = {-place: t for place, t in enumerate(input_tensors(X))}  # by their numbers in Layer.inputs
    x: dict[int, list[Tensor]] = {v: [] for v in ((lowest,) if span.borrowed else given)}
    x |= {layer: [] for layer in span.layers}
    z: dict[int, list[Tensor]] = {layer: [] for layer in span.layers}
    pulls: dict[int, list[PullBack]] = {layer: [] for layer in span.layers if layer in linearised}
    fed: dict[int, list[Tensor]] = {}
    heads: dict[int, list[PullBack]] = {}
    shape = problem.shapes(X)[lowest - 1] if span.borrowed else ()
    for rows in parts:
        if span.borrowed:
            x[lowest].append(span.from_below(given[0].new_empty((len(X[rows]), *shape))))
        for v, values in given.items() if not span.borrowed else ():
            x[v].append(values[rows])
        here: dict[int, Any] = {v: values[-1] for v, values in x.items() if values}
        for layer in span.layers:
            own, read = network[layer], network.read(here, layer)
            head, core = core_of(own.map)
            if head is not None:
                read, pull = head.linearise(read)
                heads.setdefault(layer, []).append(pull)
                fed.setdefault(layer, []).append(read)
            if layer in pulls:
                value, pull = core.linearise(read)
                pulls[layer].append(pull)
            else:
                value = core.apply(read)
            here[layer] = own.activate(value)
            z[layer].append(value)
            x[layer].append(here[layer])
        for layer in span.lent:
            span.send_above(x[layer][-1])
    if not span.borrowed:
        x |= {v: [values] for v, values in given.items()}  # which peers know
    return Forward(_joined(x), _joined(z), pulls, _joined(fed), heads)


def _joined(parts: Mapping[int, list[Tensor]]) -> dict[int, Tensor]:
    return {layer: rows[0] if len(rows) == 1 else torch.cat(rows) for layer, rows in parts.items()}


class Gradients:
    """J_Θᵀ E/m of the terms that move along their gradients: sums over a batch's parts and over shared parameters."""

    def __init__(self, problem: LiftedProblem, batch: Batch) -> None:
        self._problem, self._weights = problem, batch.weights
        self._scale = 1.0 / problem.peers.samples(len(batch))
        self._sums: dict[int, dict[str, Tensor]] = {}

    def pull(self, layer: int, pull: PullBack, E: Tensor, rows: slice, inputs: bool) -> Inputs:
        """J_xᵀ E of one part of the batch, None without `inputs`; adds its gradient to the sums of those who own it."""
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

    def of(self, layer: int) -> dict[str, Tensor]:
        """The gradient in the parameters that a term owns; empty where it has none."""
        return self._sums.pop(layer, {})


def joined(signals: list[Signal]) -> Tensor:
    """E of the whole batch, from its parts."""
    return signals[0].E if len(signals) == 1 else torch.cat([signal.E for signal in signals])


def left_of(layer: Layer, z: Tensor, signals: list[Signal], H: Tensor) -> Tensor:
    """E for the pre-activation z - (ν/λ)H."""
    found = [layer.activate(_minus(z[s.rows], H[s.rows], s.nudge)).sub(s.target).div_(s.nudge) for s in signals]
    return found[0] if len(found) == 1 else torch.cat(found)


def _minus(z: Tensor, g: Tensor, nudge: Tensor | float) -> Tensor:
    """z - νg."""
    return torch.addcmul(z, g, nudge, value=-1.0) if isinstance(nudge, Tensor) else torch.sub(z, g, alpha=nudge)


def nudged(problem: LiftedProblem, layer: int, z: Tensor, pulled: Tensor, nudge: Tensor) -> Tensor:
    """x_l⁺."""
    own, penalty = problem.network[layer], problem.penalties.get(layer)
    v = _minus(z, pulled, nudge)
    if penalty is None:
        return own.activate(v)
    return own.restore(composite_prox(own.activation, penalty, own.arrange(v), 1.0, nudge))


def root_mean_squares(values: list[Tensor], weights: Tensor | None, peers: Peers) -> list[Tensor]:
    """Root mean squares () over all entries, also those of peers, samples counting by their weights."""
    if weights is not None:
        root = weights.sqrt()
        values = [value * root.view(-1, *[1] * (value.ndim - 1)) for value in values]
    norms = list(torch._foreach_norm(values))
    if peers.count == 1:
        counts = [value.numel() for value in values]
    else:
        counts = [peers.samples(len(value)) * math.prod(value.shape[1:]) for value in values]
        norms = [values[0].new_full((), norm) for norm in peers.norms_of(*map(float, norms))]
    torch._foreach_div_(norms, [math.sqrt(count) for count in counts])
    return norms
