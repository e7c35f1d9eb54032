"""The moves of all layers of one step, which `GramSweep` and `lb.optim.Gram` share.

`Moves` is given the inputs A and signals E of one layer after the other, or a gradient, and then moves all layers
together by the formulas of `rule`: equal matrices are factorised in one call, and elementwise operations take the lists
of all layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lifted_bregman._autocast import full_precision
from lifted_bregman.maps import Convolution, Dense
from lifted_bregman.problem.shard import Shard
from lifted_bregman.solvers._packing import design, unpacked
from lifted_bregman.solvers.gram import rule

PATCHES = 512
"""Rows of a convolution's inputs that its Gram matrix is computed from, at most."""
LARGEST_BLOCK = 256
"""Rows of a system in sample space, at most; a larger batch is cut into blocks whose directions are averaged."""


class Settings(Protocol):
    """The settings of the rule; `GramSweep` explains them."""

    @property
    def step_size(self) -> float: ...
    @property
    def damping(self) -> float: ...
    @property
    def trust(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def total_steps(self) -> float | None: ...
    @property
    def epochs(self) -> float | None: ...


class Progress(Protocol):
    """How far a run has come."""

    steps: int
    """k, the steps so far."""
    updates: int
    """How often the Gram matrices were updated."""
    inverted: int
    """The step that computed the metrics last."""


def is_wide(f: Dense) -> bool:
    """Whether a dense layer has the metric of the batch alone, in sample space."""
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
    """By what share of their size parameters with more than one dimension shrink before the move."""
    G: Tensor | None = None
    """The direction; None until the metrics are known."""
    rows: tuple[Tensor, Tensor, int] | None = None
    """A, E and the rows m of all ranks, from which G is computed; None where G is given."""
    by_unit: bool = False
    """Whether there is one second moment for each row of G."""
    limited: bool = True
    """Whether κ/L ‖Θ‖/‖U‖ limits the length."""
    prox: Callable[[Tensor], Mapping[str, Tensor]] | None = None
    """Step size ↦ the new parameters, from those that have moved: the proximal map of a penalty."""


class Moves:
    """One step: counts it, takes in the layers, and moves them in `finish`.

    settings  of the rule
    progress  is updated
    layers    L, the layers of the whole network that have a weight
    shard     adds up sums over rows, and joins rows, where ranks share the batch
    """

    def __init__(self, settings: Settings, progress: Progress, layers: int, shard: Shard) -> None:
        k = progress.steps = progress.steps + 1
        self.k, self._settings, self._shard = k, settings, shard
        self._inverting = rule.inverts(k, progress.inverted)
        self.updating = updates_metrics(k, progress.inverted)
        """Whether this step updates the Gram matrices."""
        progress.inverted = k if self._inverting else progress.inverted
        progress.updates += self.updating
        self._updates = progress.updates
        # s(k/K) κ/L and s(k/K) c/√K, without the √n of each layer
        self._limit = rule.schedule(k, settings.total_steps) * settings.trust / min(max(1, layers), rule.MANY)
        self._layers = layers
        self._rate = rule.rate(k, settings.total_steps, 1, settings.step_size) * rule.correction(k)
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
        move = _Move(_detached(f), memory, lambda U: unpacked(f, U), _columns(f), share, decay, by_unit=wide)
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
        """One parameter along its gradient g; gains and biases move by a tenth of the rate."""
        n = g[0].numel() if g.ndim > 1 else 1
        rate, decay = share * (1.0 if n > 1 else 0.1), self._decay(share, weight_decay)
        move = _Move({name: p.detach()}, memory, lambda U: {name: U}, n, rate, decay, g, limited=False)
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
            found, failed = rule.metrics([memory[name] for memory, name, _ in self._grams], self._settings.damping)
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
            elif move.limited and not move.by_unit:
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
        # Θ ← (1 - 2 δ s e/K) Θ
        shrinking = [(p, 1.0 - move.decay) for move in moves if move.decay for p in move.theta.values() if p.ndim > 1]
        if shrinking:
            torch._foreach_mul_([p for p, _ in shrinking], [factor for _, factor in shrinking])
        # M̂/√V̂
        memories = [move.memory for move in moves]
        rule.remember(memories, [move.G for move in moves if move.G is not None], [move.by_unit for move in moves])
        found = list(zip(moves, rule.moves(memories), strict=True))
        rates = {move: self._rate / math.sqrt(move.inputs) * move.share for move in moves}
        # η c/√n of single parameters
        plain = [(move, U) for move, U in found if not move.limited]
        if plain:
            torch._foreach_mul_([U for _, U in plain], [rates[move] for move, _ in plain])
            torch._foreach_sub_([p for move, _ in plain for p in move.theta.values()], [U for _, U in plain])
        # min( η c/√n, κ/L ‖Θ‖/‖U‖ ) of layers
        layers = [(move, U) for move, U in found if move.limited]
        if not layers:
            return
        theta = [list(move.theta.values()) for move, _ in layers]
        limits = [self._limit * move.share for move, _ in layers]
        scales = [move.memory.get("scale") for move, _ in layers]
        eta = rule.lengths(theta, [U for _, U in layers], [rates[move] for move, _ in layers], limits, scales)
        parameters, parts, steps = [], [], []
        for (move, U), step in zip(layers, eta, strict=True):
            for name, part in move.place(U).items():
                parameters.append(move.theta[name])
                parts.append(part)
                steps.append(step)
        torch._foreach_addcmul_(parameters, parts, steps, value=-1.0)
        for (move, _), step in zip(layers, eta, strict=True):
            if move.prox is not None:
                for name, value in move.prox(rule.prox_step(move.memory, step, self.k)).items():
                    move.theta[name].copy_(value)


def _in_signal_metric(E: Tensor, memory: rule.Memory) -> Tensor:
    return E @ memory["signal_metric"] if "signal_metric" in memory else E


def _detached(f: Dense | Convolution) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in f.parameters.items()}


def _columns(f: Dense) -> int:
    """n, the trained inputs of a unit, its bias included."""
    return sum(p.numel() // len(p) for p in f.parameters.values())


def _packed(gradient: Mapping[str, Tensor]) -> Tensor:
    """The gradient of a dense layer as one matrix (units, n), in the order of `design`."""
    ordered = [gradient[name] for name in ("weight", "bias") if name in gradient]
    return torch.cat([g.view(len(g), -1) for g in ordered], 1)
