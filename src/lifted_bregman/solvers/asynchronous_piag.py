"""Asynchronous proximal incremental aggregated gradient descent, with a bound on delays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from lifted_bregman._arguments import require_count
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers._persistent import StepSize, require_step
from lifted_bregman.solvers.asynchronous_round import Round
from lifted_bregman.solvers.asynchronous_teams import AsynchronousTeam, InTurn
from lifted_bregman.solvers.interface import Batch, Solver, SolverState
from lifted_bregman.solvers.parameters import LayerTensors, zero_parameters
from lifted_bregman.solvers.steps import CurvatureStep

_EACH = 10  # updates of a round for each worker


@dataclass
class AsynchronousState(SolverState):
    """Variables of all samples, the last gradient of each worker with its version of Θ, and the order of arrivals."""

    updates: int = 0
    """The number of updates of Θ so far."""
    parts: list[LayerTensors] = field(default_factory=list)
    """g_p, the last gradient of each worker."""
    versions: list[int] = field(default_factory=list)
    """v_p, the number of updates before the Θ of each g_p; -1 before a worker's first gradient."""
    curvature: list[dict[int, float]] = field(default_factory=list)
    """(|p|/s) L_p of each worker by layer, the largest so far."""
    arrived: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    """Which workers contributed to each update of the last round, bool (updates, workers)."""
    delays: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """The age of the oldest g_p in each update of the last round, (updates,)."""
    at_bound: int = 0
    """The number of updates of the last round that had to wait for a worker because of the delay bound."""

    @property
    def order(self) -> list[list[int]]:
        """The workers that contributed to each update of the last round."""
        return [row.nonzero().flatten().tolist() for row in self.arrived]


@dataclass(frozen=True)
class AsynchronousPIAG(Solver[AsynchronousState]):
    """min over (Θ, X) of E = (1/s) Σ_i ( G(X_i) + H(Θ, X_i) ) + P(Θ), by m asynchronous workers.

    The samples are split into m contiguous parts, once.  Worker p gets a Θ, which may be outdated when p has finished:

        X_i ← prox_{tG}( X_i - t ∇_{X_i} H(Θ, X_i) ),   g_p ← (1/s) Σ_i ∇_Θ H(Θ, X_i)        for i in part p

    When a worker contributes its g_p, Θ is moved along the sum of all parts, and the worker gets the result:

        Θ^{k+1} = prox_{tP}( Θ^k - t Σ_p g_p ),        g_p of Θ^{v_p},   v_p <= k

    The delay of an update is the age of its oldest part, max_p k - v_p.  It never exceeds K: an update that would use
    an older part waits for that worker, and keeps the contributions of the others meanwhile.  The first update waits
    for all workers.  m workers of equal speed have a delay of 2m - 2: m - 1 while a gradient is computed, and m - 1
    until it is replaced.  With a smaller K workers wait for each other.  With K = 0 every update is a proximal gradient
    step with the whole gradient.

    A step is a round of updates.  All workers begin a round with the same Θ, and its last update waits for all of them.
    Between rounds no worker computes, so that a state can be saved and resumed with another number of processes.

    Guaranteed for one layer (then E is convex in Θ and there is no X), if t < 2/((2K + 1)L).  Let L_p be a Lipschitz
    constant of the gradient of the mean over part p, and L = Σ_p (|p|/s) L_p, which is at most the largest L_p.  Then

        ‖Σ_p g_p - ∇H(Θ^k)‖ <= Σ_p (|p|/s) L_p ‖Θ^{v_p} - Θ^k‖ <= L Σ_{j=1..K} ‖Δ_{k-j}‖,        Δ_k = Θ^{k+1} - Θ^k

    ∇H is L-Lipschitz too, and the proximal map gives 1/t: with ab <= (a² + b²)/2

        E(Θ^{k+1}) <= E(Θ^k) - (1/t - L/2 - KL/2) ‖Δ_k‖² + (L/2) Σ_{j=1..K} ‖Δ_{k-j}‖²

    so that E(Θ^k) + (L/2) Σ_{j=1..K} (K + 1 - j) ‖Δ_{k-j}‖² falls by (1/t - (2K + 1)L/2) ‖Δ_k‖², whatever the order of
    arrival.  Limit points are minimisers.  For strongly convex E and small enough t the convergence is linear (Aytekin,
    Feyzmahdavian, Johansson 2016).  For deeper networks convergence is only observed.

    Metrics of a round: "delay" and "delay_mean", the largest and the mean delay of its updates; "at_bound", the number
    of updates that waited because of the delay bound.  The state has the order of arrivals; `Recorded` repeats it.

    workers         m >= 1, at most the number of samples
    delay_bound     K >= 0
    updates         of a round, at least 1; None for 10m
    step_parameter  t: `CurvatureStep(factor)` for factor/((2K + 1)L), factor in (0, 2), with the largest L_p so far of
                    each part; or a number or schedule of k
    step_variable   t of X_i: a number, a schedule of the version v of Θ, or `CurvatureStep`
    variable_steps  sweeps over the part's x_{L-1} .. x_1 before its gradient is taken, >= 1
    team            runs the workers: in one process `InTurn`, `AtRandom` or `Recorded`

    Example:
        >>> solver = lb.AsynchronousPIAG(workers=2, delay_bound=2)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=15)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
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
        """The number of updates of a round."""
        return _EACH * self.workers if self.updates is None else self.updates

    def require_processes(self, count: int) -> None:
        """An error unless there is at least one worker for each of `count` processes."""
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
            parts=[zero_parameters(problem) for _ in range(self.workers)],
            versions=[-1] * self.workers,
            curvature=[{} for _ in range(self.workers)],
        )

    def step(self, problem: LiftedProblem, state: AsynchronousState, batch: Batch) -> AsynchronousState:
        self.team.run(Round(problem, state, batch, self))
        return state
