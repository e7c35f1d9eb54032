"""The default solver: one top-down sweep for each batch, in the metric of the inputs, around an average."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lifted_bregman._arguments import positive, require_count
from lifted_bregman._autocast import full_precision
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import SettingError
from lifted_bregman.maps import Convolution, Dense
from lifted_bregman.penalties import Nuclear, Penalty
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers._anchor import Anchor, copied, live
from lifted_bregman.solvers._interface import Batch, SolverState
from lifted_bregman.solvers._micro_batches import micro_batches
from lifted_bregman.solvers._packing import rows as as_rows
from lifted_bregman.solvers.gram.forward import Forward, Gradients, core, forward
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
    gradient_move,
    patch_move,
    plain_move,
    sample_move,
    stacked_metrics,
    weight_move,
)
from lifted_bregman.solvers.gram.parallel import (
    SharedRows,
    all_terms,
    root_mean_squares,
    spread_parameters,
)
from lifted_bregman.solvers.gram.rows import Rows, block_size, by_row
from lifted_bregman.solvers.gram.schedule import average_share, from_average, to_average, updates_distance
from lifted_bregman.solvers.gram.signal import (
    TINY,
    Signal,
    sample_norms,
)
from lifted_bregman.solvers.gram.top_down import TopDownSweep, is_convolution, is_dense, output_of

PATCHES = 512  # rows of a convolution's inputs that its metric is computed from, at most


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
    """Σ s_j, the sums of the mean squares of the units' moves: of each unit, or of each row of each parameter."""
    fallbacks: Tensor | int = 0
    """Moves in which a gradient step replaced the solution of a linear system: a tensor () of int64."""


@dataclass(frozen=True, eq=False)
class _System:
    """What the move of a dense layer is solved with."""

    rows: Rows
    shared: SharedRows
    metric: Metric | None
    """None in weight space, and where no metric is wanted."""


