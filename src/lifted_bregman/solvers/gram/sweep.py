"""`GramSweep`: lifted signals, a Kronecker-factored metric, and rates that end at 0."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import torch
from torch import Tensor

from lifted_bregman._arguments import positive, require_count, require_not_negative
from lifted_bregman._no_graph import no_graph
from lifted_bregman.activations import Identity
from lifted_bregman.maps import Convolution, Dense
from lifted_bregman.maps.base import Inputs
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.shard import join_norms
from lifted_bregman.solvers._micro_batches import micro_batches
from lifted_bregman.solvers.gram import rule
from lifted_bregman.solvers.gram.forward import Gradients, core, forward
from lifted_bregman.solvers.gram.moves import Moves
from lifted_bregman.solvers.gram.signal import sample_norms
from lifted_bregman.solvers.gram.top_down import TopDownSweep, is_convolution, is_dense, output_of
from lifted_bregman.solvers.interface import Batch, SolverState

_LAYER = "layer"  # the name of what all parameters of a layer share in `memory`


@dataclass
class GramSweepState(SolverState):
    """Moments, Gram matrices and metrics of each term, and the step at which metrics were computed."""

    memory: dict[int, dict[str, rule.Memory]] = field(default_factory=dict)
    """Momentum, second moments, Gram matrices and metrics of each term: under "layer", or by parameter."""
    updates: int = 0
    """How often the Gram matrices were updated."""
    inverted: int = 0
    """The step that computed the metrics last."""
    fallbacks: Tensor | int = 0
    """How many factorisations of damped Gram matrices failed; the metric is then a multiple of I.  () of int64."""


@dataclass(frozen=True)
class GramSweep(TopDownSweep[GramSweepState]):
    """One sweep of lifted signals for each batch, and one preconditioned step of each layer along its lifted gradient.

    Signals go from the top down: E_L = σ_L(z_L) - y and

        E_l = (λ_l/ν_l) ( σ_l(z_l) - prox_{Ψ_l + (ν_l/λ_l) R_l}( z_l - (ν_l/λ_l) g_l ) )      g_l = Σ_t J_xᵀ E_t ,

    t being the terms that read x_l.  ν → 0 gives back-propagation.  With a larger ν, units that are switched off
    receive a signal too.  For each sample ν is limited so that it moves z_l by at most 0.3 of its norm.  No activation
    is differentiated.

    For a dense layer or convolution with inputs A, n for each unit, the step is

        G = P_E (E_lᵀA/m) P_A      M ← 0.9 M + 0.1 G      V ← 0.95 V + 0.05 G²      Θ_l ← Θ_l - η M̂/√V̂

        η = s(k/K) min( c √( |Θ_l| / (K^¼ √n L) ), |Θ_l| / 2√L )

    P_A and P_E are damped inverses of running means of AᵀA/m and E_lᵀE_l/m (K-FAC's metric).  M and V are Adam's
    moments, and |Θ| is the root mean square of the weights.  `gram.rule` has all formulas.

    The schedule s rises in the first 20th of the K steps of a run and then falls to 0.  `fit` sets K.  A run that is
    resumed with more epochs follows the schedule of the longer run, so that its step size rises again.  If you write
    the loop, give `total_steps`; without it the step size decays like 1/√k.

    Other parameters (normalisation, embeddings, parameters that several terms share) follow the same rule without a
    metric.  A layer with a penalty P_l has one second moment for all its parameters, and therefore one step size, which
    the proximal map of P_l takes.

    A step costs the three products of a weight's size that back-propagation needs, elementwise passes as in Adam, and
    for layers of up to 256 inputs two small products and in every 20th step a factorisation.  Two tensors of the
    weights' size are kept.  Convergence is observed, not proven.  Few and noisy samples are overfitted: hold some out,
    or take a larger decay.  Where the loss is `SquaredError` and the residuals of the first batch are large, the output
    layer's steps are longer and the signals are divided by a constant: the unit of large targets does not matter.

    step_size        c > 0
    nudge            ν > 0, shared by the variables on the longest path
    damping          τ > 0, over the mean eigenvalue of a Gram matrix; the larger, the nearer to the gradient
    weight_decay     δ >= 0: weights shrink by about 0.8 δ√e in a run of e epochs, Θ ← (1 - 2 δ √e s(k/K)/K) Θ; more
                     than three layers share the decay of three, and fewer than four batches an epoch have less.
                     Biases, gains and layers with a penalty on their parameters do not decay
    total_steps      K >= 1, infinity for a run without an end; None lets `fit` decide
    epochs           e >= 0, the passes over the data in K steps; None lets `fit` decide
    penalised_nudge  ν_l > 0 of layers with a penalty on x_l; a small one keeps their zeros
    micro_batches    M >= 1, the parts of a batch that follow each other through the layers where ranks share these

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.GramSweep(), epochs=10, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    step_size: float = 0.6
    nudge: float = 0.5
    damping: float = 0.5
    weight_decay: float = 0.15
    total_steps: float | None = None
    epochs: float | None = None
    penalised_nudge: float = 0.001
    micro_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("step_size", "nudge", "damping", "penalised_nudge"):
            positive(getattr(self, name), name)
        require_not_negative(self.weight_decay, "weight_decay")
        require_count(self.micro_batches, "micro_batches")
        if self.total_steps is not None and self.total_steps != math.inf:
            total = self.total_steps  # a settings file may have written 40 as 40.0
            require_count(int(total) if isinstance(total, float) and total.is_integer() else total, "total_steps")
        if self.epochs is not None:
            require_not_negative(self.epochs, "epochs")

    def planned(self, steps: float, epochs: float) -> Self:
        total = steps if self.total_steps is None else self.total_steps
        if self.epochs is None and math.isfinite(total):
            return self._changed(total_steps=total, epochs=epochs * total / steps)
        return self._changed(total_steps=total)

    def init(self, problem: LiftedProblem, batch: Batch) -> GramSweepState:
        like = next(problem.model.parameters())
        memory: dict[int, dict[str, rule.Memory]] = {term: {} for term in problem.partition.terms}
        return GramSweepState(memory=memory, fallbacks=like.new_zeros((), dtype=torch.int64))

    @no_graph
    def step(self, problem: LiftedProblem, state: GramSweepState, batch: Batch) -> GramSweepState:
        moves = Moves(self, state, _layers(problem), batch.shard)
        # z_l = f_l(x_{l-1}), x_l = σ_l(z_l)
        dense = {layer for layer in problem.partition.terms if is_dense(problem, layer)}
        parts = micro_batches(len(batch), self.micro_batches)
        passed = forward(problem, batch.X, parts, set(problem.partition.terms) - dense)
        if batch.meter is not None:
            batch.meter.see_forward(problem, batch, passed.x, passed.z[problem.depth])
        # E_l, from the top down
        norms = {layer: sample_norms(z) for layer, z in passed.z.items()}
        gradients = Gradients(problem, batch.weights, batch.samples)
        output = output_of(problem, passed, batch)
        if output is not None:
            residual = state.metrics["output_residual"] = _root_mean_square(output, batch)
            self._scale_targets(problem, state.memory[problem.depth], output, residual)
        for layer, E in self._signals(problem, passed, output, norms, gradients):
            self._collect(problem, state.memory[layer], layer, passed.read(problem, layer), E, gradients, batch, moves)
        problem.border.settle()
        # Θ_l
        moves.finish()
        if moves.failed:
            state.fallbacks = state.fallbacks + torch.stack(moves.failed).sum()
        self._count(problem, state)
        return state

    def _scale_targets(
        self, problem: LiftedProblem, memory: dict[str, rule.Memory], E: Tensor, residual: Tensor
    ) -> None:
        """Remember ρ of the targets for the output layer, and divide its signal E by ρ², in place.

        residual  the root mean square of E

        Targets ρ times as large need output weights ρ times as large, so that the signals of the layers below are ρ²
        times as large.  Moves do not depend on the size of signals, but the nudge does: ν for signals divided by ρ² is
        ν/ρ² for these signals.  Penalties weigh against signals, which therefore keep their size beside any.
        """
        if problem.loss.activation != Identity():
            return
        own = memory.setdefault(_LAYER, {})
        if "scale" not in own:
            own["scale"] = rule.target_scale(residual)
        if not (problem.penalties or problem.parameter_penalties or problem.anchors):
            E.div_(own["scale"].square())

    def _collect(
        self,
        problem: LiftedProblem,
        memory: dict[str, rule.Memory],
        layer: int,
        x: Inputs,
        E: Tensor,
        gradients: Gradients,
        batch: Batch,
        moves: Moves,
    ) -> None:
        """Adds one layer to `moves`; `memory` has its moments under "layer", or by parameter name."""
        f, output = core(problem, layer), layer == problem.depth
        if is_dense(problem, layer):
            assert isinstance(f, Dense)
            own = memory.setdefault(_LAYER, {})
            moves.dense(f, own, x, E, batch.samples, output=output, weights=batch.weights)
            return
        gradient = gradients.take(layer)
        if not gradient:
            return
        batch.shard.all_sum(*gradient.values())
        theta = problem.network[layer].map.parameters
        if is_convolution(problem, layer):
            assert isinstance(f, Convolution)
            own = memory.setdefault(_LAYER, {})
            moves.convolution(f, own, x, E, gradient, output=output, weights=batch.weights)
        elif problem.has_parameter_prox(layer):
            detached = {name: p.detach() for name, p in theta.items()}
            prox = partial(problem.parameter_prox, layer, detached)
            moves.penalised(detached, memory.setdefault(_LAYER, {}), gradient, prox)
        else:
            for name, g in gradient.items():
                moves.plain(name, theta[name], memory.setdefault(name, {}), g)

    def _count(self, problem: LiftedProblem, state: GramSweepState) -> None:
        """Adds a step of the terms here to the counters of work."""
        own, work = len(problem.partition.terms), problem.work
        work.forward_maps += own
        work.prox_maps += own + len(problem.partition.hidden)
        work.adjoints += sum(layer > 1 for layer in problem.partition.terms)
        work.parameter_gradients += own
        state.metrics["fallbacks"] = state.fallbacks


def _layers(problem: LiftedProblem) -> int:
    """L, the terms that use weights, their own or shared ones."""
    terms = range(1, problem.depth + 1)
    own = (l for l in terms if any(p.ndim > 1 for p in problem.network[l].map.parameters.values()))
    return sum(len(problem.links.users[l]) for l in own)


def _root_mean_square(E: Tensor, batch: Batch) -> Tensor:
    """The root mean square () of all entries of E on all ranks, squares weighted like the samples."""
    norms = sample_norms(E) if batch.weights is None else sample_norms(E) * batch.weights.sqrt()
    total: Tensor = torch.linalg.vector_norm(norms)
    if not batch.shard.whole:
        total = total.new_full((), *join_norms(batch.shard, float(total)))
    return total / math.sqrt(batch.samples * math.prod(E.shape[1:]))
