"""Proximal SAGA and SAG: stochastic gradients whose noise vanishes at the solution."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from lifted_bregman._arguments import require_count
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers._gradient_table import REBUILT, TableState, advance, start_table, swept_residuals
from lifted_bregman.solvers._persistent import StepSize, require_step
from lifted_bregman.solvers.interface import Batch, Solver
from lifted_bregman.solvers.requirements import require_affine
from lifted_bregman.solvers.steps import CurvatureStep


@dataclass(frozen=True)
class _RandomBatches(Solver[TableState]):
    """The common part of SAGA and SAG, which differ in step size and in the weight of the batch's own gradient."""

    minibatch: ClassVar[bool] = True
    indexed: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    step_parameter: StepSize
    step_variable: StepSize = field(default_factory=lambda: CurvatureStep(1.0, upper=False))
    variable_steps: int = 1

    def __post_init__(self) -> None:
        require_step(self.step_parameter, "step_parameter")
        require_step(self.step_variable, "step_variable")
        require_count(self.variable_steps, "variable_steps")

    def require(self, problem: LiftedProblem) -> None:
        require_affine(self, problem, REBUILT)

    def init(self, problem: LiftedProblem, batch: Batch) -> TableState:
        return start_table(problem, batch)

    def step(self, problem: LiftedProblem, state: TableState, batch: Batch) -> TableState:
        advance(
            problem,
            state,
            batch,
            step=self.step_parameter,
            divisor=lambda _: 1.0,
            correction=self._correction(batch.total, batch.samples),
            signals=swept_residuals(problem, state, self.step_variable, self.variable_steps),
        )
        return state

    @abstractmethod
    def _correction(self, samples: int, visited: int) -> float:
        """The weight of the renewed mean of gradients in the direction; the old mean has the rest to 1.

        samples  of the whole set
        visited  of the batch
        """


@dataclass(frozen=True)
class SAGA(_RandomBatches):
    """min over (Θ, X) of E = (1/s) Σ_i ( G(X_i) + H(Θ, X_i) ) + P(Θ), with the last gradients g_i as control variates.

        X_i ← prox_{tG}( X_i - t ∇_{X_i} H(Θ, X_i) )                                                for i in B
        Θ   ← prox_{tP}( Θ - t [ (1/|B|) Σ_{i in B} ( ∇_Θ H(Θ, X_i) - g_i ) + (1/s) Σ_i g_i ] )
        g_i ← ∇_Θ H(Θ, X_i), of the old Θ,                                                          for i in B

    The bracket's mean over all batches of a partition into equal parts is the full gradient, whatever the g_i are; its
    variance goes to 0 with the distance to the solution.  The g_i are kept as (x_{l-1}, d_l), whose product they are,
    and start at 0.

    Guaranteed for one layer (then E is convex in Θ and there is no X), batches drawn at random from a partition into m
    parts and t = 1/(3L), L the largest Lipschitz constant of a batch: for μ-strongly convex E the expected squared
    distance to the solution decreases like (1 - min(1/(4m), μ/(3L)))^k (Defazio, Bach, Lacoste-Julien 2014).  With the
    batches of an epoch in a random order without replacement, and for deeper networks, convergence is only observed.

    step_parameter  t: `CurvatureStep(factor)` for factor/L, L the largest over the batches so far; or a number or
                    schedule
    step_variable   t of X_i: a number, a schedule or `CurvatureStep`
    variable_steps  sweeps over the batch's x_{L-1} .. x_1 before its gradients are taken, >= 1

    Example:
        >>> solver = lb.SAGA()
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=15, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    step_parameter: StepSize = field(default_factory=lambda: CurvatureStep(1.0 / 3.0, upper=False))

    def _correction(self, samples: int, visited: int) -> float:
        return samples / visited


@dataclass(frozen=True)
class SAG(_RandomBatches):
    """Stochastic averaged gradients: a step along the mean of all last gradients, a biased direction.

        Θ ← prox_{tP}( Θ - t (1/s) Σ_i g_i ),  g_i = ∇_Θ H(Θ, X_i) for i in B,  X_i as in `SAGA`

    The update is `PIAG`'s, for random batches and the longer steps that these allow.  Guaranteed without a penalty for
    one layer, batches drawn at random from a partition into m parts and t = 1/(16L): linear convergence in expectation
    for strongly convex E (Schmidt et al. 2017).  With a penalty, and otherwise, only observed.

    Settings as for `SAGA`.

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.SAG(), epochs=10, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    step_parameter: StepSize = field(default_factory=lambda: CurvatureStep(1.0 / 16.0, upper=False))

    def _correction(self, samples: int, visited: int) -> float:
        return 1.0
