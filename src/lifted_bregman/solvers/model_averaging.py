"""Data-parallel training: model averaging (Section 4.2.2) and implicit steps towards the mean (eq. 23)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch

from lifted_bregman._arguments import require_count
from lifted_bregman._generators import named_generator
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, LiftedState
from lifted_bregman.solvers._inner_solver import require_deterministic, require_solvable, solve
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, of_inner
from lifted_bregman.solvers.parameters import (
    LayerTensors,
    accumulate,
    copy_parameters,
    overwrite,
    parameters_in_place,
    set_to_zero,
)
from lifted_bregman.solvers.proximal_gradient import ProximalGradient
from lifted_bregman.solvers.schedules import Schedule, as_schedule


class Team(ABC):
    """Runs the workers and averages their parameters."""

    @abstractmethod
    def average(
        self,
        work: Callable[[int], None],
        shares: list[float],
        parameters: LayerTensors,
        common: LayerTensors,
        mean: LayerTensors,
    ) -> None:
        """Runs work(p) from `parameters` = `common` for every worker p, and leaves Σ_p shares[p] Θ_p in `parameters`.

        The sum is taken in the order of p, from 0, starting at zero; so every team gives the same numbers.
        """

    def gather(
        self, parts: list[torch.Tensor], variables: LiftedState | None, work: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Gathers the workers' variables in this process, after `average`; returns the work of all processes.

        parts      the rows of `variables` of each worker
        variables  of the whole set, changed in place
        work       the counts of work in this process
        """
        return work


@dataclass(frozen=True)
class OneProcess(Team):
    """Runs the workers one after another in this process, with two copies of the parameters in all.

    Example:
        >>> from lifted_bregman.solvers import OneProcess
        >>> solver = lb.ModelAveraging(workers=2, team=OneProcess())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=30)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    def average(
        self,
        work: Callable[[int], None],
        shares: list[float],
        parameters: LayerTensors,
        common: LayerTensors,
        mean: LayerTensors,
    ) -> None:
        set_to_zero(mean)
        for worker, share in enumerate(shares):
            overwrite(parameters, common)
            work(worker)
            accumulate(mean, parameters, share)
        overwrite(parameters, mean)


@dataclass
class AveragingState(SolverState):
    """Variables of all samples after their worker's last step, and memory for the common parameters and the mean."""

    common: LayerTensors = field(default_factory=dict)
    mean: LayerTensors = field(default_factory=dict)


@dataclass(frozen=True)
class ModelAveraging(Solver[AveragingState]):
    """Averages the Θ that m workers reach from a common Θ, each on a different part of the samples (Section 4.2.2).

        Θ_p ≈ argmin_Θ min_X E_{B_p}(Θ, X) from Θ          Θ ← Σ_p (|B_p|/s) Θ_p

    The samples are dealt to the workers once, by a permutation that depends on the seed and their number alone.  Parts
    differ by at most one sample; where they are equal the mean is the paper's (1/m) Σ_p Θ_p.  A worker starts from the
    forward pass on its samples and needs only Θ and those samples, so that it can run in any process.  With sample
    weights the sum of w_i replaces |B_p|, and E_{B_p} is the weighted mean over the part.

    Guaranteed for convex problems: E(mean) is at most the mean of the E(Θ_p).  The mean of the parts' minimisers is not
    the minimiser of E; with few local steps and many rounds the result comes closer to it.

    workers      m >= 1
    solver       a deterministic solver
    local_steps  its steps for each worker and round, >= 1
    seed         of the permutation
    team         who runs the workers

    Example:
        >>> solver = lb.ModelAveraging(workers=2)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=30)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    shared_parameters: ClassVar[bool] = of_inner("shared_parameters")
    weighted: ClassVar[bool] = of_inner("weighted")

    workers: int
    solver: Solver[Any] = field(default_factory=ProximalGradient)
    local_steps: int = 10
    seed: int = 0
    team: Team = field(default_factory=OneProcess)

    def __post_init__(self) -> None:
        _check(self.workers, self.solver, self.local_steps)

    def require(self, problem: LiftedProblem) -> None:
        require_solvable(problem.anchored(parameters_in_place(problem), 0.0), self.solver, self.local_steps)

    def planned(self, steps: float, epochs: float) -> Self:
        return self._changed(solver=self.solver.planned(self.local_steps, epochs=0))

    def init(self, problem: LiftedProblem, batch: Batch) -> AveragingState:
        return _start(problem, batch, self.workers)

    def step(self, problem: LiftedProblem, state: AveragingState, batch: Batch) -> AveragingState:
        return _round(problem, state, batch, self, 0.0)


@dataclass(frozen=True)
class ImplicitParallel(Solver[AveragingState]):
    """m workers take an implicit step from the mean of the last round, each on its part of the samples (eq. 23).

        Θ_p ≈ argmin_Θ min_X E_{B_p}(Θ, X) + (τ_k/2)‖Θ - Θ̄‖²          Θ̄ ← Σ_p (|B_p|/s) Θ_p

    τ_k is a weight, the reciprocal of the τ in eq. 23.  With the sub-problems solved and E convex, a constant τ is a
    gradient step 1/τ on the mean of the parts' Moreau envelopes and converges to the minimiser of that, which is not
    the minimiser of E, but as close to it as O(1/τ).  A growing τ_k with Σ 1/τ_k = ∞ converges to the minimiser of E.

    prox_weight  τ_k > 0, a number or a schedule of the round k such as `Growing`

    The other settings are those of `ModelAveraging`.

    Example:
        >>> solver = lb.ImplicitParallel(workers=2, prox_weight=0.1)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=8)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    shared_parameters: ClassVar[bool] = of_inner("shared_parameters")
    weighted: ClassVar[bool] = of_inner("weighted")

    workers: int
    prox_weight: float | Schedule
    solver: Solver[Any] = field(default_factory=ProximalGradient)
    local_steps: int = 10
    seed: int = 0
    team: Team = field(default_factory=OneProcess)

    def __post_init__(self) -> None:
        _check(self.workers, self.solver, self.local_steps)
        as_schedule(self.prox_weight, "prox_weight")

    def require(self, problem: LiftedProblem) -> None:
        require_solvable(problem.anchored(parameters_in_place(problem), 1.0), self.solver, self.local_steps)

    def planned(self, steps: float, epochs: float) -> Self:
        return super().planned(steps, epochs)._changed(solver=self.solver.planned(self.local_steps, epochs=0))

    def init(self, problem: LiftedProblem, batch: Batch) -> AveragingState:
        return _start(problem, batch, self.workers)

    def step(self, problem: LiftedProblem, state: AveragingState, batch: Batch) -> AveragingState:
        tau = as_schedule(self.prox_weight, "prox_weight").value(state.steps)
        state.metrics["prox_weight"] = tau
        return _round(problem, state, batch, self, tau)


