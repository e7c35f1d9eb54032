"""One top-down sweep for each batch, in the metric of the inputs, around an average: what `fit` does by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman._arguments import positive, require_count
from lifted_bregman._autocast import full_precision
from lifted_bregman._no_graph import no_graph
from lifted_bregman.activations import Identity
from lifted_bregman.errors import SettingError
from lifted_bregman.maps import Convolution, Dense, LayerMap
from lifted_bregman.maps.base import Inputs
from lifted_bregman.maps.traced import core_of
from lifted_bregman.penalties import Nuclear, Penalty
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.solvers._anchor import Anchor, copied, live
from lifted_bregman.solvers._gram_moves import (
    Design,
    GradientMove,
    Metric,
    Move,
    PatchMove,
    by_row,
    dense_move,
    design,
    joint_root_mean_square,
    metrics,
)
from lifted_bregman.solvers._gram_signals import (
    Forward,
    Gradients,
    Signal,
    forward,
    joined,
    left_of,
    nudged,
    root_mean_squares,
)
from lifted_bregman.solvers._interface import Batch, Solver, SolverState
from lifted_bregman.solvers._micro_batches import micro_batches

_LARGEST_NUDGE = 0.3  # of the size of z
_TINY = 1e-30  # added to squared sizes that are divided by


@dataclass
class GramSweepState(SolverState):
    """The fast iterate, where it began, the sizes of the units' moves, and the systems that could not be solved."""

    fast: Anchor = field(default_factory=dict)
    """V, of which Θ is nearly the average; empty where there is no average, and V is Θ."""
    origin: Anchor = field(default_factory=dict)
    """V⁰."""
    distance: Tensor = field(default_factory=lambda: torch.zeros(()))
    """r_k, the farthest that units were seen from V⁰: a tensor () beside the parameters."""
    units: Anchor = field(default_factory=dict)
    """The sums of the mean squares of the units' moves."""
    fallbacks: Tensor | int = 0
    """Moves in which a gradient step replaced the solution of a linear system: a tensor () of int64."""


