"""The rule by which layers move: from their inputs, signals and gradients to new parameters.

`apply_rule` is the one function that the optimiser calls.  It knows nothing of hooks, groups or scalers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.maps import Convolution
from lifted_bregman.optim._ranks import Ranks
from lifted_bregman.solvers.gram import GramSweep
from lifted_bregman.solvers.gram.length import (
    add_squares,
    distance_squared,
    further,
    inputs_of_unit,
    root_mean_square,
    unit_lengths,
)
from lifted_bregman.solvers.gram.move import (
    AnyFailed,
    Metric,
    Move,
    embedding_move,
    gradient_move,
    patch_move,
    plain_move,
    sample_move,
    stacked_metrics,
    weight_move,
)
from lifted_bregman.solvers.gram.rows import Rows, block_size
from lifted_bregman.solvers.gram.schedule import average_share, from_average, to_average, updates_distance

PATCHES = 512  # rows of a convolution's inputs that its metric is computed from, at most


@dataclass(frozen=True, eq=False)
class Seen:
    """What hooks saw of a layer since the last step, on this rank."""

    kind: str
    """"dense", "convolution" or "embedding"."""
    x: Tensor
    """Inputs, (samples, ...)."""
    E: Tensor
    """The gradients of the samples' losses in the outputs, (samples, ...); (rows, units) of a dense layer."""
    rows: int
    """m on all ranks: rows of a dense layer, entries looked up, or samples times positions of a convolution."""
    samples: int
    """Samples on all ranks."""
    square: Tensor
    """Σ z² over the outputs of all ranks, ()."""
    residual: Tensor
    """Σ E² of all ranks, ()."""
    entries: int
    """How many numbers z has on all ranks."""
    output: bool
    """Whether it is the layer that was called last."""

    def size(self) -> Tensor:
        """Root mean square of z, to which the output layer adds that of E."""
        size = (self.square / self.entries).sqrt_()
        return size + (self.residual / self.entries).sqrt_() if self.output else size


@dataclass(frozen=True, eq=False)
class LayerStep:
    """All that a step of one layer needs."""

    parameters: dict[str, Tensor]
    """Those with a gradient, by name; they are changed in place."""
    gradient: dict[str, Tensor]
    """J_Θᵀ E/samples of all ranks, by name; empty for a dense layer, whose move comes from its rows and signals."""
    seen: Seen | None
    """None where the layer has no rule but its gradient."""
    convolution: Convolution | None
    lr: float
    """The factor of the step."""
    state: dict[str, Any]
    """What the rule remembers of this layer: tensors, or dicts of tensors by name."""


@dataclass
class RunState:
    """What the rule remembers of all layers together."""

    steps: int
    """k."""
    distance: Tensor
    """r_k, ()."""
    fallbacks: Any
    """Linear systems that a gradient step replaced."""


def apply_rule(
    settings: GramSweep, layers: Sequence[LayerStep], run: RunState, total_steps: int | None, ranks: Ranks
) -> None:
    """One step of every layer; `run` is updated first, so that run.steps is k >= 1.

    total_steps  K, the steps of the whole run, for rules with a schedule that ends with it; this rule has none
    """
    run.steps += 1
    for layer in layers:
        _begin(settings, layer)
    # r_k² = max mean_l ‖V_l - V_l⁰‖²/m_l
    if updates_distance(run.steps):
        squares = [distance_squared(_fast(layer), layer.state["origin"]) for layer in layers]
        run.distance = further(run.distance, torch.stack(squares), len(layers))
    systems = _systems(settings, layers, ranks)
    for layer in layers:
        # Δ from A and E
        move = _move(settings, layer, systems, ranks)
        if move.fallback is not None:
            run.fallbacks = run.fallbacks + move.fallback
        # r_k/√(n Σ s_j), at most κ of the size of z, or of the parameters
        theta = list(layer.parameters.values())
        rate = run.distance / math.sqrt(inputs_of_unit(theta))
        size = layer.seen.size() if layer.seen is not None else root_mean_square(theta) + rate
        sums = layer.state.setdefault("squares", {})
        add_squares(sums, move.squares)
        lengths = unit_lengths(sums, move.change, rate, size * settings.trust)
        # V ← V - Δ, and Θ between V and its average
        _take(settings, layer, move, {name: f * layer.lr for name, f in lengths.items()}, run.steps)