@dataclass(frozen=True)
class GramSweep(TopDownSweep[GramSweepState]):
    """One implicit move of each layer for each batch, in the metric of its inputs, around an average of the past.

    A step has five stages, each a module of `lifted_bregman.solvers.gram` with functions of tensors.  `gram.reference`
    has the whole step for dense layers once more, slowly and in a page.

    Forward.  z_l = f_l(x_{l-1}), x_l = σ_l(z_l).

    Signals (`gram.signal`), top-down, E_L = σ_L(z_L) - y and

        x_l⁺ = argmin_x (λ_l/ν_l) B_l(x, z_l) + R_l(x) + <x, J_xᵀ E_{l+1}>          E_l = (λ_l/ν_l) (σ_l(z_l) - x_l⁺) ,

    the minimiser in x_l of a lifted energy whose lower layers weigh 1/ν_l times more, with the term of the layer above
    replaced by its tangent: x_l⁺ = prox_{Ψ_l + (ν_l/λ_l) R_l}( z_l - (ν_l/λ_l) J_xᵀ E_{l+1} ).  ν → 0 gives
    back-propagation; a larger ν also tells units that are switched off which way to move.  No activation is
    differentiated.  A sample's signal depends on no other sample: ν_l is limited for each by itself.

    Moves (`gram.move`).  A dense layer moves by majorise-minimise steps of its implicit problem, in sample space where
    it has more inputs than `block`.  The first is Δ = (AᵀA/m + tI)⁻¹ AᵀE_l/m with A = [x_{l-1} 1].  A convolution moves
    by the first step, its rows A being patches; AᵀA/m is the mean over some of them.  Other maps move along the
    gradient.  So do shared parameters, and parameters with a penalty, all of a layer with one length, which is the step
    of the penalty's proximal map.

    Lengths (`gram.length`).  Each unit j gets a length that follows from how far units have come and from all of its
    moves so far,

        r_k Δ_j/√(n Σ_{i<=k} s_j^i)          r_k² = max_{i<=k} mean_l ‖V_l^i - V_l⁰‖²/m_l   and at least r_0² ,

    n being its inputs and s_j the mean squares of its Δ_j.  In sample space a bound on them stands for s_j, C_jᵀE_j/mn,
    divided by the number of blocks as if their moves were independent.  This asks for no rate: a first guess r_0 that
    is too small grows within some steps (for gradient descent: Ivgi et al. 2023).  The distance is updated in the first
    15 steps, then in every 2nd, 4th, 8th, ... as their number doubles.

    A whole layer is shortened where it could change z_l by more than κ of its size; ‖E_l‖ bounds the change.  The size
    is the root mean square of z_l, and of the output layer that of z_L plus that of E_L: an output near 0 could hardly
    move otherwise.

    Averages (`gram.schedule`).  These steps move V.  Θ is where the next signals are computed, between V and the
    average Θ̄ of V's path (weights ~ k^r):

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
    nudge            ν > 0, shared by the variables on the longest path, in a chain ν_l = ν/(L-1); less for samples
                     whose z_l it would move by 0.3 of its norm
    penalised_nudge  ν_l > 0 of layers with a penalty on x_l; a small one keeps their zeros
    average          β in [0, 1), the share of the average in Θ
    power            r >= 0; the larger, the sooner the average forgets
    inner_steps      majorise-minimise steps for each layer and batch, >= 1
    micro_batches    M >= 1, the parts of a batch that follow each other through the layers, so that processes which
                     share these work at the same time
    block            >= 1; batches are cut into blocks of at most so many samples, and half as many as a layer has
                     inputs, whose moves are averaged; layers with no more inputs than that take the metric of the whole
                     batch
    """

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
        # r_k² = max mean_l ‖V_l - V_l⁰‖²/m_l
        if updates_distance(state.steps):
            _update_distance(problem, state)
        # z_l = f_l(x_{l-1}), x_l = σ_l(z_l)
        dense = [layer for layer in problem.partition.terms if is_dense(problem, layer)]
        parts = micro_batches(len(batch), self.micro_batches)
        passed = forward(problem, batch.X, parts, set(problem.partition.terms) - set(dense))
        if batch.meter is not None:
            batch.meter.see_forward(problem, batch, passed.x, passed.z[problem.depth])
        # E_L = λ_L (σ_L(z_L) - y), and the sizes of z_l that limit nudges and moves
        output = output_of(problem, passed, batch)
        norms = {layer: sample_norms(z) for layer, z in passed.z.items()}
        sizes = _sizes(problem, state, passed, norms, output, batch)
        limits = dict(zip(sizes, torch._foreach_mul(list(sizes.values()), self.trust), strict=True))
        # A = [x_{l-1} 1] and (A Aᵀ/b + tI)⁻¹, once a rank below has got its signals
        systems = {} if problem.partition.borrowed else self._systems(problem, dense, passed, batch)
        gradients = Gradients(problem, batch.weights, batch.samples)
        failed: list[Tensor] = []
        for layer, signal in self._signals(problem, passed, output, norms, gradients):
            if dense and not systems:
                systems = self._systems(problem, dense, passed, batch)
            # Δ_l from A and E_l
            move = self._move(problem, layer, signal, systems.get(layer), passed, gradients, batch)
            if move is None:
                continue
            if move.fallback is not None:
                failed.append(move.fallback)
            # r_k/√(n Σ s_j), at most κ of the size of z_l
            lengths = self._lengths(problem, state, layer, move, limits[layer])
            # V ← V - Δ, and Θ between V and its average
            self._take(problem, state, layer, move, lengths)
        problem.border.settle()
        if failed:
            state.fallbacks = state.fallbacks + torch.stack(failed).sum()
        self._count(problem, state, len(systems))
        return state

    @no_graph
    @full_precision
    def finish(self, problem: LiftedProblem, state: GramSweepState) -> None:
        # Weights with a penalty get the zeros that its proximal map has made in V.
        if not (problem.parameter_penalties and state.fast):
            return
        for layer in problem.partition.terms:
            f = problem.network[layer].map
            for name, V in state.fast[layer].items() if layer in problem.parameter_penalties else ():
                if V.ndim > 1:
                    W, penalty = f.parameters[name], problem.parameter_penalties[layer]
                    W.copy_(f.from_unit_rows(_with_zeros(f.unit_rows(W), f.unit_rows(V), penalty), W))
        spread_parameters(problem)

    # Moves

    @full_precision
    def _systems(
        self, problem: LiftedProblem, dense: Sequence[int], passed: Forward, batch: Batch
    ) -> dict[int, _System]:
        """A of the dense layers, and the metrics of those in sample space; layers of one size are solved together."""
        plain, shard = math.isinf(self.damping), batch.shard
        rows: dict[int, Rows] = {}
        shared: dict[int, SharedRows] = {}
        in_samples: dict[int, tuple[Rows, int, AnyFailed]] = {}
        for layer in dense:
            f, x = core(problem, layer), passed.read(problem, layer)
            assert isinstance(f, Dense)
            each = 1 if f.flatten else math.prod(x.shape[1:-1])
            m = batch.samples * each
            block = 0 if plain else block_size(m, f.module.in_features, self.block)
            own = shared[layer] = SharedRows.of(shard, len(x), each, block)
            root = None
            if batch.weights is not None:
                root = own.gather(batch.weights).sqrt().repeat_interleave(each)[:, None]
            trained = f.parameters
            X = as_rows(f, own.gather(x, keep=True))
            rows[layer] = Rows.of(X, root, weight="weight" in trained, bias="bias" in trained, total=m)
            if block:
                in_samples[layer] = rows[layer], block, own.any_failed
        found = stacked_metrics(in_samples, self.damping)
        return {layer: _System(rows[layer], shared[layer], found.get(layer)) for layer in dense}

    @full_precision
    def _move(
        self,
        problem: LiftedProblem,
        layer: int,
        signal: Signal,
        system: _System | None,
        passed: Forward,
        gradients: Gradients,
        batch: Batch,
    ) -> Move | None:
        """Δ_l; None where a layer has nothing to train."""
        if system is not None:
            return self._dense_move(layer, signal, system)
        gradient = gradients.take(layer)
        if not gradient:
            return None
        if not math.isinf(self.damping) and is_convolution(problem, layer):
            return self._patch_move(problem, layer, signal.E, gradient, passed.read(problem, layer), batch)
        batch.shard.all_sum(*gradient.values())
        return gradient_move(gradient, together=problem.has_parameter_prox(layer))

    def _dense_move(self, layer: int, signal: Signal, system: _System) -> Move:
        rows, shared, root = system.rows, system.shared, system.rows.root
        E = shared.gather(signal.E)
        shape = E.shape
        E = E.reshape(-1, shape[-1])
        if math.isinf(self.damping):
            return plain_move(rows, E if root is None else E * root, shared.all_sum)
        left_of = shared.left(signal.left)

        def left(H: Tensor) -> Tensor:
            G = left_of((H if root is None else H / root).view(shape)).reshape(H.shape)
            return G if root is None else G * root

        E = E if root is None else E * root
        if system.metric is not None:
            return sample_move(rows, system.metric, E, left, self.inner_steps, shared.all_sum)
        return weight_move(rows, E, self.narrow_damping, left, self.inner_steps, shared.all_sum)

    def _patch_move(
        self,
        problem: LiftedProblem,
        layer: int,
        E: Tensor,
        gradient: Mapping[str, Tensor],
        x: Tensor,
        batch: Batch,
    ) -> Move:
        f, shard, weights = core(problem, layer), batch.shard, batch.weights
        assert isinstance(f, Convolution)
        squares = E.square() if weights is None else E.square() * by_row(weights, E)
        squares = squares.transpose(0, 1).flatten(1).sum(1)
        shard.all_sum(squares, *gradient.values())
        places = batch.samples * math.prod(E.shape[2:])
        x, weights = shard.all_rows(x, keep=True), None if weights is None else shard.all_rows(weights)
        A = f.some_rows(x, PATCHES, weights)
        return patch_move(A, f.packed(gradient), squares, places, self.narrow_damping, f.unpacked)

    # Lengths and averages

    @full_precision
    def _lengths(
        self, problem: LiftedProblem, state: GramSweepState, layer: int, move: Move, limit: Tensor
    ) -> dict[str, Tensor]:
        """The factor of each unit's Δ_j; z_l changes by `limit` at most, or Θ_l, where there is no metric, by κ."""
        theta = [p.detach() for p in problem.network[layer].map.parameters.values()]
        rate = state.distance / math.sqrt(inputs_of_unit(theta))
        if move.of_parameters:
            limit = (root_mean_square(theta) + rate).mul_(self.trust)
        sums = state.units.setdefault(layer, {})
        add_squares(sums, move.squares)
        return unit_lengths(sums, move.change, rate, limit)

    @full_precision
    def _take(
        self, problem: LiftedProblem, state: GramSweepState, layer: int, move: Move, lengths: Mapping[str, Tensor]
    ) -> None:
        """V ← prox(V - Δ), and Θ with it."""
        theta = {name: p.detach() for name, p in problem.network[layer].map.parameters.items()}
        beta = self.average
        V = state.fast[layer] if beta else theta
        own, fast = list(theta.values()), [V[name] for name in theta]
        if beta:
            to_average(own, fast, beta)
        move.subtract(V, lengths)
        if problem.has_parameter_prox(layer):
            step = next(iter(lengths.values())).clamp(min=TINY)
            for name, value in problem.parameter_prox(layer, V, step).items():
                V[name].copy_(value)
        if beta:
            from_average(own, fast, beta, average_share(state.steps, self.power))

    def _count(self, problem: LiftedProblem, state: GramSweepState, dense: int) -> None:
        """Adds a step of the terms here to the counters of work."""
        own, hidden, work = len(problem.partition.terms), len(problem.partition.hidden), problem.work
        work.forward_maps += own
        work.prox_maps += own + hidden + (self.inner_steps - 1) * dense
        work.adjoints += sum(layer > 1 for layer in problem.partition.terms)
        work.parameter_gradients += own
        state.metrics["fallbacks"] = state.fallbacks