@dataclass(frozen=True)
class GramSweep(Solver[GramSweepState]):
    """One implicit move of each layer for each batch, in the metric of its inputs, around an average of the past.

    From the forward pass z_l, x_l = σ_l(z_l) the error signals go down, E_L = σ_L(z_L) - y and

        x_l⁺ = argmin_x (λ_l/ν_l) B_l(x, z_l) + R_l(x) + <x, J_xᵀ E_{l+1}>          E_l = (λ_l/ν_l) (σ_l(z_l) - x_l⁺) ,

    the minimiser in x_l of a lifted energy whose lower layers weigh 1/ν_l times more, with the term of the layer above
    replaced by its tangent: x_l⁺ = prox_{Ψ_l + (ν_l/λ_l) R_l}( z_l - (ν_l/λ_l) J_xᵀ E_{l+1} ).  ν → 0 gives
    back-propagation; a larger ν also tells units that are switched off which way to go.  No activation is
    differentiated.

    A dense layer moves by majorise-minimise steps of its implicit problem, in sample space where it has more inputs
    than `block`.  The first is Δ = (AᵀA/m + tI)⁻¹ AᵀE_l/m with A = [x_{l-1} 1].  A convolution moves by the first step,
    its rows A being patches; AᵀA/m is the mean over some of them.  Other maps move along the gradient.  So do shared
    parameters, and parameters with a penalty, all of a layer with one length, which is the step of the penalty's
    proximal map.

    Each unit j gets a length that follows from how far units have come and from all of its moves so far,

        r_k Δ_j/√(n Σ_{i<=k} s_j^i)          r_k² = max_{i<=k} mean_l ‖V_l^i - V_l⁰‖²/m_l   and at least r_0² ,

    n being its inputs and s_j the mean squares of its Δ_j.  In sample space a bound on them stands for s_j, C_jᵀE_j/mn,
    divided by the number of blocks as if their moves were independent.  This asks for no rate: a first guess r_0 that
    is too small grows within some steps (for gradient descent: Ivgi et al. 2023).  The distance is updated in the first
    15 steps, then in every 2nd, 4th, 8th, ... as their number doubles.

    A whole layer is shortened where it could change z_l by more than κ of its size; ‖E_l‖ bounds the change.  The size
    is the root mean square of z_l, and of the output layer that of z_L plus that of E_L: an output near 0 could hardly
    move otherwise.

    These steps move V.  Θ is where the next signals are read, between V and the average Θ̄ of V's path (weights ~ k^r):

        V ← V - Δ     Θ̄ ← (1 - c_k) Θ̄ + c_k V     Θ ← (1 - β) V + β Θ̄          c_k = (1 + r)/(k + r)

    so that the batches' noise averages out without a schedule that has to know the end (Defazio et al. 2024).  Θ̄ is
    not kept: it is Θ + (Θ - V)(1 - β)/β.  Weights with a penalty get the zeros of V at the very end (of `Nuclear`, its
    rank), because an average has none: the last row of the history is from before.

    No number of a step is read by the host: sizes, nudges, lengths and the metrics stay on the device as tensors ().
    An exception are samples or layers that are shared with other processes, and maps of one's own that read numbers.

    A step costs the three products of a weight's size that back-propagation needs, and two tensors of that size are
    kept besides Θ.  Convergence is observed, not proven.

    step_size        r_0 > 0, how far the units are thought to move at least; the norm of their weights at the start is
                     about 1
    trust            κ > 0, about the largest relative change of a layer's pre-activations in a step (the moves of
                     blocks count as independent), or of its parameters where it has no metric
    damping          τ > 0, t over the mean eigenvalue of A Aᵀ/m, or of AᵀA/m; the larger, the nearer to the gradient,
                     and inf is the gradient
    narrow_damping   τ > 0 of convolutions, and of layers with no more than `block` inputs, whose AᵀA/m a small batch
                     knows badly
    nudge            ν > 0, shared by the variables on the longest path, in a chain ν_l = ν/(L-1); less where it would
                     move z_l by 0.3 of its size
    penalised_nudge  ν_l > 0 of layers with a penalty on x_l; a small one keeps their zeros
    average          β in [0, 1), the share of the average in Θ
    power            r >= 0; the larger, the sooner the average forgets
    inner_steps      majorise-minimise steps for each layer and batch, >= 1
    micro_batches    M >= 1, the parts of a batch that follow each other through the layers, so that processes which
                     share these work at the same time; with several of them ν_l is shortened for each by itself
    block            >= 1; batches are cut into blocks of at most so many samples, and half as many as a layer has
                     inputs, whose moves are averaged; layers with no more inputs than that take the metric of the whole
                     batch
    """

    minibatch: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    autocast: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = ("fallbacks",)

    step_size: float = 0.3
    trust: float = 0.15
    damping: float = 0.15
    narrow_damping: float = 3.0
    nudge: float = 0.5
    penalised_nudge: float = 0.001
    average: float = 0.97
    power: float = 2.0
    inner_steps: int = 1
    block: int = 100
    micro_batches: int = 1

    @property
    def data_parallel(self) -> bool:  # type: ignore[override]
        """Where a batch is in one part."""
        return self.micro_batches == 1

    @property
    def layer_parallel(self) -> bool:
        """Always."""
        return True

    def __post_init__(self) -> None:
        for name in ("step_size", "trust", "narrow_damping", "nudge", "penalised_nudge"):
            positive(getattr(self, name), name)
        if not self.damping > 0.0:
            raise SettingError(f"damping is {self.damping!r}; it must be a number above 0, or inf.")
        require_count(self.block, "block")
        if not 0.0 <= self.average < 1.0:
            raise SettingError(f"average is {self.average!r}; it must be in [0, 1).")
        require_count(self.inner_steps, "inner_steps")
        require_count(self.micro_batches, "micro_batches")
        if not 0.0 <= self.power < math.inf:
            raise SettingError(f"power is {self.power!r}; it must be a number of at least 0.")

    def init(self, problem: LiftedProblem, batch: Batch) -> GramSweepState:
        fast = copied(problem) if self.average else {}
        like = next(problem.model.parameters())
        return GramSweepState(
            fast=fast,
            origin=copied(problem),
            distance=like.new_full((), self.step_size),
            fallbacks=like.new_zeros((), dtype=torch.int64),
        )

    def attach(self, problem: LiftedProblem, state: GramSweepState) -> None:
        # Earlier versions have stored a number.
        if not isinstance(state.distance, Tensor):
            state.distance = next(problem.model.parameters()).new_full((), state.distance)

    @no_graph
    def step(self, problem: LiftedProblem, state: GramSweepState, batch: Batch) -> GramSweepState:
        state.steps += 1
        _look(problem, state)
        span, top, hidden = problem.span, problem.depth, hidden_layers(problem.depth)
        implicit = [layer for layer in span.layers if _is_implicit(problem, layer)]
        parts = micro_batches(len(batch), self.micro_batches)
        passed = forward(problem, batch.X, parts, set(span.layers) - set(implicit))
        x, z = passed.x, passed.z
        measured = root_mean_squares(list(z.values()), batch.weights, problem.peers)
        sizes = dict(zip(z, measured, strict=True))
        # How far z_l may be moved by a nudge, above 0.
        reach = torch._foreach_mul(measured, _LARGEST_NUDGE)
        torch._foreach_add_(reach, _TINY)
        reaches = dict(zip(z, reach, strict=True))
        if top in span.layers:
            nudge = 1.0 / problem.weight(top)
            error = torch.sub(x[top], batch.Y).div_(nudge)
            (residual,) = root_mean_squares([error], batch.weights, problem.peers)
            state.metrics["output_residual"] = residual
            sizes[top] = sizes[top] + residual
        limits = dict(zip(sizes, torch._foreach_mul(list(sizes.values()), self.trust), strict=True))
        failed: list[Tensor] = []
        below_waits = bool(span.borrowed)
        designs, factors = ({}, {}) if below_waits else self._metrics(problem, implicit, passed, batch)
        signals: dict[int, list[Signal]] = {layer: [] for layer in span.layers}
        gradients = Gradients(problem, batch)

        def move(layer: int) -> None:
            own = signals.pop(layer)
            if layer in designs:
                made = self._implicit_move(problem, layer, z[layer], own, designs[layer], factors.get(layer))
            elif not (gradient := gradients.of(layer)):
                return
            elif not math.isinf(self.damping) and _is_convolution(problem, layer):
                made = self._patch_move(problem, layer, passed.read(problem, layer), own, gradient, batch.weights)
            else:
                made = GradientMove(gradient, problem.has_parameter_prox(layer), problem.peers)
            if made.fallback is not None:
                failed.append(made.fallback)
            self._take(problem, state, layer, made, limits[layer])

        for number, rows in enumerate(parts):
            pulled: dict[int, Tensor] = {}  # Σ_t J_xᵀ E_t of each variable, over the terms t that were visited
            for layer in reversed(span.layers):
                # E_l, from what the terms that read x_l have sent down
                if layer == top:
                    signal = Signal(rows, error[rows], batch.Y[rows], nudge)
                else:
                    g = span.from_above(x[layer][rows]) if layer in span.lent else pulled.pop(layer)
                    signal = self._signal(problem, layer, rows, x, z, g, reaches[layer], batch)
                signals[layer].append(signal)
                # J_xᵀ E_l for the variables that f_l reads, with Θ_l before its move
                wanted = [v for v in problem.links.inputs[layer] if v in hidden]
                if layer not in implicit:
                    below = gradients.pull(layer, passed.pulls[layer][number], signal.E, rows, bool(wanted))
                elif wanted:
                    below = _core(problem, layer).pull_back_input(passed.read(problem, layer)[rows], signal.E)
                else:
                    below = None
                if wanted and layer in passed.heads:
                    below, _ = passed.heads[layer][number](below)
                _add_up(pulled, problem.links.inputs[layer], below, wanted)
                if rows is parts[-1] and not below_waits:
                    move(layer)
            for layer in span.borrowed:
                span.send_below(pulled[layer])
        if below_waits:
            designs, factors = self._metrics(problem, implicit, passed, batch)
            for layer in reversed(span.layers):
                move(layer)
        span.settle()
        if failed:
            state.fallbacks = state.fallbacks + torch.stack(failed).sum()
        self._count(problem, state, len(designs))
        return state

    @no_graph
    @full_precision
    def finish(self, problem: LiftedProblem, state: GramSweepState) -> None:
        # Weights with a penalty get the zeros that its proximal map has made in V.
        if not (problem.parameter_penalties and state.fast):
            return
        for layer in problem.span.layers:
            f = problem.network[layer].map
            for name, V in state.fast[layer].items() if layer in problem.parameter_penalties else ():
                if V.ndim > 1:
                    W, penalty = f.parameters[name], problem.parameter_penalties[layer]
                    W.copy_(f.from_unit_rows(_with_zeros(f.unit_rows(W), f.unit_rows(V), penalty), W))
        span, network = problem.span, problem.network
        span.spread({l: [p.detach() for p in network[l].map.parameters.values()] for l in layers(problem.depth)})

    def _signal(
        self,
        problem: LiftedProblem,
        layer: int,
        rows: slice,
        x: Mapping[int, Tensor],
        z: Mapping[int, Tensor],
        pulled: Tensor,
        reach: Tensor,
        batch: Batch,
    ) -> Signal:
        """E_l from J_xᵀ E_{l+1}, for some rows of the batch."""
        weights = None if batch.weights is None else batch.weights[rows]
        nudge = self._nudge(problem, layer, reach, *root_mean_squares([pulled], weights, problem.peers))
        target = nudged(problem, layer, z[layer][rows], pulled, nudge)
        if isinstance(problem.network[layer].activation, Identity) and layer not in problem.penalties:
            return Signal(rows, pulled, target, nudge)  # what the quotient is, without its rounding
        return Signal(rows, torch.sub(x[layer][rows], target).div_(nudge), target, nudge)

    @full_precision
    def _implicit_move(
        self,
        problem: LiftedProblem,
        layer: int,
        z: Tensor,
        signals: list[Signal],
        own: Design,
        metric: Metric | None,
    ) -> Move:
        """Δ_l of a dense layer from the signals of the whole batch."""
        term, f = problem.network[layer], _core(problem, layer)
        assert isinstance(f, Dense)
        E = joined(signals)
        damping = self.damping if metric is not None or math.isinf(self.damping) else self.narrow_damping
        left = partial(left_of, term, z, signals)
        return dense_move(f, own, metric, E, damping, left, self.inner_steps)

    @full_precision
    def _patch_move(
        self,
        problem: LiftedProblem,
        layer: int,
        x: Tensor,
        signals: list[Signal],
        gradient: Mapping[str, Tensor],
        weights: Tensor | None,
    ) -> Move:
        """Δ_l of a convolution, in the metric of some patches of its inputs."""
        f, peers = _core(problem, layer), problem.peers
        assert isinstance(f, Convolution)
        E = joined(signals)
        squares = E.square() if weights is None else E.square() * by_row(weights, E)
        squares = squares.transpose(0, 1).flatten(1).sum(1)
        peers.total(squares, *gradient.values())
        places = peers.samples(len(x)) * math.prod(E.shape[2:])
        x, weights = peers.gather(x, keep=True), None if weights is None else peers.gather(weights)
        return PatchMove(f, gradient, x, squares, places, self.narrow_damping, weights)

    def _count(self, problem: LiftedProblem, state: GramSweepState, designs: int) -> None:
        """Adds a step of one's own layers to the counters of work."""
        own, hidden, work = len(problem.span.layers), len(problem.span.hidden), problem.work
        work.forward_maps += own
        work.prox_maps += own + hidden + (self.inner_steps - 1) * designs
        work.adjoints += sum(layer > 1 for layer in problem.span.layers)
        work.parameter_gradients += own
        state.metrics["fallbacks"] = state.fallbacks

    @full_precision
    def _metrics(
        self, problem: LiftedProblem, implicit: list[int], passed: Forward, batch: Batch
    ) -> tuple[dict[int, Design], dict[int, Metric]]:
        """The designs of the layers that move implicitly, and the metrics of those in sample space."""
        designs: dict[int, Design] = {}
        alike: dict[tuple[int, ...], list[int]] = {}
        metric = not math.isinf(self.damping)
        for layer in implicit:
            f = _core(problem, layer)
            assert isinstance(f, Dense)
            own = design(f, passed.read(problem, layer), batch.weights, self.block, problem.peers, metric)
            designs[layer] = own
            if own.block and metric:
                alike.setdefault(own.key, []).append(layer)
        factors: dict[int, Metric] = {}
        for group in alike.values():
            made = metrics([designs[layer] for layer in group], self.damping)
            factors.update(zip(group, made, strict=True))
        return designs, factors

    def _nudge(self, problem: LiftedProblem, layer: int, reach: Tensor, pulled: Tensor) -> Tensor:
        """ν_l/λ_l, where z_l moves by `reach` > 0 at most; `pulled` is the size of J_xᵀ E_{l+1}."""
        shared = self.nudge / problem.links.longest_path
        nudge = (self.penalised_nudge if layer in problem.penalties else shared) / problem.weight(layer)
        # Above 0 also where a signal has overflowed, which the loop notices after the step.
        return (reach / pulled).clamp_(_TINY, nudge)

    @full_precision
    def _take(self, problem: LiftedProblem, state: GramSweepState, layer: int, made: Move, limit: Tensor) -> None:
        """Gives the units their lengths, and moves V and Θ of a layer; z_l changes by `limit` at most."""
        theta = {name: p.detach() for name, p in problem.network[layer].map.parameters.items()}
        inputs = max(p.numel() // _units(p) for p in theta.values())  # 1 where only a bias is trained
        rate = state.distance / math.sqrt(inputs)
        if made.of_parameters:
            limit = (joint_root_mean_square(list(theta.values())) + rate).mul_(self.trust)
        lengths = self._lengths(state, layer, made)
        rate = torch.fmin(rate, limit / made.size(lengths))  # which leaves the rate where both are 0
        beta = self.average
        V = state.fast[layer] if beta else theta
        if beta:
            own, fast = list(theta.values()), [V[name] for name in theta]
            torch._foreach_lerp_(own, fast, (beta - 1.0) / beta)  # Θ̄
        made.subtract(V, lengths, rate)
        if problem.has_parameter_prox(layer):
            step = (rate * next(iter(lengths.values()))).clamp_(min=_TINY)
            for name, value in problem.parameter_prox(layer, V, step).items():
                V[name].copy_(value)
        if beta:
            share = (1.0 + self.power) / (state.steps + self.power)
            torch._foreach_lerp_(own, fast, 1.0 - beta * (1.0 - share))

    def _lengths(self, state: GramSweepState, layer: int, made: Move) -> dict[str, Tensor]:
        """1/√Σ s_j."""
        sums = state.units.setdefault(layer, {})
        for name, square in made.units.items():
            if name in sums:
                sums[name].add_(square)
            else:
                sums[name] = square.clone()
        return {name: s.add(_TINY).rsqrt_() for name, s in sums.items()}


def _core(problem: LiftedProblem, layer: int) -> LayerMap:
    """The dense or convolution map at the end of f_l, where calls without parameters come first; else f_l."""
    return core_of(problem.network[layer].map)[1]


def _is_implicit(problem: LiftedProblem, layer: int) -> bool:
    """Whether a layer moves in the metric of its inputs: dense, with parameters of its own and without a penalty."""
    f, alone = _core(problem, layer), len(problem.links.users[layer]) == 1
    return isinstance(f, Dense) and alone and not problem.has_parameter_prox(layer) and bool(f.parameters)


def _is_convolution(problem: LiftedProblem, layer: int) -> bool:
    """Whether a layer moves in the metric of its patches: a convolution that shares nothing and has no penalty."""
    alone = len(problem.links.users[layer]) == 1
    return isinstance(_core(problem, layer), Convolution) and alone and not problem.has_parameter_prox(layer)


def _add_up(pulled: dict[int, Tensor], inputs: Sequence[int], below: Inputs, wanted: Sequence[int]) -> None:
    """Adds J_xᵀ E of one term to the sums of the variables that are wanted."""
    for v, g in zip(inputs, below if isinstance(below, tuple) else (below,), strict=False):
        if v in wanted:
            pulled[v] = pulled[v] + g if v in pulled else g


def _look(problem: LiftedProblem, state: GramSweepState) -> None:
    """r_k, at the steps where it is looked at."""
    k = state.steps
    if k % (1 << max(0, k.bit_length() - 4)):
        return
    places = state.fast or live(problem)
    squares = []
    for layer, origin in state.origin.items():
        if origin:
            away = torch.stack([torch.dist(places[layer][name], start) for name, start in origin.items()])
            squares.append(away.square_().sum() / max(_units(start) for start in origin.values()))
        else:
            squares.append(torch.zeros_like(state.distance))
    trained = sum(bool(layer.map.parameters) for layer in problem.network)
    away = (problem.span.all_layers(torch.stack(squares)).sum() / max(1, trained)).sqrt_()
    state.distance = torch.fmax(state.distance, away)  # which is not NaN where V has overflowed
    state.metrics["distance"] = state.distance


def _with_zeros(W: Tensor, V: Tensor, penalty: Penalty) -> Tensor:
    """W, with 0 where V has it; for `Nuclear` the nearest matrix with V's rank."""
    if not isinstance(penalty, Nuclear):
        return torch.where(V == 0.0, V, W)
    U, sigma, Ut = torch.linalg.svd(W, full_matrices=False)
    rank = int(torch.linalg.matrix_rank(V))
    nearest: Tensor = (U[:, :rank] * sigma[:rank]) @ Ut[:rank]
    return nearest


def _units(parameter: Tensor) -> int:
    """Its rows; 1 for a single number."""
    return len(parameter) if parameter.ndim else 1
