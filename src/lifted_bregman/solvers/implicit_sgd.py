"""Implicit stochastic lifted Bregman learning: Algorithm 1, eq. 24."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from torch import Tensor

from lifted_bregman.errors import SettingError
from lifted_bregman.networks import Dense
from lifted_bregman.problem import Evaluation, LiftedProblem
from lifted_bregman.problem.blocks import below, hidden_layers, layers
from lifted_bregman.solvers._anchor import Anchor, copied, live, overwrite
from lifted_bregman.solvers._curvature import PowerMemory
from lifted_bregman.solvers._descent import ParameterSteps, descend, moved_variable, rms
from lifted_bregman.solvers._interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers._proximal_problem import ProximalProblem, require_deterministic, solve
from lifted_bregman.solvers.readings import Corrected, LoopOrder, Reading, Sweeps
from lifted_bregman.solvers.schedules import Schedule, as_schedule


class Coupling(Enum):
    """Which Θ_l the move of x_{l-1} reads, in a visit that moves both; the print can be read either way."""

    BEFORE = "Θ_l before its own move of this visit"
    AFTER = "Θ_l after its own move of this visit"


class ParameterUpdate(Enum):
    """How the proximal term of a batch is chosen (the remark after Algorithm 1)."""

    IMPLICIT = "a squared norm: the parameters and the variables move together"
    EXPLICIT = "the Bregman distance of J_k, with -E in it: the variables move, then one gradient step in Θ"


@dataclass
class ImplicitSGDState(SolverState):
    """Variables of the last batch, Θ^{k-1}, and the vectors of the power iterations."""

    anchor: Anchor = field(default_factory=dict)
    power: PowerMemory = field(default_factory=dict)


@dataclass(frozen=True)
class ImplicitSGD(Solver[ImplicitSGDState]):
    """min over Θ of the mean over samples of min_x E_i(Θ, x_i), one implicit step for each batch B.

        (Θ^k, X_B) ≈ argmin  (1/|B|) Σ_{i in B} E_i(Θ, x_i) + (τ_k/2)‖Θ - Θ^{k-1}‖²          (eq. 24)

    X_B starts at the forward pass with Θ^{k-1}.  Then N proximal gradient steps are taken on Θ_l and x_{l-1},

        Θ_l ← prox_{tP_l}( (1 - tτ)Θ_l + tτΘ_l^{k-1} - t ∇_{Θ_l}H )        x_l ← prox_{tG_l}( x_l - t ∇_{x_l}H ) ,

    H and G as in eq. 17, from the top layer down.  τ_k is a weight, the reciprocal of the τ^k in eqs. 22 to 24.

    With `Corrected` steps, `Coupling.AFTER`, guaranteed norms and affine maps, no step increases the objective of the
    batch.  With `Coupling.BEFORE` the two moves of a visit are simultaneous and that is not guaranteed, nor is it with
    `Literal`.  A constant τ keeps Θ moving between the batches' solutions; a growing one lets it settle.

    The explicit variant replaces the squared norm by the distance of J_k = (τ_k/2)‖Θ‖² - (1/|B|) Σ E_i.  Then N steps
    are taken on X_B alone, at Θ^{k-1}, and Θ_l ← prox_{P_l/τ}( Θ_l - ∇_{Θ_l}H/τ ) follows.  Where X_B is the minimiser
    this is a gradient step on min_X E_B(Θ, X).  The term -(1/2τ)‖∇_Θ E_B(Θ^{k-1}, X)‖² that the paper's J_k also gives
    to X_B is left out, since it would need derivatives of activations.  The paper prints J_k without the ½.

    prox_weight  τ_k >= 0, a number or a schedule of the batch number k (> 0 for the explicit variant)
    inner_steps  N >= 1
    order        `Sweeps` (N sweeps) or `LayerByLayer` (N steps on a layer before the next)
    reading      `Corrected` or `Literal` step sizes; the metric "literal" says which
    coupling     whether x_{l-1} is moved with Θ_l from before its move, as the indices of the print say, or `AFTER` it
    parameters   `ParameterUpdate.IMPLICIT` or `EXPLICIT`
    solver       any deterministic solver, N steps of which then replace those of Algorithm 1, on the same objective
    """

    minibatch: ClassVar[bool] = True

    prox_weight: float | Schedule = 100.0
    inner_steps: int = 15
    order: LoopOrder = field(default_factory=Sweeps)
    reading: Reading = field(default_factory=Corrected)
    coupling: Coupling = Coupling.AFTER
    parameters: ParameterUpdate = ParameterUpdate.IMPLICIT
    solver: Solver[Any] | None = None

    def __post_init__(self) -> None:
        explicit = self.parameters is ParameterUpdate.EXPLICIT
        as_schedule(self.prox_weight, "prox_weight", zero=not explicit)
        if not (isinstance(self.inner_steps, int) and self.inner_steps >= 1):
            raise SettingError(f"inner_steps is {self.inner_steps!r}; it must be a whole number of at least 1.")
        kinds = {"order": LoopOrder, "reading": Reading, "coupling": Coupling, "parameters": ParameterUpdate}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise SettingError(f"{name} is {getattr(self, name)!r}; it must be a {kind.__name__}.")
        if self.solver is None:
            return
        require_deterministic(self.solver)
        if explicit or (self.order, self.reading, self.coupling) != (Sweeps(), Corrected(), Coupling.AFTER):
            raise SettingError(
                "solver replaces the steps of Algorithm 1: leave order, reading, coupling and parameters, which belong "
                "to those, at their defaults, and give order and step sizes to the inner solver."
            )

    @property
    def weighted(self) -> bool:  # type: ignore[override]
        """As the solver of the sub-problems, if another one is given."""
        return self.solver is None or self.solver.weighted

    def require(self, problem: LiftedProblem) -> None:
        if self.solver is not None:
            self.solver.require(ProximalProblem(problem, live(problem), self._weight(0)))
        others = [layer.path for layer in problem.network if not isinstance(layer.map, Dense)]
        if self.reading.literal and others:
            raise lacking(self, "dense layers for the printed step sizes", f"{others[0]} is none; use Corrected()")

    def init(self, problem: LiftedProblem, batch: Batch) -> ImplicitSGDState:
        explicit = self.parameters is ParameterUpdate.EXPLICIT
        return ImplicitSGDState(anchor={} if explicit else copied(problem))

    def step(self, problem: LiftedProblem, state: ImplicitSGDState, batch: Batch) -> ImplicitSGDState:
        tau = self._weight(state.steps)
        state.metrics = {"prox_weight": tau, "literal": float(self.reading.literal)}
        if state.anchor:
            overwrite(state.anchor, live(problem))
        if self.solver is not None:
            subproblem = ProximalProblem(problem, state.anchor, tau, batch.weights)
            solved = solve(subproblem, self.solver, batch, self.inner_steps)
            state.variables = solved.variables
            state.metrics |= solved.metrics
        else:
            point = problem.point(problem.forward_state(batch.X, check=False), batch.X, batch.Y, batch.weights)
            if self.parameters is ParameterUpdate.EXPLICIT:
                self._explicit(problem, point, state, tau)
            else:
                for layer in self._visits(problem):
                    self._visit(problem, point, layer, state, tau)
            state.variables = point.state
        state.steps += 1
        return state

    def _weight(self, step: int) -> float:
        return as_schedule(self.prox_weight, "prox_weight", zero=True).value(step)

    def _visits(self, problem: LiftedProblem) -> Iterator[int]:
        return self.order.visits(problem.depth, self.inner_steps)

    def _visit(
        self, problem: LiftedProblem, point: Evaluation, layer: int, state: ImplicitSGDState, tau: float
    ) -> None:
        """Moves Θ_l and x_{l-1}."""
        variable = below(layer) if below(layer) in hidden_layers(problem.depth) else None
        moved = None
        if variable is not None and self.coupling is Coupling.BEFORE:
            moved = self._moved(problem, point, variable, state.power)
        steps = self.reading.parameter_steps(problem, point, layer, tau, state.power)
        if layer == problem.depth:
            state.metrics[f"residual_{layer}"] = rms(point.residual(layer))
        descend(problem, point, layer, steps, state.anchor[layer])
        if variable is not None:
            point.set_variable(variable, self._moved(problem, point, variable, state.power) if moved is None else moved)

    def _moved(self, problem: LiftedProblem, point: Evaluation, layer: int, memory: PowerMemory) -> Tensor:
        """x_l after one proximal gradient step."""
        return moved_variable(problem, point, layer, self.reading.variable_step(problem, point, layer, memory))

    def _explicit(self, problem: LiftedProblem, point: Evaluation, state: ImplicitSGDState, tau: float) -> None:
        """The variables at Θ^{k-1}, then every Θ_l from the same point."""
        for layer in self._visits(problem):
            if below(layer) in hidden_layers(problem.depth):
                point.set_variable(below(layer), self._moved(problem, point, below(layer), state.power))
        state.metrics[f"residual_{problem.depth}"] = rms(point.residual(problem.depth))
        for layer in layers(problem.depth):
            descend(problem, point, layer, ParameterSteps(1.0 / tau, 1.0 / tau), {})