def _sizes(
    problem: LiftedProblem,
    state: GramSweepState,
    passed: Forward,
    norms: Mapping[int, Tensor],
    output: Signal | None,
    batch: Batch,
) -> dict[int, Tensor]:
    """Root mean squares () of z_l, plus that of E_L for the output."""
    of_samples, features = list(norms.values()), [math.prod(z.shape[1:]) for z in passed.z.values()]
    if output is not None:
        of_samples.append(sample_norms(output.E))
        features.append(math.prod(output.E.shape[1:]))
    measured = root_mean_squares(of_samples, features, batch.weights, batch.shard)
    sizes = dict(zip(norms, measured, strict=False))
    if output is not None:
        state.metrics["output_residual"] = measured[-1]
        sizes[problem.depth] = sizes[problem.depth] + measured[-1]
    return sizes


def _update_distance(problem: LiftedProblem, state: GramSweepState) -> None:
    """r_k ← max(r_k, √mean_l ‖V_l - V_l⁰‖²/m_l) over the layers of all ranks that have parameters."""
    places, nothing = state.fast or live(problem), torch.zeros_like(state.distance)
    squares = [distance_squared(places[l], origin) if origin else nothing for l, origin in state.origin.items()]
    trained = sum(bool(layer.map.parameters) for layer in problem.network)
    state.distance = further(state.distance, all_terms(problem, squares), trained)
    state.metrics["distance"] = state.distance


def _with_zeros(W: Tensor, V: Tensor, penalty: Penalty) -> Tensor:
    """W, with 0 where V has it; for `Nuclear` the nearest matrix with V's rank."""
    if not isinstance(penalty, Nuclear):
        return torch.where(V == 0.0, V, W)
    U, sigma, Ut = torch.linalg.svd(W, full_matrices=False)
    rank = int(torch.linalg.matrix_rank(V))
    nearest: Tensor = (U[:, :rank] * sigma[:rank]) @ Ut[:rank]
    return nearest
