"""What goes through the layers in a `GramSweep`: the forward pass, and the error signals that come back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lifted_bregman.graph import Layer
from lifted_bregman.problem import LiftedProblem, Peers
from lifted_bregman.problem.blocks import below
from lifted_bregman.problem.composite import composite_prox


@dataclass(frozen=True, eq=False)
class Signal:
    """E_l for some rows of the batch, with the x_l⁺ and ν_l/λ_l that it comes from; for the output y and 1/λ_L."""

    rows: slice
    E: Tensor
    target: Tensor
    nudge: float


def forward(problem: LiftedProblem, X: Tensor, parts: list[slice]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """x_l of one's own layers and of the one below them, and z_l, part after part."""
    span, network = problem.span, problem.network
    lowest = below(span.layers[0])
    x: dict[int, list[Tensor]] = {layer: [] for layer in (lowest, *span.layers)}
    z: dict[int, list[Tensor]] = {layer: [] for layer in span.layers}
    shape = problem.shapes(X)[below(lowest)] if span.borrowed else ()
    for rows in parts:
        x[lowest].append(span.from_below(X.new_empty((len(X[rows]), *shape))) if span.borrowed else X[rows])
        for layer in span.layers:
            z[layer].append(network[layer].map.apply(x[below(layer)][-1]))
            x[layer].append(network[layer].activate(z[layer][-1]))
        for layer in span.lent:
            span.send_above(x[layer][-1])
    if not span.borrowed:
        x[lowest] = [X]  # which peers know
    return _joined(x), _joined(z)


def _joined(parts: Mapping[int, list[Tensor]]) -> dict[int, Tensor]:
    return {layer: rows[0] if len(rows) == 1 else torch.cat(rows) for layer, rows in parts.items()}


def left_of(layer: Layer, z: Tensor, signals: list[Signal], H: Tensor) -> Tensor:
    """E for the pre-activation z - (ν/λ)H."""
    found = [
        layer.activate(torch.sub(z[s.rows], H[s.rows], alpha=s.nudge)).sub(s.target).div_(s.nudge) for s in signals
    ]
    return found[0] if len(found) == 1 else torch.cat(found)


def nudged(problem: LiftedProblem, layer: int, z: Tensor, pulled: Tensor, nudge: float) -> Tensor:
    """x_l⁺."""
    own, penalty = problem.network[layer], problem.penalties.get(layer)
    v = torch.sub(z, pulled, alpha=nudge)
    if penalty is None:
        return own.activate(v)
    return own.restore(composite_prox(own.activation, penalty, own.arrange(v), 1.0, nudge))


def root_mean_squares(values: list[Tensor], weights: Tensor | None, peers: Peers) -> list[float]:
    """Root mean squares over all entries, also those of peers, samples counting by their weights."""
    if weights is not None:
        root = weights.sqrt()
        values = [value * root.view(-1, *[1] * (value.ndim - 1)) for value in values]
    norms = peers.norms_of(*map(float, torch._foreach_norm(values)))
    if peers.count == 1:
        counts = [value.numel() for value in values]
    else:
        counts = [peers.samples(len(value)) * math.prod(value.shape[1:]) for value in values]
    return [norm / math.sqrt(count) for norm, count in zip(norms, counts, strict=True)]
