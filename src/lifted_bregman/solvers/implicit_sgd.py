"""Implicit stochastic lifted Bregman learning: Algorithm 1, eq. 24."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from lifted_bregman._arguments import require_count
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import SettingError
from lifted_bregman.maps import Dense
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.problem.curvature import PowerMemory, variable_key
from lifted_bregman.solvers._batch_memory import BatchMemory
from lifted_bregman.solvers._descent import ParameterSteps, descend, rms
from lifted_bregman.solvers._factored_dense import FactoredDense, with_maps
from lifted_bregman.solvers._inner_solver import require_deterministic, require_solvable, solve
from lifted_bregman.solvers._shares import whole_variables
from lifted_bregman.solvers.inner_steps import Corrected, InnerStep, LoopOrder, Sweeps
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers.parameters import LayerTensors, overwrite, parameters_in_place
from lifted_bregman.solvers.schedules import Schedule, as_schedule, require_schedule


class Coupling(Enum):
    """The Θ_l that the update of x_{l-1} reads, in a visit that updates both.  Algorithm 1 allows both readings.

    Example:
        >>> from lifted_bregman.solvers import Coupling
        >>> solver = lb.ImplicitSGD(prox_weight=10.0, coupling=Coupling.BEFORE)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=10, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    BEFORE = "Θ_l before its own move of this visit"
    AFTER = "Θ_l after its own move of this visit"


class Space(Enum):
    """How weights are stored during the inner steps of a batch; the iterates are the same up to rounding.

    The exception is `Majorised` with a τ that is lost in rounding, such as 0: its added proximal term is larger for
    SAMPLES.

    Example:
        >>> from lifted_bregman.solvers import Space
        >>> solver = lb.ImplicitSGD(space=Space.SAMPLES)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=3, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    AUTOMATIC = "whichever costs less, for each layer"
    SAMPLES = "as Θ⁰ plus low-rank factors with a row for each sample, multiplied out once at the end"
    WEIGHTS = "in place"


class ParameterUpdate(Enum):
    """How the proximal term of a batch is chosen (the remark after Algorithm 1).

    Example:
        >>> from lifted_bregman.solvers import ParameterUpdate
        >>> solver = lb.ImplicitSGD(parameters=ParameterUpdate.IMPLICIT)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=3, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    IMPLICIT = "a squared norm: the parameters and the variables move together"
    EXPLICIT = "the Bregman distance of J_k, with -E in it: the variables move, then one gradient step in Θ"


@dataclass
class ImplicitSGDState(SolverState):
    """Variables of the last batch, Θ^{k-1} where it is copied, and the vectors of the power iterations."""

    anchor: LayerTensors = field(default_factory=dict)
    power: PowerMemory = field(default_factory=dict)
    fallbacks: int = 0
    """Steps of `Majorised` that were gradient steps, since the first batch."""

    def __post_init__(self) -> None:
        self.maps: dict[int, FactoredDense] = {}
        """The sample-space weights of the last batch, kept to reuse their memory; they are not saved."""


