"""The updates of all layers in one step, which `GramSweep` and `lb.optim.Gram` share.

The caller gives `Moves` the inputs A and signals E, or the gradient, of one layer after the other.  `finish` then
updates all layers together by the formulas of `rule`.  Matrices of one size are factorised in one batched call, and
elementwise operations take the lists of all layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from lifted_bregman._autocast import full_precision
from lifted_bregman.maps import Convolution, Dense
from lifted_bregman.problem.shard import Shard
from lifted_bregman.solvers._packing import design
from lifted_bregman.solvers.gram import rule

PATCHES = 512
"""Rows of a convolution's inputs that its Gram matrix is computed from, at most."""
LARGEST_BLOCK = 256
"""Rows of a system in sample space, at most; a larger batch is cut into blocks whose directions are averaged."""


class RuleSettings(Protocol):
    """The settings of the rule; `GramSweep` explains them."""

    @property
    def step_size(self) -> float: ...
    @property
    def damping(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def total_steps(self) -> float | None: ...
    @property
    def epochs(self) -> float | None: ...


class StepCounter(Protocol):
    """Counters of a run's steps and metric updates."""

    steps: int
    """k, the steps so far."""
    updates: int
    """How often the Gram matrices were updated."""
    inverted: int
    """The step that computed the metrics last."""


def is_wide(f: Dense) -> bool:
    """Whether a dense layer has more than 256 inputs: its metric is then that of the batch alone, in sample space."""
    return f.module.in_features > rule.WIDEST_INPUTS


def updates_metrics(k: int, inverted: int) -> bool:
    """Whether step k updates the Gram matrices, where `inverted` is the step that computed the metrics last."""
    return rule.inverts(k, inverted) or rule.updates(k)


@dataclass(eq=False)
class _Move:
    """Θ ← Θ - η M̂/√V̂, of one layer or one parameter."""

    theta: Mapping[str, Tensor]
    """The parameters, which are changed in place."""
    memory: rule.Memory
    place: Callable[[Tensor], Mapping[str, Tensor]]
    """A matrix like G ↦ its parts by name, in the shapes of the parameters."""
    inputs: int
    """n, the inputs of a unit."""
    share: float
    """A factor of the rate."""
    decay: float = 0.0
    """The fraction by which parameters with more than one dimension shrink before the step (weight decay)."""
    G: Tensor | None = None
    """The direction; None until the metrics are known."""
    rows: tuple[Tensor, Tensor, int] | None = None
    """A, E and the rows m of all ranks, from which G is computed; None where G is given."""
    by_unit: bool = False
    """Whether there is one second moment for each row of G."""
    metric: bool = True
    """Whether the metrics in the memory act on G."""
    prox: Callable[[Tensor], Mapping[str, Tensor]] | None = None
    """Step size ↦ the new parameters, from those that have moved: the proximal map of a penalty."""


class Moves:
    """One step.  The constructor counts it; `dense`, `convolution`, `plain` and `penalised` collect layers; `finish`
    updates the parameters.

    settings  the settings of the rule
    progress  the counters of the run, which the constructor updates
    layers    L, the layers of the whole network that have a weight
    shard     all-reduces sums over rows and all-gathers rows, where ranks share the batch
    """

    def __init__(self, settings: RuleSettings, progress: StepCounter, layers: int, shard: Shard) -> None:
        k = progress.steps = progress.steps + 1
        self.k, self._settings, self._shard = k, settings, shard
        self._inverting = rule.inverts(k, progress.inverted)
        self.updating = updates_metrics(k, progress.inverted)
        """Whether this step updates the Gram matrices."""
        progress.inverted = k if self._inverting else progress.inverted
        progress.updates += self.updating
        self._updates = progress.updates
        self._layers = layers
        # c s(k/K) / √(K^¼ L), and what makes M/√V a quotient of means
        self._rate = rule.rate(k, settings.total_steps, layers, settings.step_size) * rule.correction(k)
        self._limit = rule.limit(k, settings.total_steps, layers) * rule.correction(k)
        self._moves: list[_Move] = []
        self._grams: list[tuple[rule.Memory, str, Tensor]] = []
        self.failed: list[Tensor] = []
        """How many metrics could not be computed, so that multiples of the identity replaced them, () of int64 each."""

    # The layers

    @full_precision
    def dense(
        self,
        f: Dense,
        memory: rule.Memory,
        x: Tensor | None,
        E: Tensor | None,
        samples: int,
        *,
        output: bool,
        weights: Tensor | None = None,
        gradient: Mapping[str, Tensor] | None = None,
        share: float = 1.0,
        weight_decay: float | None = None,
    ) -> None:
        """A dense layer: P_E (EᵀA/m) P_A, or in sample space.

        x, E      inputs (samples, ..., in) and signals (samples, ..., units) of this rank; None where this step needs
                  only the gradient: a layer that is not wide, in a step that does not update the Gram matrices
        samples   of all ranks
        output    whether it is the output layer, which has P_E = I
        weights   w_i of the samples on this rank
        gradient  EᵀA/m by name, where it is known
        share     a factor of rate and decay
        weight_decay  δ of this layer; None for that of the settings
        """
        wide, shard = is_wide(f), self._shard
        decay = self._decay(share, weight_decay)
        theta = _detached(f)
        move = _Move(theta, memory, partial(_columns, theta), _inputs(theta), share, decay, by_unit=wide)
        self._moves.append(move)
        if gradient is not None and not wide:
            move.G = _packed(gradient)
        if x is None or E is None:
            return
        # A = √w [x 1] and √w E, of all ranks where a system in sample space needs them
        each = 1 if f.flatten else math.prod(x.shape[1:-1])  # rows of a sample
        A, E = design(f, x), E.reshape(-1, E.shape[-1])
        if wide and not shard.whole:
            A, E = shard.all_rows(A, each), shard.all_rows(E, each)
            weights = None if weights is None else shard.all_rows(weights)
        if weights is not None:
            root = weights.sqrt().repeat_interleave(each)[:, None]
            A, E = A * root, E * root
        m = samples * each
        if not wide:
            self._see(memory, "inputs", A, m)
        if not output and E.shape[1] <= rule.WIDEST_SIGNALS:
            self._see(memory, "signals", E, m, whole=wide)
        if move.G is None:
            move.rows = A, E, m

    @full_precision
    def convolution(
        self,
        f: Convolution,
        memory: rule.Memory,
        x: Tensor | None,
        E: Tensor | None,
        gradient: Mapping[str, Tensor],
        *,
        output: bool,
        weights: Tensor | None = None,
        share: float = 1.0,
        weight_decay: float | None = None,
    ) -> None:
        """A convolution, in the metric of some patches and of the signals of all places; arguments as of `dense`.

        x, E      (samples, channels, ...); needed in steps that update the Gram matrices
        gradient  J_Θᵀ E/m of all ranks, by name
        """
        G = f.packed(gradient)
        decay = self._decay(share, weight_decay)
        self._moves.append(_Move(_detached(f), memory, f.unpacked, G.shape[1], share, decay, G))
        if not self.updating:
            return
        assert x is not None and E is not None
        if not self._shard.whole:
            x, E = self._shard.all_rows(x, keep=True), self._shard.all_rows(E)
            weights = None if weights is None else self._shard.all_rows(weights)
        A = f.some_rows(x, PATCHES, weights)
        self._see(memory, "inputs", A, A.shape[-2], whole=True)
        if not output and len(G) <= rule.WIDEST_SIGNALS:
            places = E.transpose(0, 1).flatten(1).t()
            if weights is not None:
                places = places * weights.sqrt().repeat_interleave(math.prod(E.shape[2:]))[:, None]
            self._see(memory, "signals", places, len(places), whole=True)

    def plain(
        self,
        name: str,
        p: Tensor,
        memory: rule.Memory,
        g: Tensor,
        share: float = 1.0,
        weight_decay: float | None = None,
    ) -> None:
        """Collects one parameter without a metric, G = g; gains and biases have a tenth of the step size."""
        n = g[0].numel() if g.ndim > 1 else 1
        rate, decay = share * (1.0 if n > 1 else 0.1), self._decay(share, weight_decay)
        move = _Move({name: p.detach()}, memory, lambda U: {name: U}, n, rate, decay, g, metric=False)
        self._moves.append(move)

    def penalised(
        self,
        theta: Mapping[str, Tensor],
        memory: rule.Memory,
        gradient: Mapping[str, Tensor],
        prox: Callable[[Tensor], Mapping[str, Tensor]],
    ) -> None:
        """prox_{tP}(Θ - η M̂/√V̂), with one V for the layer: t is the step along the gradient that this makes.

        prox  t ↦ prox_{tP}(Θ) by name
        """
        sizes = [g.numel() for g in gradient.values()]

        def place(U: Tensor) -> dict[str, Tensor]:
            parts = zip(gradient, U[0].split(sizes), strict=True)
            return {name: part.view_as(theta[name]) for name, part in parts}

        G = torch.cat([g.reshape(-1) for g in gradient.values()])[None]
        n = max((p[0].numel() for p in theta.values() if p.ndim > 1), default=1)
        self._moves.append(_Move(theta, memory, place, n, 1.0, G=G, by_unit=True, prox=prox))

    def _decay(self, share: float, weight_decay: float | None) -> float:
        given = self._settings.weight_decay if weight_decay is None else weight_decay
        return share * rule.decay(self.k, self._settings.total_steps, self._settings.epochs, given, self._layers)

    def _see(self, memory: rule.Memory, name: str, rows: Tensor, total: int, whole: bool = False) -> None:
        """The Gram matrix of rows, where this step updates it.

        total  rows of all ranks
        whole  whether all these are here
        """
        if not self.updating:
            return
        gram = rows.mT @ rows
        if not whole:
            self._shard.all_sum(gram)
        self._grams.append((memory, name, gram.div_(total)))

    # The step

    @full_precision
    def finish(self) -> None:
        """Updates Gram matrices and metrics, finds all directions, and moves the parameters."""
        # R_A, R_E, and P_A, P_E
        for memory, name, gram in self._grams:
            rule.update_gram(memory, name, gram, self._updates)
        if self._inverting and self._grams:
            grams = [memory[name] for memory, name, _ in self._grams]
            found, failed = rule.metrics(grams, [self._settings.damping] * len(grams))
            self.failed += failed
            for (memory, name, _), P in zip(self._grams, found, strict=True):
                memory[rule.METRICS[name]] = P
        # G
        wide = []
        for move in self._moves:
            if move.rows is not None and move.by_unit:
                wide.append(move)
            elif move.rows is not None:
                A, E, m = move.rows
                move.G = rule.direction(A, E, move.memory, m, self._shard.all_sum)
            elif move.metric and not move.by_unit:
                assert move.G is not None
                move.G = rule.in_metric(move.G, move.memory)
        rows = [(move.rows[0], _in_signal_metric(move.rows[1], move.memory)) for move in wide if move.rows is not None]
        directions, failed = rule.sample_directions(rows, self._settings.damping, LARGEST_BLOCK)
        self.failed += failed
        for move, G in zip(wide, directions, strict=True):
            move.G = G
        # Θ ← Θ - η M̂/√V̂, device by device
        groups: dict[tuple[torch.device, torch.dtype], list[_Move]] = {}
        for move in self._moves:
            assert move.G is not None
            groups.setdefault((move.G.device, move.G.dtype), []).append(move)
        for moves in groups.values():
            self._take(moves)

    def _take(self, moves: list[_Move]) -> None:
        # Θ ← (1 - 2 δ √e s/K) Θ, for several steps at once
        if not self.k % rule.DECAY_EVERY:
            for move in moves:
                weights = [p for p in move.theta.values() if p.ndim > 1] if move.decay else []
                for p in weights:
                    p.mul_(max(0.0, 1.0 - rule.DECAY_EVERY * move.decay))
        # U = M̂/√V̂
        memories = [move.memory for move in moves]
        rule.remember(memories, [move.G for move in moves if move.G is not None], [move.by_unit for move in moves])
        found = rule.moves(memories)
        # Θ ← Θ - η U
        largest = [max(move.theta.values(), key=torch.numel) for move in moves]
        inputs, rates = [move.inputs for move in moves], [self._rate * move.share for move in moves]
        limits = [self._limit * move.share for move in moves]
        eta = rule.lengths(largest, inputs, rates, limits, [move.memory.get("scale") for move in moves])
        parameters, parts, steps = [], [], []
        for move, U, step in zip(moves, found, eta, strict=True):
            for name, part in move.place(U).items():
                parameters.append(move.theta[name])
                parts.append(part)
                steps.append(step)
        torch._foreach_addcmul_(parameters, parts, steps, value=-1.0)
        for move, step in zip(moves, eta, strict=True):
            if move.prox is not None:
                for name, value in move.prox(rule.prox_step(move.memory, step, self.k)).items():
                    move.theta[name].copy_(value)


def _in_signal_metric(E: Tensor, memory: rule.Memory) -> Tensor:
    return E @ memory["signal_metric"] if "signal_metric" in memory else E


def _detached(f: Dense | Convolution) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in f.parameters.items()}


def _inputs(theta: Mapping[str, Tensor]) -> int:
    """n, the trained inputs of a unit, its bias included."""
    return sum(1 if p.ndim == 1 else p.shape[1] for p in theta.values())


def _columns(theta: Mapping[str, Tensor], U: Tensor) -> Mapping[str, Tensor]:
    """The columns of U (units, n) that belong to weight and bias."""
    if len(theta) == 2:
        return {"weight": U[:, :-1], "bias": U[:, -1]}
    return {name: U if p.ndim > 1 else U[:, 0] for name, p in theta.items()}


def _packed(gradient: Mapping[str, Tensor]) -> Tensor:
    """The gradient of a dense layer as one matrix (units, n), in the order of `design`."""
    ordered = [gradient[name] for name in ("weight", "bias") if name in gradient]
    return torch.cat([g.view(len(g), -1) for g in ordered], 1)
