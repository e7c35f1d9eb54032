"""The one loop that all solvers share: batches, history, stopping, divergence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers._batches import epoch_batches
from lifted_bregman.solvers._interface import Batch, Solver, SolverState
from lifted_bregman.solvers.outcome import Outcome, Result


class Stalled(Exception):
    """Raised by a solver's step when it can make no more progress; the message names layer and quantity."""


def run(
    problem: LiftedProblem,
    data: tuple[Tensor, Tensor],
    solver: Solver[Any],
    *,
    epochs: int,
    batch_size: int | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    record_every: int = 1,
    callback: Callable[[SolverState, dict[str, float]], bool | None] | None = None,
) -> Result:
    """Trains `problem` in place with `solver`, for at most `epochs` passes over the data.

    Stops early when the largest certificate, max over blocks of the prox-gradient residual, is at most `tolerance`
    (solvers with variables of the whole set only).  Every `record_every` epochs a row is added to the history, the
    parameters are scanned, and a copy of them is kept; if anything is not finite the run ends as DIVERGED with that
    copy.

    Args:
        problem: what to minimise.
        data: (X, Y), checked before the first step.
        solver: the algorithm; its `require` is asked first.
        epochs: passes over the data; for a whole-set solver, steps.
        batch_size: samples per step, None for the whole set.
        seed: fixes the order of the samples.
        tolerance: stop at this certificate; None for never.
        record_every: epochs between rows of the history.
        callback: called with the state and each new row; a true value ends the run.
    """
    if not (isinstance(epochs, int) and epochs >= 1):
        raise SettingError(f"epochs is {epochs!r}; it must be a whole number of at least 1.")
    if batch_size is not None and not solver.minibatch:
        raise SettingError(
            f"batch_size is {batch_size!r}, but {type(solver).__name__} takes the whole set at every step; leave it "
            "out, or put the solver into ImplicitSGD(solver=...)."
        )
    solver.require(problem)
    whole = Batch.whole(problem, *data)
    state = solver.init(problem, next(epoch_batches(whole, batch_size, seed, 1)))
    keeper, history, started = _Keeper(problem), [], time.perf_counter()
    outcome, message = Outcome.FINISHED, Outcome.FINISHED.value
    try:
        for epoch in range(1, epochs + 1):
            for batch in epoch_batches(whole, batch_size, seed, epoch):
                state = solver.step(problem, state, batch)
                if bad := [name for name, value in state.metrics.items() if not math.isfinite(value)]:
                    raise _Diverged(f"{bad[0]} is {state.metrics[bad[0]]} after step {state.steps}")
            if epoch % record_every == 0 or epoch == epochs:
                keeper.keep(problem, state)
                row = _row(problem, state, whole, epoch, time.perf_counter() - started, tolerance is not None)
                history.append(row)
                if not math.isfinite(row["objective"]):
                    raise _Diverged(f"the objective is {row['objective']} after epoch {epoch}")
                if callback is not None and callback(state, row):
                    outcome, message = Outcome.INTERRUPTED, f"{Outcome.INTERRUPTED.value} The callback asked for it."
                    break
                if tolerance is not None and row.get("certificate", math.inf) <= tolerance:
                    outcome = Outcome.CONVERGED
                    message = f"{outcome.value} The largest is {row['certificate']:.3g} after {state.steps} steps."
                    break
    except Stalled as stalled:
        outcome, message = Outcome.STALLED, f"{Outcome.STALLED.value} {stalled}"
    except _Diverged as diverged:
        keeper.restore(problem)
        outcome, message = Outcome.DIVERGED, f"{Outcome.DIVERGED.value} {diverged}."
    except KeyboardInterrupt:
        outcome, message = Outcome.INTERRUPTED, Outcome.INTERRUPTED.value
    if outcome is not Outcome.DIVERGED:
        solver.finish(problem, state)
    return Result(outcome, message, state, history)


class _Diverged(Exception):
    pass


class _Keeper:
    """A copy of the last parameters known to be finite."""

    def __init__(self, problem: LiftedProblem) -> None:
        self._copies = [p.detach().clone() for p in problem.model.parameters()]

    def keep(self, problem: LiftedProblem, state: SolverState) -> None:
        for layer in problem.network:
            for name, parameter in layer.map.parameters.items():
                if not bool(parameter.detach().isfinite().all()):
                    raise _Diverged(f"{name} of {layer.path} is not finite after step {state.steps}")
        if state.variables is not None:
            for number, x in enumerate(state.variables, start=1):
                if not bool(x.isfinite().all()):
                    raise _Diverged(f"x_{number} is not finite after step {state.steps}")
        with torch.no_grad():
            torch._foreach_copy_(self._copies, [p.detach() for p in problem.model.parameters()])

    def restore(self, problem: LiftedProblem) -> None:
        with torch.no_grad():
            torch._foreach_copy_([p.detach() for p in problem.model.parameters()], self._copies)


def _row(
    problem: LiftedProblem, state: SolverState, whole: Batch, epoch: int, seconds: float, certify: bool
) -> dict[str, float]:
    row: dict[str, float] = {"step": state.steps, "epoch": epoch, "seconds": seconds}
    counted = problem.work.as_dict()
    row["objective"] = float(problem.objective(whole.X, whole.Y))
    if state.variables is not None and len(state.variables[1] if problem.depth > 1 else whole.X) == len(whole):
        row["energy"] = float(problem.energy(state.variables, whole.X, whole.Y))
        if certify:
            row["certificate"] = problem.certificates(state.variables, whole.X, whole.Y).largest
    problem.work.reset(counted)  # what the history costs is not the solver's work
    return row | counted | state.metrics
