"""The lifted problem plus (τ/2)‖Θ - Θ⁰‖²: the sub-problem of an implicit step, as any solver can take it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.networks import Layer
from lifted_bregman.networks._no_graph import no_graph
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.penalties import Penalty
from lifted_bregman.solvers._anchor import Anchor
from lifted_bregman.solvers._interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers._loop import Stalled


class ProximalProblem(LiftedProblem):
    """min over Θ and X of E(Θ, X) + (τ/2)‖Θ - Θ⁰‖², on the same parameters and the same counters of work.

    The proximal term is part of the parameter penalties.  So gradients and curvatures are those of E - P, every energy
    has the term, and the proximal map of a penalty P_l with it is

        prox_{t(P_l + τ/2‖·-Θ⁰‖²)}(v) = prox_{tP_l/(1+tτ)}( (v + tτΘ⁰) / (1 + tτ) ) .

    A solver that knows some penalties only cannot overlook it: it meets a penalty of a type it does not know.  Power
    iterations start afresh, so that nothing depends on what was done with the problem before.

    anchor   Θ⁰ by layer and name, not copied
    weight   τ >= 0
    weights  w_i of the batch it will be solved on, None for all equal to 1
    """

    def __init__(self, problem: LiftedProblem, anchor: Anchor, weight: float, weights: Tensor | None = None) -> None:
        own = {layer: _WithProximalTerm(problem.parameter_penalties.get(layer)) for layer in anchor} if weight else {}
        share = weight if weights is None else weight / float(weights.mean())
        anchored = (
            AnchoredLayer(layer.map, layer.activation, layer.path, layer.dim, anchor[l], share / problem.weight(l))
            for l, layer in enumerate(problem.network, start=1)
        )
        network = replace(problem.network, layers=tuple(anchored)) if weight else problem.network
        super().__init__(
            network, problem.loss, problem.weights, problem.penalties, {**problem.parameter_penalties, **own}
        )
        self.work, self.peers, self.span = problem.work, problem.peers, problem.span
        self._base, self._anchor, self._prox_weight, self._sample_weights = problem, anchor, weight, weights

    @property
    def prox_weight(self) -> float:
        """τ, added up where the problem is itself a sub-problem."""
        outer = self._base.prox_weight if isinstance(self._base, ProximalProblem) else 0.0
        return self._prox_weight + outer

    def with_weights(self, weights: float | Sequence[float]) -> ProximalProblem:
        """The same with other λ_1 .. λ_{L-1}."""
        base = self._base.with_weights(weights)
        return ProximalProblem(base, self._anchor, self._prox_weight, self._sample_weights)

    @no_graph
    def parameter_prox(self, layer: int, values: Mapping[str, Tensor], step: float) -> dict[str, Tensor]:
        """prox_{t(P_l + τ/2‖·-Θ⁰‖²)} of weights and biases."""
        if self._prox_weight == 0.0:
            return self._base.parameter_prox(layer, values, step)
        if missing := set(self._anchor[layer]) - set(values):
            raise CompatibilityError(
                f"the proximal term of layer {layer} acts on {sorted(self._anchor[layer])}, but the solver moves "
                f"{sorted(missing)} without it; take ProximalGradient or CoordinateDescent for the sub-problem."
            )
        shrink = 1.0 + step * self._prox_weight
        towards = 1.0 - 1.0 / shrink
        anchor = self._anchor[layer]
        pulled = {name: torch.lerp(value, anchor[name], towards) for name, value in values.items()}
        return self._base.parameter_prox(layer, pulled, step / shrink)


@dataclass(frozen=True)
class AnchoredLayer(Layer):
    """A layer whose Bregman loss carries its parameters' proximal term, (τ/2λ_l)‖Θ_l - Θ_l⁰‖² for each sample.

    share is τ/λ_l, divided by the batch's mean weight: so the weighted mean over the batch is the term itself, and that
    over the parts of several processes too, each with the mean weight of its own samples.
    """

    anchor: Mapping[str, Tensor] = field(default_factory=dict)
    share: float = 0.0

    @no_graph
    def bregman(self, x: Tensor, z: Tensor) -> Tensor:
        """B_Ψ(x, z) + (share/2)‖Θ_l - Θ_l⁰‖²."""
        value = super().bregman(x, z)
        for name, p in self.map.parameters.items():
            value = value + 0.5 * self.share * torch.dist(p.detach(), self.anchor[name]).square()
        return value


@dataclass(frozen=True)
class _WithProximalTerm(Penalty):
    """Stands for P_l plus the proximal term; its value is P_l, since the layer carries the term."""

    base: Penalty | None

    def _value(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1]) if self.base is None else self.base.value(x)

    def _prox(self, x: Tensor, scale: float) -> Tensor:
        raise CompatibilityError(
            "the proximal term's map needs the layer and the names of its parameters: use problem.parameter_prox."
        )


def require_no_term(solver: Solver[Any], problem: LiftedProblem, missing: str) -> None:
    """An error if `problem` has a proximal term, for solvers that do not move parameters by its `parameter_prox`."""
    if isinstance(problem, ProximalProblem) and problem.prox_weight > 0.0:
        required = f"a problem without a proximal term (τ/2)‖Θ - Θ⁰‖², here with τ = {problem.prox_weight:g}"
        raise lacking(solver, required, missing)


def require_deterministic(solver: Solver[Any]) -> None:
    """An error unless `solver` is one that can solve a sub-problem."""
    if not isinstance(solver, Solver) or solver.minibatch:
        raise SettingError(f"solver is {solver!r}; it must be a deterministic solver such as ProximalGradient().")


def solve(problem: LiftedProblem, solver: Solver[Any], batch: Batch, steps: int) -> SolverState:
    """The state after `steps` steps on one batch from the present parameters, or after fewer if no step decreases E."""
    state: SolverState = solver.init(problem, batch)
    with contextlib.suppress(Stalled):
        for _ in range(steps):
            state = solver.step(problem, state, batch)
    solver.finish(problem, state)
    return state
