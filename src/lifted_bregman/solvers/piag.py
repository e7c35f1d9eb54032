"""Proximal incremental aggregated gradient descent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lifted_bregman._arguments import require_count
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers._gradient_table import (
    REBUILT,
    TableState,
    advance,
    oldest,
    start_table,
    swept_residuals,
)
from lifted_bregman.solvers._persistent import StepSize, require_step
from lifted_bregman.solvers.interface import Batch, Solver, lacking
from lifted_bregman.solvers.requirements import require_affine
from lifted_bregman.solvers.steps import CurvatureStep


@dataclass(frozen=True)
class PIAG(Solver[TableState]):
    """min over (Θ, X) of E = (1/s) Σ_i ( G(X_i) + H(Θ, X_i) ) + P(Θ), along the mean of every sample's last gradient.

        X_i ← prox_{tG}( X_i - t ∇_{X_i} H(Θ, X_i) ),   g_i ← ∇_Θ H(Θ, X_i)          for i in B
        Θ   ← prox_{tP}( Θ - t (1/s) Σ_i g_i )                                       over all samples

    The g_i are kept as (x_{l-1}, d_l), whose product they are, and start at 0.  Batches come in any order that visits
    every sample at least once in K + 1 steps; a step that would break this is refused.  A fixed cycle of m batches has
    K = m - 1, batches drawn afresh in every epoch have K = 2m - 2.

    Guaranteed for one layer (then E is convex in Θ and there is no X), once every sample has been visited, if
    t < 2/((2K + 1)L): the mean of old gradients is off by at most L Σ ‖last K moves of Θ‖, so that

        E + (L/2) Σ_{j=1..K} (K + 1 - j) ‖Θ^{k+1-j} - Θ^{k-j}‖²

    decreases and limit points are minimisers.  L = Σ_b (|b|/s) L_b over the batches b of a fixed partition, which is at
    most the largest L_b; for batches drawn afresh, less than twice that.  For strongly convex E and small enough t the
    convergence is linear (Aytekin, Feyzmahdavian, Johansson 2016; Vanli, Gürbüzbalaban, Ozdaglar 2018), which is
    observed for the default too.  For deeper networks convergence is only observed.

    delay_bound     K >= 0
    step_parameter  t: `CurvatureStep(factor)` for factor/((2K + 1)L), factor in (0, 2), with the largest L_b of the
                    batches so far for L; or a number or schedule
    step_variable   t of X_i: a number, a schedule or `CurvatureStep`
    variable_steps  sweeps over the batch's x_{L-1} .. x_1 before its gradients are taken, >= 1

    Example:
        >>> solver = lb.PIAG(delay_bound=6)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=30, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    minibatch: ClassVar[bool] = True
    indexed: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    delay_bound: int
    step_parameter: StepSize = field(default_factory=lambda: CurvatureStep(1.9, upper=False))
    step_variable: StepSize = field(default_factory=lambda: CurvatureStep(1.0, upper=False))
    variable_steps: int = 1

    def __post_init__(self) -> None:
        require_count(self.delay_bound, "delay_bound", least=0)
        require_step(self.step_parameter, "step_parameter")
        require_step(self.step_variable, "step_variable")
        require_count(self.variable_steps, "variable_steps")

    def require(self, problem: LiftedProblem) -> None:
        require_affine(self, problem, REBUILT)

    def init(self, problem: LiftedProblem, batch: Batch) -> TableState:
        return start_table(problem, batch)

    def step(self, problem: LiftedProblem, state: TableState, batch: Batch) -> TableState:
        delay = oldest(state, batch)
        if delay > self.delay_bound:
            raise lacking(
                self,
                f"batches that visit every sample once in {self.delay_bound + 1} steps",
                f"at step {state.steps} a sample was last visited {delay} steps ago; raise delay_bound (for m batches "
                "an epoch, m - 1 in a fixed order, 2m - 2 in a fresh order each time)",
            )
        state.metrics["delay"] = float(delay)
        advance(
            problem,
            state,
            batch,
            step=self.step_parameter,
            divisor=lambda _: 2.0 * self.delay_bound + 1.0,
            correction=1.0,
            signals=swept_residuals(problem, state, self.step_variable, self.variable_steps),
        )
        return state