def _begin(settings: GramSweep, layer: LayerStep) -> None:
    """V⁰ and V of parameters that move for the first time."""
    for name in ("origin", "fast") if settings.average else ("origin",):
        entries = layer.state.setdefault(name, {})
        entries |= {key: p.clone() for key, p in layer.parameters.items() if key not in entries}


def _fast(layer: LayerStep) -> dict[str, Tensor]:
    """V; without an average it is Θ.  Parameters without a gradient have not moved."""
    now: Mapping[str, Tensor] = layer.state.get("fast", layer.parameters)
    return {name: now.get(name, start) for name, start in layer.state["origin"].items()}


def _systems(
    settings: GramSweep, layers: Sequence[LayerStep], ranks: Ranks
) -> dict[LayerStep, tuple[Rows, Metric | None]]:
    """The rows of dense layers, and the metrics of those in sample space; equal ones are solved together."""
    rows: dict[LayerStep, Rows] = {}
    in_samples: dict[LayerStep, tuple[Rows, int, AnyFailed]] = {}
    for layer in layers:
        if layer.seen is None or layer.seen.kind != "dense":
            continue
        seen, trained = layer.seen, layer.parameters
        X = seen.x.reshape(-1, seen.x.shape[-1])
        block = 0 if math.isinf(settings.damping) else block_size(seen.rows, X.shape[1], settings.block)
        X = ranks.gather(X) if block else X
        rows[layer] = Rows.of(X, weight="weight" in trained, bias="bias" in trained, total=seen.rows)
        if block:
            in_samples[layer] = rows[layer], block, None
    metrics = stacked_metrics(in_samples, settings.damping)
    return {layer: (own, metrics.get(layer)) for layer, own in rows.items()}


def _move(
    settings: GramSweep, layer: LayerStep, systems: Mapping[LayerStep, tuple[Rows, Metric | None]], ranks: Ranks
) -> Move:
    """Δ of one layer."""
    seen, gradient, all_sum = layer.seen, layer.gradient, ranks.all_sum
    if seen is None:
        return gradient_move(gradient)
    if seen.kind == "dense":
        rows, metric = systems[layer]
        if math.isinf(settings.damping):
            return plain_move(rows, seen.E, all_sum)
        if metric is not None:
            return sample_move(rows, metric, ranks.gather(seen.E))
        return weight_move(rows, seen.E, settings.narrow_damping, all_sum=all_sum)
    if seen.kind == "embedding":
        g = gradient["weight"] * (seen.samples / seen.rows)
        counts = torch.bincount(seen.x.flatten(), minlength=len(g)).to(g.dtype)
        all_sum(counts)
        return embedding_move(g, counts, seen.rows, settings.narrow_damping)
    f = layer.convolution
    assert f is not None
    squares = seen.E.square().transpose(0, 1).flatten(1).sum(1)
    all_sum(squares)
    A = f.some_rows(ranks.gather(seen.x), PATCHES)
    return patch_move(A, f.packed(gradient), squares, seen.rows, settings.narrow_damping, f.unpacked)


def _take(settings: GramSweep, layer: LayerStep, move: Move, lengths: Mapping[str, Tensor], k: int) -> None:
    theta, beta = layer.parameters, settings.average
    if beta == 0.0:
        move.subtract(theta, lengths)
        return
    V = {name: layer.state["fast"][name] for name in theta}
    values, fast = list(theta.values()), list(V.values())
    to_average(values, fast, beta)
    move.subtract(V, lengths)
    from_average(values, fast, beta, average_share(k, settings.power))
