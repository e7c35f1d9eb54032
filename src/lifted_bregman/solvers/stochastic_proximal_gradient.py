"""Stochastic proximal gradient descent that keeps the variables of every sample: Section 4.2.1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from lifted_bregman._arguments import require_count
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.border import borrow, lend
from lifted_bregman.problem.curvature import lend_curvature, parameter_curvature, step_for
from lifted_bregman.solvers._descent import ParameterSteps, descend, moved_variable, rms
from lifted_bregman.solvers._persistent import (
    PersistentState,
    StepSize,
    fetch,
    require_step,
    start_variables,
    store,
    sweep_variables,
    variable_step,
)
from lifted_bregman.solvers.interface import Batch, Solver
from lifted_bregman.solvers.schedules import as_schedule
from lifted_bregman.solvers.steps import CurvatureStep


class UpdateOrder(ABC):
    """The order in which a step moves Θ and the batch's X."""

    layer_parallel: ClassVar[bool] = False
    """Whether all blocks move from one point, so that ranks can share the layers."""

    @abstractmethod
    def update(self, moves: BlockMoves) -> None:
        """One step on a batch."""


@dataclass(frozen=True)
class Simultaneous(UpdateOrder):
    """Θ and all x_l from the same point, as printed.

    Example:
        >>> from lifted_bregman.solvers import Simultaneous
        >>> solver = lb.StochasticProximalGradient(step_parameter=0.05, order=Simultaneous())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=10, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    layer_parallel: ClassVar[bool] = True

    def update(self, moves: BlockMoves) -> None:
        ahead = moves.variables_ahead()
        moves.parameters()
        moves.take(ahead)


@dataclass(frozen=True)
class ParametersFirst(UpdateOrder):
    """Θ, then `variable_steps` sweeps over x_{L-1} .. x_1 with the new Θ.

    Example:
        >>> from lifted_bregman.solvers import ParametersFirst
        >>> solver = lb.StochasticProximalGradient(step_parameter=0.05, order=ParametersFirst())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=10, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    variable_steps: int = 1

    def __post_init__(self) -> None:
        require_count(self.variable_steps, "variable_steps")

    def update(self, moves: BlockMoves) -> None:
        moves.parameters()
        moves.variables(self.variable_steps)


@dataclass(frozen=True)
class VariablesFirst(UpdateOrder):
    """`variable_steps` sweeps over x_{L-1} .. x_1, then Θ with the new X.

    Example:
        >>> from lifted_bregman.solvers import VariablesFirst
        >>> solver = lb.StochasticProximalGradient(step_parameter=0.05, order=VariablesFirst())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=10, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    variable_steps: int = 1

    def __post_init__(self) -> None:
        require_count(self.variable_steps, "variable_steps")

    def update(self, moves: BlockMoves) -> None:
        moves.variables(self.variable_steps)
        moves.parameters()


@dataclass(frozen=True)
class StochasticProximalGradient(Solver[PersistentState]):
    """min over (Θ, X) of E = (1/s) Σ_i ( G(X_i) + H(Θ, X_i) ) + P(Θ), one batch B of samples at a time.

        Θ   ← prox_{tP}( Θ - t_k (1/|B|) Σ_{i in B} ∇_Θ H(Θ, X_i) )
        X_i ← prox_{tG}( X_i - t ∇_{X_i} H(Θ, X_i) )                    for i in B

    Every sample keeps its X_i from visit to visit; it starts at the forward pass of its first one.  state.variables has
    the rows of all samples.

    With one layer this is (proximal) stochastic gradient descent on a convex problem: it converges for Σ t_k = ∞,
    Σ t_k² < ∞, and with a constant step to a neighbourhood of the solution, of radius O(√t) for independent batches.
    The X_i move without noise: for Θ fixed and t < 2/(λ_{l+1}‖W_{l+1}‖²) sweeps do not increase E; `Simultaneous` needs
    smaller steps.  For deeper networks convergence is only observed; the paper leaves it open.

    step_parameter  t_k > 0: a number, a schedule of the batch number such as `Decaying`, or `CurvatureStep`, which
                    takes the batch's own Lipschitz constant
    step_variable   t > 0, in the same forms
    order           `Simultaneous` (as printed), `ParametersFirst` or `VariablesFirst`, the last two with one or several
                    X steps

    Example:
        >>> solver = lb.StochasticProximalGradient(step_parameter=0.5)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=10, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    minibatch: ClassVar[bool] = True
    indexed: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    step_parameter: StepSize
    step_variable: StepSize = field(default_factory=lambda: CurvatureStep(1.0, upper=False))
    order: UpdateOrder = field(default_factory=ParametersFirst)

    def __post_init__(self) -> None:
        require_step(self.step_parameter, "step_parameter")
        require_step(self.step_variable, "step_variable")
        if not isinstance(self.order, UpdateOrder):
            raise SettingError(f"order is {self.order!r}; it must be Simultaneous, ParametersFirst or VariablesFirst.")

    @property
    def layer_parallel(self) -> bool:
        """Whether the order is `Simultaneous`."""
        return self.order.layer_parallel

    def init(self, problem: LiftedProblem, batch: Batch) -> PersistentState:
        state = PersistentState()
        start_variables(problem, state, batch)
        return state

    def step(self, problem: LiftedProblem, state: PersistentState, batch: Batch) -> PersistentState:
        point = fetch(problem, state, batch)
        self.order.update(BlockMoves(self, problem, point, state))
        store(state, batch, point)
        state.steps += 1
        return state


@dataclass
class BlockMoves:
    """The moves of one batch, which an `UpdateOrder` calls."""

    solver: StochasticProximalGradient
    problem: LiftedProblem
    point: Point
    state: PersistentState

    def parameters(self) -> None:
        """A step in every Θ_l from the present point."""
        top, own = self.problem.depth, self.problem.partition.terms
        if top in own:
            self.state.term_metric("residual")[top] = rms(self.point.residual(top), self.point.shard)
        for layer in own:
            t = self._parameter_step(layer)
            descend(self.problem, self.point, layer, ParameterSteps(t, t), {})
            self.state.term_metric("step")[layer] = t

    def variables(self, sweeps: int) -> None:
        """Sweeps over the variables, from the top."""
        sweep_variables(self.problem, self.point, self.solver.step_variable, self.state, sweeps)

    def variables_ahead(self) -> dict[int, Tensor]:
        """The variables after a simultaneous step, without moving them."""
        problem, point, rule = self.problem, self.point, self.solver.step_variable
        if isinstance(rule, CurvatureStep):
            lend_curvature(problem, point, self.state.power, rule.upper)
        lend(problem, point)
        ahead = {}
        for layer in problem.partition.hidden:
            t = variable_step(problem, point, layer, rule, self.state)
            ahead[layer] = moved_variable(problem, point, layer, t)
        for layer in problem.partition.lent:
            problem.border.send_above(ahead[layer])
        return ahead

    def take(self, ahead: dict[int, Tensor]) -> None:
        """Sets the variables to these values."""
        for layer, x in ahead.items():
            self.point.set_variable(layer, x)
        borrow(self.problem, self.point)

    def _parameter_step(self, layer: int) -> float:
        rule = self.solver.step_parameter
        if not isinstance(rule, CurvatureStep):
            return as_schedule(rule, "step_parameter").value(self.state.steps)
        bound = parameter_curvature(self.problem, self.point, layer, self.state.power, rule.upper)
        return step_for(rule.factor, bound, self.point)
