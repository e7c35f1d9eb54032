"""The method of auxiliary coordinates with quadratic penalty (MAC-QP): eq. 6.  It differentiates activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman._arguments import positive, require_count
from lifted_bregman.errors import SettingError
from lifted_bregman.graph.terms import half_square, sum_features
from lifted_bregman.problem import LiftedProblem, LiftedState, energies
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.problem.nested import (
    differentiable_activation,
    differentiable_loss,
    differentiable_parameter_penalty,
    not_differentiable,
    trained_parameters,
)
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers.outcome import Stalled

_SMALLEST_STEP, _LARGEST_STEP = 1e-14, 1e8


@dataclass
class MACQPState(SolverState):
    """Variables, the penalty's factor μ, the last step sizes, and room for the parameters before a step."""

    penalty: float = 1.0
    parameter_step: float = 1.0
    variable_step: float = 1.0
    kept: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class MACQP(Solver[MACQPState]):
    """min over (Θ, X) of the quadratic penalty energy by alternating gradient steps, with a growing penalty.

        Q_μ(Θ, X) = (1/s) Σ_i [ ℓ(y, z_L) + Σ_{l<L} ( (μλ_l/2) ‖x_l - σ_l(z_l)‖² + R_l(x_l) ) ] + Σ_l P_l(Θ_l)

    It takes μλ_l/2 where eq. 6 prints the factor 1.  x_l is free, not confined to the domain of Ψ_l.
    (Carreira-Perpiñán and Wang 2014.)

    THE ONE LIFTED METHOD THAT DIFFERENTIATES ACTIVATIONS: ∇_z ½‖x - σ(z)‖² = σ'(z)(σ(z) - x), by autograd, so that a
    step raises `ActivationDerivativeError` within `forbid_activation_derivatives`.  Where σ is flat a unit receives no
    signal, and the penalty is not convex in z.

        Θ ← prox_{tP}( Θ - t ∇_Θ Q_μ ),  then  x ← prox_{t'R}( x - t' ∇_x Q_μ ),     all layers at once

    Both step sizes are found by backtracking, so Q_μ never increases while μ stands still; limit points for fixed μ are
    stationary where σ is differentiable.  In an implicit step (τ/2)‖Θ - Θ⁰‖² counts as one of the P_l.  Every
    `growth_every` steps μ is multiplied by `growth`, up to `largest_penalty`.  `metrics`: "penalised_objective" (Q_μ),
    "penalty" (μ), "parameter_step", "variable_step".

    penalty          the first μ > 0
    growth           factor on μ, at least 1
    growth_every     steps between two factors, at least 1
    largest_penalty  where μ stops growing, at least `penalty`

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.baselines.MACQP(), epochs=10)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    differentiates_activations: ClassVar[bool] = True

    penalty: float = 1.0
    growth: float = 2.0
    growth_every: int = 50
    largest_penalty: float = 100.0

    def __post_init__(self) -> None:
        positive(self.penalty, "penalty")
        if not (positive(self.growth, "growth") >= 1.0):
            raise SettingError(f"growth is {self.growth!r}; it must be at least 1.")
        require_count(self.growth_every, "growth_every")
        if not positive(self.largest_penalty, "largest_penalty") >= self.penalty:
            raise SettingError(f"largest_penalty is {self.largest_penalty!r}; it must be at least {self.penalty!r}.")

    def __repr__(self) -> str:
        settings = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"MACQP({settings}; differentiates activations)"

    def require(self, problem: LiftedProblem) -> None:
        missing = not_differentiable(problem, penalties=False)
        if missing is not None:
            raise lacking(self, "a trained network that autograd can differentiate", missing)

    def init(self, problem: LiftedProblem, batch: Batch) -> MACQPState:
        kept = [p.detach().clone() for p in trained_parameters(problem)]
        return MACQPState(variables=problem.forward_state(batch.X, check=False), penalty=self.penalty, kept=kept)

    def step(self, problem: LiftedProblem, state: MACQPState, batch: Batch) -> MACQPState:
        assert state.variables is not None
        if state.steps > 0 and state.steps % self.growth_every == 0:
            state.penalty = min(state.penalty * self.growth, self.largest_penalty)
        x = [batch.X, *state.variables, batch.Y]
        parameters_moved = _move_parameters(problem, state, x)
        variables_moved, value = _move_variables(problem, state, x)
        growing = self.growth > 1.0 and state.penalty < self.largest_penalty
        if not (parameters_moved or variables_moved or growing):
            raise Stalled(
                f"The blocks are all Θ and all x, the quantity is Q_μ = {value:.6g} with μ = {state.penalty:g}."
            )
        state.variables = LiftedState(x[1:-1])
        state.metrics = {
            "penalised_objective": value,
            "penalty": state.penalty,
            "parameter_step": state.parameter_step,
            "variable_step": state.variable_step,
        }
        state.steps += 1
        return state


def _smooth_part(problem: LiftedProblem, x: Sequence[Tensor], mu: float) -> Tensor:
    """Mean of ℓ(y, z_L) + Σ_{l<L} (μλ_l/2)‖x_l - σ_l(z_l)‖², in operations that autograd can follow."""
    depth = problem.depth
    per_sample = differentiable_loss(problem, problem.network.read(x, depth), x[depth])
    for layer in hidden_layers(depth):
        own = problem.network[layer]
        u = differentiable_activation(own, own.map.evaluate(problem.network.read(x, layer)))
        per_sample = per_sample + mu * problem.weight(layer) * half_square(x[layer] - u)
    problem.work.forward_maps += depth
    problem.work.prox_maps += depth
    return per_sample.mean()


def _move_parameters(problem: LiftedProblem, state: MACQPState, x: Sequence[Tensor]) -> bool:
    parameters = trained_parameters(problem)
    with torch.enable_grad():
        start = _smooth_part(problem, x, state.penalty)
        gradient = torch.autograd.grad(start, parameters)
    problem.work.parameter_gradients += problem.depth
    torch._foreach_copy_(state.kept, [p.detach() for p in parameters])

    def attempt(t: float) -> tuple[float, float]:
        torch._foreach_copy_(parameters, state.kept)
        torch._foreach_add_(parameters, gradient, alpha=-t)
        for layer in filter(problem.has_parameter_prox, layers(problem.depth)):
            own = problem.network[layer].map.parameters
            for name, value in problem.parameter_prox(layer, {n: p.detach() for n, p in own.items()}, t).items():
                own[name].copy_(value)
        moved = sum(float((p - k).square().sum()) for p, k in zip(parameters, state.kept, strict=True))
        return float(_smooth_part(problem, x, state.penalty)) + _on_parameters(problem), moved / (2.0 * t)

    with torch.no_grad():
        before = float(start) + _on_parameters(problem)
        t, _, moved = _backtrack(attempt, before, state.parameter_step)
        if not moved:
            torch._foreach_copy_(parameters, state.kept)
    state.parameter_step = t
    return moved


def _move_variables(problem: LiftedProblem, state: MACQPState, x: list[Tensor]) -> tuple[bool, float]:
    """Moves x_1 .. x_{L-1} in the list; returns whether they moved, and Q_μ."""
    hidden, samples = hidden_layers(problem.depth), len(x[0])
    if not hidden:
        return False, float(_smooth_part(problem, x, state.penalty).detach()) + _on_parameters(problem)
    old = [x[layer] for layer in hidden]
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in old]
        start = _smooth_part(problem, [x[0], *leaves, x[-1]], state.penalty)
        gradient = torch.autograd.grad(start * samples, leaves)
    problem.work.adjoints += len(hidden)
    constant = _on_parameters(problem)

    def attempt(t: float) -> tuple[float, float]:
        for layer, value, slope in zip(hidden, old, gradient, strict=True):
            x[layer] = _penalty_prox(problem, layer, torch.sub(value, slope, alpha=t), t)
        moved = sum(float((x[layer] - value).square().sum()) for layer, value in zip(hidden, old, strict=True))
        reached = float(_smooth_part(problem, x, state.penalty)) + _on_variables(problem, x) + constant
        return reached, moved / (2.0 * t * samples)

    with torch.no_grad():
        before = float(start) + _on_variables(problem, x) + constant
        t, value, moved = _backtrack(attempt, before, state.variable_step)
    if not moved:
        x[1:-1] = old
    state.variable_step = t
    return moved, value


def _backtrack(
    attempt: Callable[[float], tuple[float, float]], before: float, last: float
) -> tuple[float, float, bool]:
    """The first t, from twice the last one down, at which the value falls by a tenth of what its model promises.

    Returns it with the value, and whether there was one: below rounding there is none.
    """
    t = min(2.0 * last, _LARGEST_STEP)
    while t >= _SMALLEST_STEP:
        value, promised = attempt(t)
        if value < before and value <= before - 0.1 * promised:
            return t, value, True
        t *= 0.5
    return last, before, False


def _on_parameters(problem: LiftedProblem) -> float:
    """Σ_l P_l(Θ_l), with the quadratic terms of a sub-problem."""
    with torch.no_grad():
        return float(differentiable_parameter_penalty(problem)) + float(energies.quadratic_terms(problem))


def _on_variables(problem: LiftedProblem, x: Sequence[Tensor]) -> float:
    """Mean of Σ_l R_l(x_l)."""
    return sum(
        float(sum_features(penalty.value(problem.network[layer].arrange(x[layer]))).mean())
        for layer, penalty in problem.penalties.items()
    )


def _penalty_prox(problem: LiftedProblem, layer: int, v: Tensor, t: float) -> Tensor:
    """prox_{t R_l}(v): no Ψ_l, for x_l is free."""
    penalty = problem.penalties.get(layer)
    if penalty is None:
        return v
    own = problem.network[layer]
    problem.work.prox_maps += 1
    return own.restore(penalty.prox(own.arrange(v), t))
