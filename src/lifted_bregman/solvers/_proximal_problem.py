"""The lifted problem plus (τ/2)‖Θ - Θ⁰‖²: the sub-problem of an implicit step, as any solver can take it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.graph import Layer
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem import LiftedProblem
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
        self.terms = (*terms(problem), (anchor, weight)) if weight else terms(problem)
        """Θ⁰ and τ, of this problem and of those that it is a sub-problem of."""
        mean = 1.0 if weights is None else float(weights.mean())
        anchored = (
            AnchoredLayer(
                **{field.name: getattr(layer, field.name) for field in fields(Layer)},
                terms=tuple((centre[l], tau / (mean * problem.weight(l))) for centre, tau in self.terms),
            )
            for l, layer in enumerate(problem.network, start=1)
        )
        network = replace(problem.network, layers=tuple(anchored)) if self.terms else problem.network
        super().__init__(
            network, problem.loss, problem.weights, problem.penalties, {**problem.parameter_penalties, **own}
        )
        self.work, self.peers, self.span = problem.work, problem.peers, problem.span
        self._base, self._anchor, self._prox_weight, self._sample_weights = problem, anchor, weight, weights

    @property
    def prox_weight(self) -> float:
        """τ, added up where the problem is itself a sub-problem."""
        return sum(tau for _, tau in self.terms)

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
    """A layer whose Bregman loss carries its parameters' proximal terms, (τ/2λ_l)‖Θ_l - Θ_l⁰‖² for each sample.

    terms are Θ_l⁰ and τ/λ_l, divided by the batch's mean weight: so the weighted mean over the batch is the term
    itself, and that over the parts of several processes too, each with the mean weight of its own samples.
    """

    terms: tuple[tuple[Mapping[str, Tensor], float], ...] = ()

    @no_graph
    def bregman(self, x: Tensor, z: Tensor) -> Tensor:
        """B_Ψ(x, z) + Σ (share/2)‖Θ_l - Θ_l⁰‖² over the terms."""
        value = super().bregman(x, z)
        for anchor, share in self.terms:
            value = value + share * _half_distance(self.map.parameters, anchor)
        return value


@dataclass(frozen=True)
class _WithProximalTerm(Penalty):
    """Stands for P_l plus the proximal term; its value is P_l, since the layer carries the term."""

    base: Penalty | None

    def compute_value(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1]) if self.base is None else self.base.value(x)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        raise CompatibilityError(
            "the proximal term's map needs the layer and the names of its parameters: use problem.parameter_prox."
        )


def terms(problem: LiftedProblem) -> tuple[tuple[Anchor, float], ...]:
    """Θ⁰ and τ of each proximal term of a problem; none, unless it is a sub-problem."""
    return problem.terms if isinstance(problem, ProximalProblem) else ()


@no_graph
def proximal_value(problem: LiftedProblem) -> float:
    """Σ (τ/2)‖Θ - Θ⁰‖² over the terms, for energies that are not made of Bregman losses."""
    network = problem.network
    return sum(
        tau * float(_half_distance(network[layer].map.parameters, own))
        for anchor, tau in terms(problem)
        for layer, own in anchor.items()
    )


def _half_distance(parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor | float:
    """½‖Θ_l - Θ_l⁰‖²."""
    return sum((0.5 * torch.dist(p.detach(), anchor[name]).square() for name, p in parameters.items()), 0.0)


def require_no_term(solver: Solver[Any], problem: LiftedProblem, missing: str) -> None:
    """An error if `problem` has a proximal term, for solvers that do not move parameters by its `parameter_prox`."""
    if isinstance(problem, ProximalProblem) and problem.prox_weight > 0.0:
        required = f"a problem without a proximal term (τ/2)‖Θ - Θ⁰‖², here with τ = {problem.prox_weight:g}"
        raise lacking(solver, required, missing)


def require_deterministic(solver: Solver[Any]) -> None:
    """An error unless `solver` is one that can solve a sub-problem."""
    if not isinstance(solver, Solver) or solver.minibatch:
        raise SettingError(f"solver is {solver!r}; it must be a deterministic solver such as ProximalGradient().")


def require_solvable(problem: LiftedProblem, solver: Solver[Any], steps: int) -> None:
    """An error unless `solve` can be called with this problem, solver and number of steps."""
    solver.require(problem)
    solver.require_steps(problem, steps)


def solve(problem: LiftedProblem, solver: Solver[Any], batch: Batch, steps: int) -> SolverState:
    """The state after `steps` steps on one batch from the present parameters, or after fewer if no step decreases E."""
    state: SolverState = solver.init(problem, batch)
    with contextlib.suppress(Stalled):
        for _ in range(steps):
            state = solver.step(problem, state, batch)
    solver.finish(problem, state)
    return state
