"""Proximal incremental aggregated gradient descent by workers that do not wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from lifted_bregman._arguments import require_count
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers._anchor import Anchor
from lifted_bregman.solvers._asynchronous_round import Round, blank
from lifted_bregman.solvers._interface import Batch, Solver, SolverState
from lifted_bregman.solvers._persistent import StepSize, require_step
from lifted_bregman.solvers.asynchronous_teams import AsynchronousTeam, InTurn
from lifted_bregman.solvers.steps import CurvatureStep

_EACH = 10  # updates of a round for each worker


@dataclass
class AsynchronousState(SolverState):
    """Variables of all samples, the gradient of each worker and the Θ it is of, and who came when in the last round."""

    updates: int = 0
    """How often Θ has been changed."""
    parts: list[Anchor] = field(default_factory=list)
    """g_p of each worker."""
    versions: list[int] = field(default_factory=list)
    """The updates that had led to the Θ of each g_p; -1 before the first."""
    curvature: list[dict[int, float]] = field(default_factory=list)
    """(|p|/s) L_p of each worker by layer, the largest so far."""
    arrived: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    """Which workers came in which update of the last round, (updates, workers)."""
    delays: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """The age of the oldest g_p in each update of the last round, (updates,)."""
    at_bound: int = 0
    """The updates of the last round that the bound did not allow without a certain worker."""

    @property
    def order(self) -> list[list[int]]:
        """The workers that came in each update of the last round."""
        return [row.nonzero().flatten().tolist() for row in self.arrived]


@dataclass(frozen=True)
class AsynchronousPIAG(Solver[AsynchronousState]):
    """min over (Θ, X) of E = (1/s) Σ_i ( G(X_i) + H(Θ, X_i) ) + P(Θ), by m workers of whom none waits for another.

    The samples are cut into m contiguous parts, once.  Worker p is handed a Θ, maybe an old one by the time it is done:

        X_i ← prox_{tG}( X_i - t ∇_{X_i} H(Θ, X_i) ),   g_p ← (1/s) Σ_i ∇_Θ H(Θ, X_i)        for i in part p

    Whenever a worker comes with its g_p, Θ is moved along all parts, and the worker is handed the result:

        Θ^{k+1} = prox_{tP}( Θ^k - t Σ_p g_p ),        g_p of Θ^{v_p},   v_p <= k

    The delay of an update is the age of its oldest part, max_p k - v_p.  It is never above K: an update that would have
    an older part is not made before that worker has come too, while what others bring is kept.  The first update has
    the parts of all.  In turns, m workers of one speed have a delay of 2m - 2: that of the work under way, m - 1, and
    as much again until the part is replaced.  With a smaller K they have to wait for each other, and with K = 0 every
    update is a proximal gradient step with the whole gradient.

    A step is a round of updates.  All workers begin it with the same Θ, and its last update waits for all, so that
    between rounds nothing is under way: states can be saved, and continued with another number of processes.

    Guaranteed for one layer (then E is convex in Θ and there is no X), if t < 2/((2K + 1)L).  Let L_p be a Lipschitz
    constant of the gradient of the mean over part p, and L = Σ_p (|p|/s) L_p, which is at most the largest L_p.  Then

        ‖Σ_p g_p - ∇H(Θ^k)‖ <= Σ_p (|p|/s) L_p ‖Θ^{v_p} - Θ^k‖ <= L Σ_{j=1..K} ‖Δ_{k-j}‖,        Δ_k = Θ^{k+1} - Θ^k

    ∇H is L-Lipschitz too, and the proximal map gives 1/t: with ab <= (a² + b²)/2

        E(Θ^{k+1}) <= E(Θ^k) - (1/t - L/2 - KL/2) ‖Δ_k‖² + (L/2) Σ_{j=1..K} ‖Δ_{k-j}‖²

    so that E(Θ^k) + (L/2) Σ_{j=1..K} (K + 1 - j) ‖Δ_{k-j}‖² falls by (1/t - (2K + 1)L/2) ‖Δ_k‖², whoever comes when.
    Limit points are minimisers.  For strongly convex E and small enough t the convergence is linear (Aytekin,
    Feyzmahdavian, Johansson 2016).  For deeper networks convergence is only observed.

    Metrics of a round: "delay" and "delay_mean", the largest and the mean delay of its updates; "at_bound", how many of
    them the bound did not allow without a certain worker.  Who came when is in the state; `Recorded` plays it again.

    workers         m >= 1, at most the number of samples
    delay_bound     K >= 0
    updates         of a round, at least 1; None for 10m
    step_parameter  t: `CurvatureStep(factor)` for factor/((2K + 1)L), factor in (0, 2), with the largest L_p so far of
                    each part; or a number or schedule of k
    step_variable   t of X_i: a number, a schedule of the version v of Θ, or `CurvatureStep`
    variable_steps  sweeps over the part's x_{L-1} .. x_1 before its gradient is taken, >= 1
    team            who runs the workers: in one process `InTurn`, `AtRandom` or `Recorded`
    """

    weighted: ClassVar[bool] = True

    workers: int
    delay_bound: int
    updates: int | None = None
    step_parameter: StepSize = field(default_factory=lambda: CurvatureStep(1.9, upper=False))
    step_variable: StepSize = field(default_factory=lambda: CurvatureStep(1.0, upper=False))
    variable_steps: int = 1
    team: AsynchronousTeam = field(default_factory=InTurn)

    def __post_init__(self) -> None:
        require_count(self.workers, "workers")
        require_count(self.delay_bound, "delay_bound", least=0)
        if self.updates is not None:
            require_count(self.updates, "updates")
        require_step(self.step_parameter, "step_parameter")
        require_step(self.step_variable, "step_variable")
        require_count(self.variable_steps, "variable_steps")

    @property
    def round_updates(self) -> int:
        """The updates of a round."""
        return _EACH * self.workers if self.updates is None else self.updates

    def require_processes(self, count: int) -> None:
        """An error unless each of `count` processes has a worker."""
        if count > self.workers:
            raise SettingError(
                f"{count} processes share a run of {self.workers} workers; each needs at least one: take fewer "
                "processes, or more workers."
            )

    def require_steps(self, problem: LiftedProblem, steps: int) -> None:
        super().require_steps(problem, steps * self.round_updates)

    def planned(self, steps: float, epochs: float) -> Self:
        return super().planned(steps * self.round_updates, epochs)

    def init(self, problem: LiftedProblem, batch: Batch) -> AsynchronousState:
        if self.workers > len(batch):
            raise SettingError(f"workers is {self.workers} for {len(batch)} samples; each worker needs at least one.")
        return AsynchronousState(
            variables=problem.forward_state(batch.X, check=False),
            parts=[blank(problem) for _ in range(self.workers)],
            versions=[-1] * self.workers,
            curvature=[{} for _ in range(self.workers)],
        )

    def step(self, problem: LiftedProblem, state: AsynchronousState, batch: Batch) -> AsynchronousState:
        self.team.run(Round(problem, state, batch, self))
        return state
