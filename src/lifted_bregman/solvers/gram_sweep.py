"""One top-down sweep for each batch, in the metric of the inputs, around an average: what `fit` does by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman.activations._base import positive
from lifted_bregman.errors import SettingError
from lifted_bregman.networks._no_graph import no_graph
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import below, hidden_layers, layers
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.solvers._anchor import Anchor, copied
from lifted_bregman.solvers._gram_moves import Move, move
from lifted_bregman.solvers._interface import Batch, Solver, SolverState

_TINY = 1e-30  # added to squared sizes that are divided by


@dataclass
class GramSweepState(SolverState):
    """The fast iterate, the sizes of the units' moves, and how often a linear system could not be solved."""

    fast: Anchor = field(default_factory=dict)
    """V, of which Θ is nearly the average."""
    units: Anchor = field(default_factory=dict)
    """The averaged mean squares of the units' moves."""
    fallbacks: int = 0
    """Moves in which a gradient step replaced the solution of a linear system."""


@dataclass(frozen=True)
class GramSweep(Solver[GramSweepState]):
    """Lifted Bregman training with one implicit, unit-wise normalised move of each layer and batch, and averaging.

    From the forward pass z_l, x_l = σ_l(z_l), the error signals go down layer by layer, E_L = σ_L(z_L) - y and

        x_l⁺ = argmin_x (λ_l/ν_l) B_l(x, z_l) + R_l(x) + <x, J_xᵀ E_{l+1}>
             = prox_{Ψ_l + (ν_l/λ_l) R_l}( z_l - (ν_l/λ_l) J_xᵀ E_{l+1} )          E_l = (λ_l/ν_l) (σ_l(z_l) - x_l⁺) ,

    the exact minimiser of the lifted energy in x_l where the term of the layer above is replaced by its tangent and the
    weights of the lower layers are 1/ν_l times larger.  ν → 0 is back-propagation; a larger ν also tells units that are
    switched off which way to go.  Activations are never differentiated.

    The move of a dense layer is one majorise-minimise step of the implicit problem, in sample space where the batch has
    fewer samples than the layer has inputs:  Δ = (AᵀA/m + tI)⁻¹ AᵀE_l/m, A = [x_{l-1} 1].  Each unit j then gets the
    length η/√s_j, with s_j the running mean square of its moves, and the layer is shortened if it would change z_l by
    more than κ of its size.  Other maps move along the gradient; so do parameters with a penalty, all with one length,
    and then take the proximal map of the penalty.

    The steps move V; Θ follows the average x̄ of V's path (weights ~ k^r), at which gradients are read:

        x̄ = Θ + (Θ - V)(1 - β)/β     V ← V - Δ     x̄ ← (1 - c_k) x̄ + c_k V     Θ ← (1 - β) V + β x̄

    with c_k = (1 + r)/(k + r),

    so that the noise of the batches averages out without a schedule.  A step costs the three products of the size of a
    weight that back-propagation needs, and one tensor of that size is kept besides Θ.  Convergence is observed, not
    proven.

    step_size        η > 0, the root mean square of the entries of a unit's move
    trust            κ > 0, the largest relative change of a layer's pre-activations in one step
    damping          τ > 0, relative to the mean eigenvalue of A Aᵀ/m; a larger one is nearer to the plain gradient
    nudge            ν_l > 0, reduced where it would move x_l's argument by more than 0.3 of the size of z_l
    penalised_nudge  ν_l > 0 of layers with a penalty on x_l, whose zeros it keeps
    average          β in [0, 1), the share of the average in Θ
    power            r >= 0: the average forgets its beginning faster
    memory           in [0, 1), the decay of s_j
    """

    minibatch: ClassVar[bool] = True
    weighted: ClassVar[bool] = True

    step_size: float = 2e-3
    trust: float = 0.1
    damping: float = 0.1
    nudge: float = 0.5
    penalised_nudge: float = 0.01
    average: float = 0.9
    power: float = 2.0
    memory: float = 0.9

    def __post_init__(self) -> None:
        for name in ("step_size", "trust", "damping", "nudge", "penalised_nudge"):
            positive(getattr(self, name), name)
        for name in ("average", "memory"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise SettingError(f"{name} is {getattr(self, name)!r}; it must be in [0, 1).")
        if not 0.0 <= self.power < math.inf:
            raise SettingError(f"power is {self.power!r}; it must be a number of at least 0.")

    def init(self, problem: LiftedProblem, batch: Batch) -> GramSweepState:
        return GramSweepState(fast=copied(problem))

    @no_graph
    def step(self, problem: LiftedProblem, state: GramSweepState, batch: Batch) -> GramSweepState:
        state.steps += 1
        network, work = problem.network, problem.work
        x, z = [batch.X], [batch.X]
        for layer in layers(problem.depth):
            z.append(network[layer].map.apply(x[below(layer)]))
            x.append(network[layer].activate(z[layer]))
        work.forward_maps += problem.depth
        work.prox_maps += problem.depth
        top = problem.depth
        E = (x[top] - batch.Y).mul_(problem.weight(top))
        state.metrics["output_residual"] = _rms(E)
        for layer in reversed(layers(problem.depth)):
            f = network[layer].map
            pulled = None
            if below(layer) in hidden_layers(problem.depth):
                pulled = f.pull_back_input(x[below(layer)], E)
                work.adjoints += 1
            if f.parameters:
                made = move(f, x[below(layer)], E, self.damping, batch.weights, layer in problem.parameter_penalties)
                work.parameter_gradients += 1
                self._take(problem, state, layer, made, _rms(z[layer]) + (_rms(E) if layer == top else 0.0), len(batch))
            if pulled is not None:
                E = self._signal(problem, below(layer), z[below(layer)], x[below(layer)], pulled)
        state.metrics["fallbacks"] = float(state.fallbacks)
        return state

    def _signal(self, problem: LiftedProblem, layer: int, z: Tensor, x: Tensor, pulled: Tensor) -> Tensor:
        """E_l from J_xᵀ E_{l+1}."""
        own, penalty = problem.network[layer], problem.penalties.get(layer)
        nudge = self.nudge / len(hidden_layers(problem.depth)) if penalty is None else self.penalised_nudge
        nudge /= problem.weight(layer)
        nudge = min(nudge, 0.3 * (_rms(z) + _TINY) / (_rms(pulled) + _TINY))
        problem.work.prox_maps += 1
        v = torch.sub(z, pulled, alpha=nudge)
        if penalty is None:
            moved = own.activate(v)
        else:
            moved = own.restore(composite_prox(own.activation, penalty, own.arrange(v), 1.0, nudge))
        return torch.sub(x, moved).div_(nudge)

    def _take(self, problem: LiftedProblem, state: GramSweepState, layer: int, made: Move, size: float, samples: int) -> None:
        """Gives the units their lengths, and moves V and Θ of a layer; `size` is that of z_l."""
        theta = {name: p.detach() for name, p in problem.network[layer].map.parameters.items()}
        if made.of_parameters:
            size = _rms_of(theta) + 10.0 * self.step_size
        lengths = self._lengths(state, layer, made, samples)
        change = made.size(lengths)
        if change > self.trust * size:
            for length in lengths.values():
                length.mul_(self.trust * size / change)
        state.fallbacks += made.fallback
        V, beta = state.fast[layer], self.average
        if beta > 0.0:
            for name, p in theta.items():
                p.lerp_(V[name], (beta - 1.0) / beta)  # the average x̄
        made.subtract(V, lengths)
        if layer in problem.parameter_penalties:
            step = float(next(iter(lengths.values())))
            for name, value in problem.parameter_prox(layer, V, max(step, _TINY)).items():
                V[name].copy_(value)
        share = (1.0 + self.power) / (state.steps + self.power)
        for name, p in theta.items():
            p.lerp_(V[name], 1.0 - beta * (1.0 - share))

    def _lengths(self, state: GramSweepState, layer: int, made: Move, samples: int) -> dict[str, Tensor]:
        """η/√s_j, with the running mean of s_j corrected for its start at 0."""
        running = state.units.setdefault(layer, {})
        corrected = 1.0 - self.memory**state.steps
        for name, square in made.units.items():
            if name not in running:
                running[name] = torch.zeros_like(square)
            running[name].lerp_(square, 1.0 - self.memory)
        return {name: torch.rsqrt(s / corrected + _TINY).mul_(self.step_size * math.sqrt(samples / 100)) for name, s in running.items()}


def _rms(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t)) / math.sqrt(t.numel())


def _rms_of(parameters: Mapping[str, Tensor]) -> float:
    squares = sum(float(p.square().sum()) for p in parameters.values())
    return math.sqrt(squares / sum(p.numel() for p in parameters.values()))
