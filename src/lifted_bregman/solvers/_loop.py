"""The one loop that all solvers share: batches, history, stopping, divergence, continuation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers._batches import epoch_order
from lifted_bregman.solvers._history import lifted_energies, measured
from lifted_bregman.solvers._interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers.outcome import Outcome, Result

Row = dict[str, float]


class Stalled(Exception):
    """Raised by a solver's step when it can make no more progress; the message names layer and quantity."""


class Diverged(Exception):
    """Something is not finite; the message names layer and quantity."""


class StopNow(KeyboardInterrupt):
    """A KeyboardInterrupt that a run does not turn into an outcome: the user asked a second time."""


class Phase(Enum):
    """What a run is doing now."""

    STEP = "in a step: parameters and state may be half changed"
    BETWEEN = "between steps"
    SAVE = "writing a checkpoint"


class Callback:
    """What a run calls as it goes.  Every method may be left out.

    The order of a run is `started`, then `stepped` after each step and `recorded` after each row of the history, then
    `ended`, the solver's own last word (averages), `finished`, and whatever happened `close`.
    """

    def started(self, run: Run) -> None:
        """Before the first step; a continued run has its state already."""

    def stepped(self, run: Run) -> None:
        """After each step."""

    def recorded(self, run: Run, row: Row) -> None:
        """After each new row of the history."""

    def ended(self, run: Run) -> None:
        """After the last step, with the parameters it left and the outcome in `run.outcome`."""

    def finished(self, run: Run) -> None:
        """At the very end; parameters changed here are the result's."""

    def close(self) -> None:
        """Always, even if the run raised."""

    def state_dict(self) -> dict[str, Any]:
        """What has to be kept for an exact continuation: containers of tensors and numbers."""
        return {}

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` returned."""


class Run:
    """One run of a solver on a problem: where it stands and what it has reached.

    The samples' order is a function of seed and epoch, so that position, solver state and parameters are all that a
    continuation needs.  Callbacks read these attributes.
    """

    history: list[Row]
    """One row every `record_every` epochs.  "step", "epoch" and "seconds" (in steps, evaluation aside); "objective"
    of the nested network on the training set, its "sparsity" in the middle layer and, for integer labels, "accuracy";
    "energy" of the lifted problem and its parts "energy_1" .. "energy_L"; "validation", the objective on the validation
    set, and "validation_accuracy"; "certificate" if a tolerance was given; the counters of work; the solver's metrics.
    """

    def __init__(
        self,
        problem: LiftedProblem,
        solver: Solver[Any],
        data: Batch,
        *,
        epochs: int,
        batch_size: int | None = None,
        seed: int = 0,
        tolerance: float | None = None,
        record_every: int = 1,
        validation: Batch | None = None,
        classify: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        for name, value in {"epochs": epochs, "record_every": record_every}.items():
            if isinstance(value, bool) or not (isinstance(value, int) and value >= 1):
                raise SettingError(f"{name} is {value!r}; it must be a whole number of at least 1.")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise SettingError(f"seed is {seed!r}; it must be a whole number.")
        if batch_size is not None and not solver.minibatch:
            raise SettingError(
                f"batch_size is {batch_size!r}, but {type(solver).__name__} takes the whole set at every step; leave "
                "it out, or put the solver into ImplicitSGD(solver=...)."
            )
        if data.weights is not None and not solver.weighted:
            raise lacking(solver, "samples that all count the same", "sample weights were given; leave them out")
        solver.require(problem)
        self.problem, self.solver, self.data, self.validation = problem, solver, data, validation
        self.epochs, self.batch_size, self.seed = epochs, batch_size, seed
        self.tolerance, self.record_every, self.classify = tolerance, record_every, classify
        self.callbacks = list(callbacks)
        self.epoch = 1
        """The epoch under way, from 1."""
        self.batch = 0
        """Batches of this epoch that are done."""
        self.seconds = 0.0
        self.history = []
        self.phase = Phase.BETWEEN
        self.outcome: Outcome | None = None
        self.message = ""
        self._record_at_stop = False
        self.state: SolverState = solver.init(problem, self._batch(self._order(1), 0))
        solver.attach(problem, self.state)

    @property
    def intact(self) -> bool:
        """Whether parameters and state are those after a whole step."""
        return self.phase is not Phase.STEP and self.outcome is not Outcome.DIVERGED

    def stop(self, outcome: Outcome, reason: str, record: bool = False) -> None:
        """Ends the run after the present step or row; `record` adds a row for an epoch that is not over."""
        if self.outcome is None:
            self.outcome, self.message, self._record_at_stop = outcome, f"{outcome.value} {reason}", record

    def state_dict(self) -> dict[str, Any]:
        """Position, solver state and counters of work: with parameters and history, all of a run.  Not copied."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
            "work": self.problem.work.as_dict(),
            "solver": self.state.state_dict(),
        }

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Continues where `state_dict` was taken; parameters and history are put back by the caller."""
        self.epoch, self.batch, self.seconds = entries["epoch"], entries["batch"], entries["seconds"]
        self.problem.work.reset(entries["work"])
        self.state.load_state_dict(entries["solver"])
        self.solver.attach(self.problem, self.state)

    def execute(self) -> Result:
        """Runs to the end, which is an outcome and not an exception."""
        keeper = _Keeper(self)
        try:
            try:
                require_finite(self)
                self._call("started")
                self._epochs(keeper)
                self._end(Outcome.FINISHED, "")
            except Stalled as stalled:
                self.phase = Phase.BETWEEN
                self._end(Outcome.STALLED, f" {stalled}")
            except Diverged as diverged:
                keeper.restore(self.problem)
                self._end(Outcome.DIVERGED, f" {diverged}.")
            except StopNow:
                raise
            except KeyboardInterrupt:
                self._end(Outcome.INTERRUPTED, "")
            try:
                self._call("ended")
            except Diverged as diverged:
                keeper.restore(self.problem)
                self._end(Outcome.DIVERGED, f" {diverged}.")
            if self.outcome is not Outcome.DIVERGED:
                self.solver.finish(self.problem, self.state)
            self._call("finished")
        finally:
            self._call("close", owner=False)
        assert self.outcome is not None
        return Result(self.outcome, self.message, self.state, self.history)

    def _epochs(self, keeper: _Keeper) -> None:
        while self.epoch <= self.epochs and self.outcome is None:
            order = self._order(self.epoch)
            while self.batch < len(order) and self.outcome is None:
                self._step(order)
                self._call("stepped")
            whole_epoch = self.batch == len(order)
            due = whole_epoch and (self.epoch % self.record_every == 0 or self.epoch == self.epochs)
            if (due and self.outcome is not Outcome.INTERRUPTED) or self._record_at_stop:
                keeper.keep(self)
                row = self._row(self._batch(order, max(self.batch, 1) - 1))
                if not math.isfinite(row["objective"]):
                    raise Diverged(f"the objective is {row['objective']} after epoch {self.epoch}")
                self.history.append(row)
                if whole_epoch:
                    self.epoch, self.batch = self.epoch + 1, 0
                self._call("recorded", row)
                self._judge(row)
            elif whole_epoch and not due:
                self.epoch, self.batch = self.epoch + 1, 0

    def _step(self, order: Sequence[Tensor | None]) -> None:
        started = time.perf_counter()
        self.phase = Phase.STEP
        self.state = self.solver.step(self.problem, self.state, self._batch(order, self.batch))
        self.batch += 1
        self.phase = Phase.BETWEEN
        self.seconds += time.perf_counter() - started
        for name, value in self.state.metrics.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value} after step {self.state.steps}")

    def _row(self, last: Batch) -> Row:
        counted = self.problem.work.as_dict()
        row: Row = {"step": self.state.steps, "epoch": self.epoch, "seconds": self.seconds}
        row |= measured(self.problem, self.data, self.classify)
        row |= lifted_energies(self.problem, self.state, self.data, last)
        if self.validation is not None:
            reached = measured(self.problem, self.validation, self.classify)
            row["validation"] = reached["objective"]
            if self.classify:
                row["validation_accuracy"] = reached["accuracy"]
        variables = self.state.variables
        if self.tolerance is not None and variables is not None:
            kept = len(variables[1]) if len(variables) else len(self.data)
            if kept == len(self.data):
                X, Y, weights = self.data.X, self.data.Y, self.data.weights
                row["certificate"] = self.problem.certificates(variables, X, Y, weights=weights).largest
        self.problem.work.reset(counted)  # what the history costs is not the solver's work
        return row | counted | self.state.metrics

    def _judge(self, row: Row) -> None:
        if self.tolerance is not None and row.get("certificate", math.inf) <= self.tolerance:
            self._end(Outcome.CONVERGED, f" The largest is {row['certificate']:.3g} after {self.state.steps} steps.")

    def _end(self, outcome: Outcome, detail: str) -> None:
        """What ends a run by itself; a stop that was asked for before stands, unless the run diverged."""
        if self.outcome is None or outcome is Outcome.DIVERGED:
            self.outcome, self.message = outcome, outcome.value + detail

    def _order(self, epoch: int) -> Sequence[Tensor | None]:
        if self.batch_size is None:
            return (None,)
        return epoch_order(len(self.data), self.batch_size, self.seed, epoch)

    def _batch(self, order: Sequence[Tensor | None], number: int) -> Batch:
        places = order[number]
        return self.data if places is None else self.data.select(places)

    def _call(self, moment: str, *arguments: Row, owner: bool = True) -> None:
        for callback in self.callbacks:
            getattr(callback, moment)(*((self, *arguments) if owner else arguments))


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
    callback: Callable[[SolverState, Row], bool | None] | None = None,
) -> Result:
    """Trains `problem` in place with `solver`, for at most `epochs` passes over the data.

    The bare loop; `lifted_bregman.fit` adds other forms of data, validation, callbacks and checkpoints.  Stops early
    when the largest certificate, max over blocks of the prox-gradient residual, is at most `tolerance` (solvers with
    variables of the whole set only).  Every `record_every` epochs a row is added to the history, parameters and
    solver state are scanned, and a copy of the parameters is kept; if anything is not finite the run ends as DIVERGED
    with that copy.

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
    return Run(
        problem,
        solver,
        Batch.whole(problem, *data),
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        tolerance=tolerance,
        record_every=record_every,
        callbacks=[] if callback is None else [_Function(callback)],
    ).execute()


class _Function(Callback):
    def __init__(self, function: Callable[[SolverState, Row], bool | None]) -> None:
        self._function = function

    def recorded(self, run: Run, row: Row) -> None:
        if self._function(run.state, row):
            run.stop(Outcome.STOPPED, "The function asked for it.")


class _Keeper:
    """A copy of the last parameters known to be finite."""

    def __init__(self, run: Run) -> None:
        self._copies = [p.detach().clone() for p in run.problem.model.parameters()]

    def keep(self, run: Run) -> None:
        require_finite(run)
        with torch.no_grad():
            torch._foreach_copy_(self._copies, [p.detach() for p in run.problem.model.parameters()])

    def restore(self, problem: LiftedProblem) -> None:
        with torch.no_grad():
            torch._foreach_copy_([p.detach() for p in problem.model.parameters()], self._copies)


def require_finite(run: Run) -> None:
    """Raises `Diverged` unless every parameter and every tensor of the solver's state is finite."""
    after = f"not finite after step {run.state.steps}"
    for layer in run.problem.network:
        for name, parameter in layer.map.parameters.items():
            if not _finite(parameter.detach()):
                raise Diverged(f"{name} of {layer.path} is {after}")
    if run.state.variables is not None:
        for number, x in enumerate(run.state.variables, start=1):
            if not _finite(x):
                raise Diverged(f"x_{number} is {after}")
    where = _not_finite(run.state.state_dict(), "")
    if where is not None:
        raise Diverged(f"{where} of the solver's state is {after}")


def _finite(t: Tensor) -> bool:
    """Whether every number is finite.  A finite sum says so in one pass; another may only have overflowed."""
    return bool(t.sum().isfinite()) or bool(t.isfinite().all())


def _not_finite(value: Any, path: str) -> str | None:
    """The place of the first tensor that holds NaN or infinity."""
    if isinstance(value, Tensor):
        return None if not value.is_floating_point() or _finite(value) else path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        where = _not_finite(entry, f"{path}/{key}" if path else str(key))
        if where is not None:
            return where
    return None