@dataclass(frozen=True)
class ImplicitSGD(Solver[ImplicitSGDState]):
    """min over Θ of the mean over samples of min_x E_i(Θ, x_i), one implicit step for each batch B.

        (Θ^k, X_B) ≈ argmin  (1/|B|) Σ_{i in B} E_i(Θ, x_i) + (τ_k/2)‖Θ - Θ^{k-1}‖²          (eq. 24)

    X_B starts at the forward pass with Θ^{k-1}.  Then N proximal gradient steps are taken on Θ_l and x_{l-1},

        Θ_l ← prox_{tP_l}( (1 - tτ)Θ_l + tτΘ_l^{k-1} - t ∇_{Θ_l}H )        x_l ← prox_{tG_l}( x_l - t ∇_{x_l}H ) ,

    H and G as in eq. 17, from the top layer down.  τ_k is a weight, the reciprocal of the τ^k in eqs. 22 to 24.  The
    implicit step on a batch is that of implicit SGD (Toulis and Airoldi 2017).

    With `Corrected` steps, `Coupling.AFTER`, guaranteed norms and affine maps, no step increases the objective of the
    batch.  With `Coupling.BEFORE` the two moves of a visit are simultaneous and that is not guaranteed, nor is it with
    `Literal`.  A constant τ keeps Θ moving between the batches' solutions; a growing one lets it settle.

    The explicit variant replaces the squared norm by the distance of J_k = (τ_k/2)‖Θ‖² - (1/|B|) Σ E_i.  Then N steps
    are taken on X_B alone, at Θ^{k-1}, and Θ_l ← prox_{P_l/τ}( Θ_l - ∇_{Θ_l}H/τ ) follows.  Where X_B is the minimiser
    this is a gradient step on min_X E_B(Θ, X).  The paper's J_k asks for more: with it X_B would have to minimise
    E_B(Θ^{k-1}, X) - (1/2τ)‖∇_Θ E_B(Θ^{k-1}, X)‖².  The second term is left out.  With ReLU and a squared error it
    grows like ‖X‖⁴ and E_B like ‖X‖², so that there is no minimum; and its gradient would need derivatives of
    activations.  The paper prints J_k without the ½.

    prox_weight  τ_k >= 0, a number or a schedule of the batch number k (> 0 for the explicit variant), beside the mean
                 over the batch: beside the sum the same step has the weight |B|τ_k.  The default 1 is the paper's 100
                 for classification, read as a weight beside the sum over its batches of 100 samples
    inner_steps  N >= 1
    order        `Sweeps` (N sweeps) or `LayerByLayer` (N steps on a layer before the next)
    reading      the `InnerStep`: `Corrected` or `Literal` gradient steps, or `Majorised` ones; the metric "literal" is
                 1 for `Literal`
    coupling     whether the move of x_{l-1} reads Θ_l `BEFORE` its own move, as the printed indices say, or `AFTER` it
    parameters   `ParameterUpdate.IMPLICIT` or `EXPLICIT`
    solver       a deterministic solver whose N steps on the same objective replace those of Algorithm 1; a solver that
                 ignores a part of the objective is refused
    space        whether weights move in place or as Θ^{k-1} + Σ_i A_iᵀC_i, where A_i = X_{l-1} at inner step i; by
                 default whichever costs less.  In sample space no weight is written before the last inner step.  Only
                 dense layers without a P_l in the implicit variant can use it; other layers are moved in place

    Example:
        >>> solver = lb.ImplicitSGD()
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=3, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    minibatch: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True
    batch_variables: ClassVar[bool] = True

    prox_weight: float | Schedule = 1.0
    inner_steps: int = 15
    order: LoopOrder = field(default_factory=Sweeps)
    reading: InnerStep = field(default_factory=Corrected)
    coupling: Coupling = Coupling.AFTER
    parameters: ParameterUpdate = ParameterUpdate.IMPLICIT
    solver: Solver[Any] | None = None
    space: Space = Space.AUTOMATIC

    def __post_init__(self) -> None:
        explicit = self.parameters is ParameterUpdate.EXPLICIT
        as_schedule(self.prox_weight, "prox_weight", zero=not explicit)
        require_count(self.inner_steps, "inner_steps")
        kinds: dict[str, type] = {"order": LoopOrder, "reading": InnerStep, "coupling": Coupling}
        kinds |= {"parameters": ParameterUpdate, "space": Space}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise SettingError(f"{name} is {getattr(self, name)!r}; it must be a {kind.__name__}.")
        if self.solver is None:
            return
        require_deterministic(self.solver)
        own = (self.order, self.reading, self.coupling, self.space)
        if explicit or own != (Sweeps(), Corrected(), Coupling.AFTER, Space.AUTOMATIC):
            raise SettingError(
                "solver replaces the steps of Algorithm 1: leave order, reading, coupling, space and parameters, which "
                "belong to those, at their defaults, and give order and step sizes to the inner solver."
            )

    @property
    def weighted(self) -> bool:  # type: ignore[override]
        """Whether the solver of the sub-problems, if one is given, takes sample weights."""
        return self.solver is None or self.solver.weighted

    @property
    def data_parallel(self) -> bool:  # type: ignore[override]
        """Whether ranks can share the batches of the solver of the sub-problems, if one is given."""
        return self.solver is None or self.solver.data_parallel

    def require(self, problem: LiftedProblem) -> None:
        self._require_solver(problem, self._weight(0))
        others = [layer.path for layer in problem.network if not isinstance(layer.map, Dense)]
        if self.reading.literal and others:
            raise lacking(self, "dense layers for the printed step sizes", f"{others[0]} is none; use Corrected()")

    def require_steps(self, problem: LiftedProblem, steps: int) -> None:
        implicit = self.parameters is ParameterUpdate.IMPLICIT
        self._require_solver(problem, require_schedule(self.prox_weight, "prox_weight", steps, zero=implicit))

    def planned(self, steps: float, epochs: float) -> Self:
        inner = None if self.solver is None else self.solver.planned(self.inner_steps, epochs=0)
        return super().planned(steps, epochs)._changed(solver=inner)

    def _require_solver(self, problem: LiftedProblem, tau: float) -> None:
        """An error unless the solver of the sub-problems, if one is given, takes those with a term of weight τ."""
        if self.solver is not None:
            require_solvable(problem.anchored(parameters_in_place(problem), tau), self.solver, self.inner_steps)

    def init(self, problem: LiftedProblem, batch: Batch) -> ImplicitSGDState:
        explicit = self.parameters is ParameterUpdate.EXPLICIT
        return ImplicitSGDState(anchor={} if explicit else renewed({}, problem, self._maps(problem, batch, {})))

    def step(self, problem: LiftedProblem, state: ImplicitSGDState, batch: Batch) -> ImplicitSGDState:
        tau = self._weight(state.steps)
        state.metrics = {"prox_weight": tau, "literal": float(self.reading.literal)}
        if self.solver is not None:
            overwrite(state.anchor, parameters_in_place(problem))
            subproblem = problem.anchored(state.anchor, tau)
            solved = solve(subproblem, self.solver, batch, self.inner_steps)
            state.variables = solved.variables
            state.metrics |= solved.metrics
        else:
            self._algorithm_1(problem, state, batch, tau)
        state.steps += 1
        return state

    @no_graph
    def _algorithm_1(self, problem: LiftedProblem, state: ImplicitSGDState, batch: Batch, tau: float) -> None:
        # the point: weights in sample space, variables at the forward pass
        memory = BatchMemory(state.power)
        maps = self._maps(problem, batch, memory)
        for layer in maps.keys() & state.maps.keys():
            maps[layer].reuse(state.maps[layer])
        view = with_maps(problem, maps)
        point = batch.point(view, view.forward_state(batch.X, check=False))
        if batch.meter is not None:
            batch.meter.see(view, point)
        if self.parameters is ParameterUpdate.EXPLICIT:
            self._explicit(view, point, state, memory, tau)
        else:
            # N inner steps on each layer, then the weights in place
            state.anchor = renewed(state.anchor, problem, maps)
            for layer in self._visits(problem):
                self._visit(view, point, layer, state, memory, tau)
            for f in maps.values():
                f.write()
            state.term_metric("residual")[problem.depth] = rms(memory.residual, batch.shard)
            state.maps = maps
        state.variables, state.power = whole_variables(batch.shard, point.state), dict(memory)
        state.fallbacks += memory.fallbacks
        if self.reading.forgetful:
            state.metrics["fallbacks"] = float(state.fallbacks)

    def _maps(self, problem: LiftedProblem, batch: Batch, memory: PowerMemory) -> dict[int, FactoredDense]:
        """The layers whose weights move in sample space."""
        maps: dict[int, FactoredDense] = {}
        if self.space is Space.WEIGHTS or self.solver is not None or self.parameters is ParameterUpdate.EXPLICIT:
            return maps
        blocks = 1 if self.reading.forgetful else self.inner_steps
        for layer in layers(problem.depth):
            f, inputs = problem.network[layer].map, problem.links.inputs[layer]
            moving = any(v in hidden_layers(problem.depth) for v in inputs)
            if not isinstance(f, Dense) or "weight" not in f.parameters or problem.has_parameter_prox(layer):
                continue
            rows = batch.samples * math.prod(problem.shapes(batch.X)[layer - 1][:-1])
            if self.space is Space.SAMPLES or self.reading.in_samples(f, rows, self.inner_steps, moving):
                vectors, key = memory.setdefault(layer, {}), variable_key(inputs[0])
                maps[layer] = FactoredDense(f, blocks if moving else 1, vectors, key, batch.shard)
        return maps

    def _weight(self, step: int) -> float:
        return as_schedule(self.prox_weight, "prox_weight", zero=True).value(step)

    def _visits(self, problem: LiftedProblem) -> Iterator[int]:
        return self.order.visits(problem.depth, self.inner_steps)

    def _visit(
        self,
        problem: LiftedProblem,
        point: Point,
        layer: int,
        state: ImplicitSGDState,
        memory: BatchMemory,
        tau: float,
    ) -> None:
        """Moves Θ_l and the variables that no lower term reads; in a chain x_{l-1}.

        Terms are visited from the top, so that every other term that reads these variables was visited before.
        """
        variables = _last_read(problem, layer)
        before = self.coupling is Coupling.BEFORE
        moved = [self._moved(problem, point, v, memory) for v in variables] if before else []
        if layer == problem.depth:
            memory.residual = point.residual(layer)
        self.reading.move_parameters(problem, point, layer, tau, state.anchor[layer], memory)
        for v, value in zip(variables, moved, strict=True) if before else ():
            point.set_variable(v, value)
        for v in () if before else variables:
            point.set_variable(v, self._moved(problem, point, v, memory))

    def _moved(self, problem: LiftedProblem, point: Point, layer: int, memory: BatchMemory) -> Tensor:
        """x_l after one proximal gradient step."""
        gradient = problem.variable_gradient(point, layer)  # with it a product for ‖W_{l+1}‖ is made in sample space
        t = self.reading.variable_step(problem, point, layer, memory)
        return problem.variable_prox(layer, torch.sub(point.x[layer], gradient, alpha=t), t)

    def _explicit(
        self, problem: LiftedProblem, point: Point, state: ImplicitSGDState, memory: BatchMemory, tau: float
    ) -> None:
        """The explicit variant: N steps on X_B at Θ^{k-1}, then Θ_l ← prox_{P_l/τ}( Θ_l - ∇_{Θ_l}H/τ ) for every l."""
        for layer in self._visits(problem):
            for v in _last_read(problem, layer):
                point.set_variable(v, self._moved(problem, point, v, memory))
        state.term_metric("residual")[problem.depth] = rms(point.residual(problem.depth), point.shard)
        for layer in layers(problem.depth):
            descend(problem, point, layer, ParameterSteps(1.0 / tau, 1.0 / tau), {})


def _last_read(problem: LiftedProblem, term: int) -> tuple[int, ...]:
    """The hidden variables of which `term` is the lowest reader, from the top down."""
    hidden, links = hidden_layers(problem.depth), problem.links
    return tuple(sorted((v for v in links.inputs[term] if v in hidden and links.readers[v][0] == term), reverse=True))


def renewed(anchor: LayerTensors, problem: LiftedProblem, maps: Mapping[int, FactoredDense]) -> LayerTensors:
    """Copies of the parameters in the memory of `anchor`, without the weights that keep Θ⁰ by themselves."""
    wanted = {
        layer: {name: p for name, p in own.items() if layer not in maps or p.ndim < 2}
        for layer, own in parameters_in_place(problem).items()
    }
    kept = {layer: anchor.get(layer, {}) for layer in wanted}
    return {
        layer: {name: kept[layer][name].copy_(p) if name in kept[layer] else p.clone() for name, p in own.items()}
        for layer, own in wanted.items()
    }