def deal(samples: int, workers: int, seed: int) -> list[torch.Tensor]:
    """The indices of each worker's samples in the whole set."""
    order = torch.randperm(samples, generator=named_generator(seed, "workers"))
    return list(order.tensor_split(workers))


def work_alone(
    problem: LiftedProblem, common: LayerTensors, prox_weight: float, solver: Solver[Any], batch: Batch, steps: int
) -> SolverState:
    """The work of one worker: `steps` steps of `solver` on its `batch` from the common parameters, in the model."""
    return solve(problem.anchored(common, prox_weight), solver, batch, steps)


def _check(workers: int, solver: Solver[Any], local_steps: int) -> None:
    require_count(workers, "workers")
    require_count(local_steps, "local_steps")
    require_deterministic(solver)


def _start(problem: LiftedProblem, batch: Batch, workers: int) -> AveragingState:
    if workers > len(batch):
        raise SettingError(f"workers is {workers} for {len(batch)} samples; each worker needs at least one.")
    return AveragingState(
        variables=problem.forward_state(batch.X, check=False),
        common=copy_parameters(problem),
        mean=copy_parameters(problem),
    )


def _alone(part: Batch) -> Batch:
    """The part of one worker as a whole set, with weights rescaled to mean 1."""
    return part if part.weights is None else replace(part, weights=part.weights / part.weights.mean())


def _round(
    problem: LiftedProblem, state: AveragingState, batch: Batch, solver: ModelAveraging | ImplicitParallel, tau: float
) -> AveragingState:
    parameters = parameters_in_place(problem)
    overwrite(state.common, parameters)
    parts = deal(len(batch), solver.workers, solver.seed)

    def work(worker: int) -> None:
        own = _alone(batch.select(parts[worker]))
        done = work_alone(problem, state.common, tau, solver.solver, own, solver.local_steps)
        if state.variables is not None and done.variables is not None:
            state.variables.update(parts[worker].to(batch.X.device), done.variables)

    before, w = problem.work.as_dict(), batch.weights
    shares = [len(part) / len(batch) if w is None else float(w[part].sum() / w.sum()) for part in parts]
    solver.team.average(work, shares, parameters, state.common, state.mean)
    own = {name: count - before[name] for name, count in problem.work.as_dict().items()}
    done = solver.team.gather([part.to(batch.X.device) for part in parts], state.variables, own)
    problem.work.reset({name: before[name] + count for name, count in done.items()})
    state.steps += 1
    return state
