"""Proximal gradient descent (forward-backward splitting) on (Θ, X): Section 4.1.1, eq. 17."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import all_blocks
from lifted_bregman.solvers._shares import own_variables, whole_variables
from lifted_bregman.solvers.acceleration import Acceleration, NoAcceleration
from lifted_bregman.solvers.interface import Batch, Solver, SolverState
from lifted_bregman.solvers.steps import Backtracking, CurvatureStep, FixedStep, StepRule, block_values, set_block
from lifted_bregman.solvers.sweeps import Jacobi, Sweep, TopDown


@dataclass
class ProximalGradientState(SolverState):
    """Variables, the step rule's and the acceleration's memory."""

    step_memory: dict[str, Any] = field(default_factory=dict)
    acceleration_memory: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProximalGradient(Solver[ProximalGradientState]):
    """min over (Θ, X) of E = G + H by proximal gradient steps on its blocks.

        Θ_l ← prox_{tP_l}( Θ_l - t ∇_{Θ_l} H )          x_l ← prox_{tG_l}( x_l - t ∇_{x_l} H )

    One step is one sweep over all blocks.  E never increases for Gauss-Seidel sweeps with `CurvatureStep` over affine
    maps, and for any sweep with `Backtracking`; with `monotone`, for any acceleration too.  Limit points are
    stationary.  For `Jacobi` sweeps with the default step, E falls up to terms of third order in the step.

    sweep             the order of the blocks: `Jacobi`, `TopDown`, `BottomUp`, `OddEven`, `Permutation`
    step_rule         the step-size rule: `CurvatureStep`, `FixedStep`, `Backtracking`.  None for `CurvatureStep(c/m)`
                      with c = `acceleration.factor` and m = `sweep.coupling`: the paper's 1.99/L for Gauss-Seidel
                      sweeps, 1/L with `Nesterov`, 1.99(1 - β)/L with `HeavyBall`, and 1.99/2L or 1.99/4L for `Jacobi`
                      sweeps over two or more than two layers; and for `Backtracking` where a map is not affine
    acceleration      `NoAcceleration`, `Nesterov`, `HeavyBall`, `Anderson`
    smooth_quadratic  False: ½‖x‖² belongs to G (the paper's choice); True: to H (Remark 12)
    monotone          an accelerated step that increases E is taken back and replaced by a plain one.  Without it a
                      `CurvatureStep` whose factor exceeds `acceleration.factor` is refused

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.ProximalGradient(), epochs=20)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    weighted: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    sweep: Sweep = field(default_factory=TopDown)
    step_rule: StepRule | None = None
    acceleration: Acceleration = field(default_factory=NoAcceleration)
    smooth_quadratic: bool = False
    monotone: bool = True

    def __post_init__(self) -> None:
        rule, most = self.step_rule, self.acceleration.factor
        unguarded = not self.monotone and not self.acceleration.descends
        if unguarded and isinstance(rule, CurvatureStep) and rule.factor > most:
            raise SettingError(
                f"the factor of step_rule is {rule.factor!r} and monotone is False; {self.acceleration!r} needs a "
                f"factor of at most {most:g} to converge: leave step_rule out, or take monotone=True."
            )

    def _rule(self, problem: LiftedProblem) -> StepRule:
        """The step-size rule; by default the longest steps that the acceleration and the sweep admit."""
        if self.step_rule is not None:
            return self.step_rule
        if not all(layer.map.affine for layer in problem.network):  # of which no bound is known
            return Backtracking()
        return CurvatureStep(self.acceleration.factor / self.sweep.coupling(problem.links))

    @property
    def layer_parallel(self) -> bool:
        """With `Jacobi` sweeps and steps that are known before they are tried."""
        return (
            isinstance(self.sweep, Jacobi)
            and isinstance(self.step_rule, FixedStep | CurvatureStep | None)
            and isinstance(self.acceleration, NoAcceleration)
        )

    def require(self, problem: LiftedProblem) -> None:
        self.sweep.groups(problem.links)  # a permutation that does not fit is refused here

    def init(self, problem: LiftedProblem, batch: Batch) -> ProximalGradientState:
        return ProximalGradientState(
            variables=whole_variables(batch.shard, problem.forward_state(batch.X, check=False))
        )

    def step(self, problem: LiftedProblem, state: ProximalGradientState, batch: Batch) -> ProximalGradientState:
        assert state.variables is not None
        point = batch.point(problem, own_variables(batch.shard, state.variables))
        guarded = self.monotone and not self.acceleration.descends
        if guarded:
            before = float(problem.energy_at(point))
            kept = [(block, _copies(problem, point, block)) for block in all_blocks(problem.depth)]
        self._sweep(problem, point, state, self.acceleration)
        if guarded and not float(problem.energy_at(point)) <= before:
            for block, values in kept:
                set_block(problem, point, block, values)
            self.acceleration.restart(state.acceleration_memory)
            self._sweep(problem, point, state, NoAcceleration())
        state.variables = whole_variables(batch.shard, point.state)
        state.steps += 1
        return state

    def _sweep(
        self, problem: LiftedProblem, point: Point, state: ProximalGradientState, acceleration: Acceleration
    ) -> None:
        memory = state.acceleration_memory
        inertia = acceleration.before(problem, point, memory)
        rule = self._rule(problem)
        for group in self.sweep.groups(problem.links):
            rule.update(problem, point, group, state.step_memory, self.smooth_quadratic, inertia)
        acceleration.after(problem, point, memory, lambda: float(problem.energy_at(point)))


def _copies(problem: LiftedProblem, point: Point, block: Any) -> Any:
    return {name: value.clone() for name, value in block_values(problem, point, block).items()}
