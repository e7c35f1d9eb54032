"""The one loop that all solvers share: batches, history, stopping, divergence, continuation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lifted_bregman._arguments import whole
from lifted_bregman._generators import named_generator
from lifted_bregman.errors import SettingError, StreamError
from lifted_bregman.graph import Partition
from lifted_bregman.problem import Border, LiftedProblem
from lifted_bregman.problem.blocks import layers
from lifted_bregman.solvers._by_term import collected, own_terms
from lifted_bregman.solvers._callbacks import Callback, callback_error, close_all
from lifted_bregman.solvers._epoch import EpochBatches
from lifted_bregman.solvers._meter import Meter
from lifted_bregman.solvers._rows import evaluate_batch, evaluate_row
from lifted_bregman.solvers.agreement import Agreement, Stop
from lifted_bregman.solvers.batches import InMemory, Source
from lifted_bregman.solvers.data_ranks import DataRanks
from lifted_bregman.solvers.divergence import DivergenceGuard, ObjectiveReference, judged_entry
from lifted_bregman.solvers.evaluation import require_certificates
from lifted_bregman.solvers.finite import flat_metrics, read_numbers, require_finite
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, on_device
from lifted_bregman.solvers.outcome import Diverged, Outcome, Result, Stalled, StopNow
from lifted_bregman.solvers.requirements import require_compatible, require_streamable

Row = dict[str, float]


class Phase(Enum):
    """What a run is doing now."""

    STEP = "in a step: parameters and state may be half changed"
    BETWEEN = "between steps"
    ROW = "calling the callbacks with a new row: some have it, others have not"
    SAVE = "writing a checkpoint"


class Run:
    """One run of a solver on a problem: its position, state, history and outcome.

    The samples' order is a function of seed and epoch.  Position, solver state and parameters are therefore enough to
    resume a run.  Callbacks read these attributes.

    Several processes can share a run.  Each has the whole data and constructs the same run.  Ranks that share a batch
    (data parallelism) compute on their shards of it, and have the same parameters and state.  Ranks that share the
    layers (layer parallelism) have the parameters and state of the layers that they hold; `collect` gathers them.  The
    numbers are those of one process up to rounding.

    data               the whole set in memory, or a source that streams batches
    batch_size         samples per step of a set in memory, None for the whole set; a stream has its own
    measure_start      whether the objective of the initial parameters is one of the references for divergence; the
                       other is the loss of outputs 0
    evaluate_training  whether each row reads the whole stream once more, to evaluate it at the row's parameters
    ranks              the ranks that share each batch; this process alone by default
    border             the messages between ranks that share the terms; those of the problem by default
    agreement          how the ranks decide together when the run ends; this process alone decides by default
    """

    history: list[Row]
    """One row every `record_every` epochs.  "step", "epoch" and "seconds" (in steps, evaluation aside); "objective"
    of the nested network on the training set, its "sparsity" in the middle layer and, for integer labels, "accuracy";
    "energy" of the lifted problem and its parts "energy_1" .. "energy_L"; "validation", the objective on the validation
    set, and "validation_accuracy"; "certificate" if a tolerance was given; the work of this run; the solver's metrics.
    If the run diverged before its first row, the history has the row of the initial parameters, with epoch 0.

    A stream has "running_objective" and "running_accuracy" instead, the means over the samples of the epoch, each
    batch at the parameters before its step.  With `evaluate_training` "objective", "accuracy" and "sparsity" are there
    too, and there are no energies.
    """

    def __init__(
        self,
        problem: LiftedProblem,
        solver: Solver[Any],
        data: Batch | Source,
        *,
        epochs: int,
        batch_size: int | None = None,
        seed: int = 0,
        tolerance: float | None = None,
        record_every: int = 1,
        validation: Batch | Source | None = None,
        classify: bool = False,
        callbacks: Sequence[Callback] = (),
        measure_start: bool = True,
        evaluate_training: bool = False,
        ranks: DataRanks | None = None,
        border: Border | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        # Settings
        epochs, record_every = whole(epochs, "epochs"), whole(record_every, "record_every")
        seed = whole(seed, "seed", least=None)
        if batch_size is not None and not solver.minibatch:
            raise SettingError(
                f"batch_size is {batch_size!r}, but {type(solver).__name__} takes the whole set at every step; leave "
                "it out, or put the solver into ImplicitSGD(solver=...)."
            )
        # Data: a set in memory or a stream
        self.source = source = data if isinstance(data, Source) else InMemory(data, batch_size, seed)
        if source.streamed:
            require_streamable(solver)
        self.data = source.data if isinstance(source, InMemory) else source.first
        """The whole set, or the first batch of a stream."""
        # Ranks: who shares the batch, who shares the terms
        self.ranks = DataRanks() if ranks is None else ranks
        self.border = problem.border if border is None else border
        self.agreement = Agreement() if agreement is None else agreement
        require_compatible(solver, problem, self.data, self.ranks, self.partition)
        # The solver, with schedules planned for the number of steps of this run
        self.epochs, self.seed, self.batch_size = epochs, seed, batch_size
        if source.batches is None and solver.ends_with_run:
            raise SettingError(
                f"a schedule of {type(solver).__name__} ends with the run, and the data do not say how many batches an "
                "epoch has: give epoch_steps=, the data a length (__len__), or the schedule steps=."
            )
        steps = epochs * (source.batches or 1)  # a lower bound where an epoch's length is not known
        self.solver = solver = solver.planned(math.inf if source.batches is None else steps, epochs)
        solver.require(problem)
        # The problem: as a whole, for the history; and with the terms of this rank, for the steps
        self.problem = problem
        if problem.partition.count > 1:
            self.problem = problem.with_border(Border(Partition(problem.links)))
        self.rank_problem = self.problem if self.partition.count == 1 else self.problem.with_border(self.border)
        """The problem with the border of this run: what this rank steps on."""
        self._whole_state: dict[str, Any] | None = None
        self.validation, self.tolerance, self.record_every = validation, tolerance, record_every
        self.classify = classify
        self.callbacks, self._measure_start = list(callbacks), measure_start
        # Position and history: the state of the run that a checkpoint holds
        self.epoch = 1
        """The present epoch, counted from 1."""
        self.batch = 0
        """Batches of this epoch that are done."""
        self.batches = EpochBatches(source)
        """The batches of the present epoch."""
        self.seconds = 0.0
        """Time in steps, without evaluation and callbacks."""
        self.history = []
        self.start: Row | None = None
        """The row of the initial parameters, with step and epoch 0; None if they were not evaluated."""
        self.earlier: ObjectiveReference | None = None
        """The reference of runs that this one continues on other samples.  A callback may set it in `started`."""
        self._guard: DivergenceGuard | None = None  # from `execute` on
        self._kept: dict[str, Any] | None = None  # the guard's copy in a state that was loaded
        self.phase = Phase.BETWEEN
        self.outcome: Outcome | None = None
        self.message = ""
        self._record_at_stop = False
        self.meter = Meter(classify) if source.streamed else None
        """The running means of a stream's epoch; None for a set in memory."""
        self.evaluate_training = evaluate_training
        # The solver's initial state, from the first batch
        solver.require_steps(problem, steps)
        problem.work.reset()  # a run counts its own work
        source.require(problem)
        with problem.network.evaluating():
            self.state: SolverState = solver.init(self.rank_problem, source.first.share(self.ranks))
        solver.attach(self.rank_problem, self.state)
        if tolerance is not None:
            whole_set = isinstance(source, InMemory) and source.whole
            require_certificates(solver, self.state, tolerance, whole_set)

    @property
    def partition(self) -> Partition:
        """Which terms this rank holds."""
        return self.border.partition

    @property
    def reference(self) -> ObjectiveReference | None:
        """The value with which rows are compared for divergence; None before `execute`."""
        return None if self._guard is None else self._guard.lasting

    @property
    def intact(self) -> bool:
        """Whether parameters, state, history and callbacks are those after a whole step or row, fit to be saved."""
        return self.phase not in (Phase.STEP, Phase.ROW) and self.outcome is not Outcome.DIVERGED

    def stop(self, outcome: Outcome, reason: str, record: bool = False) -> None:
        """Ends the run after the present step or row; `record` adds a row for an epoch that is not over."""
        if self.outcome is None:
            self.outcome, self.message, self._record_at_stop = outcome, f"{outcome.value} {reason}", record

    def state_dict(self) -> dict[str, Any]:
        """Position, solver state and counters of work.  Tensors are not copied.

        A run is resumed from these entries, the parameters and the history.  "start" is the row of the initial
        parameters.  "kept" has the parameters of the last good row, if the present ones are different.  Where processes
        share the layers, all of them call `collect` first.
        """
        position: dict[str, Any] = {
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
            "start": self.start,
        }
        if self.meter is not None:
            position["running"] = self.meter.state_dict()
            position["stream"] = self.batches.state_dict(self.batch)
        if self._whole_state is not None:
            return position | self._whole_state
        own = {"work": self.problem.work.as_dict(), "solver": self.state.state_dict()}
        return position | own | self._kept_state()

    def _kept_state(self) -> dict[str, Any]:
        if self._guard is None:
            return {} if self._kept is None else {"kept": self._kept}
        return {} if self._guard.steps == self.state.steps else {"kept": self._guard.state_dict(self.partition)}

    def collect(self, state: bool = True) -> None:
        """Gathers what is spread over the ranks that share the terms; does nothing if this rank has all terms.

        All ranks receive the parameters of all terms.  With `state`, rank 0 receives the solver's state and work.
        """
        if self.partition.count == 1:
            return
        self.agreement.share_error(None)  # a rank that has failed sends nothing
        network = self.problem.network
        self.border.spread({l: [p.detach() for p in network[l].map.parameters.values()] for l in layers(len(network))})
        if state:
            whole = collected(self.state.state_dict() | self._kept_state(), self.border, self.solver.counts)
            kept = {"kept": whole.pop("kept")} if "kept" in whole else {}
            self._whole_state = {"work": self.total_work(), "solver": whole} | kept

    def total_work(self) -> dict[str, float]:
        """The work of all ranks that share the terms."""
        own = self.problem.work.as_dict()
        return dict(zip(own, map(int, self.border.sum_numbers(*own.values())), strict=True))

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Restores position, solver state and counters of work; the caller restores parameters and history."""
        self.epoch, self.batch, self.seconds = entries["epoch"], entries["batch"], entries["seconds"]
        self.problem.work.reset(entries["work"] if self.partition.rank == 0 else dict.fromkeys(entries["work"], 0))
        self.start, self._kept = entries.get("start"), entries.get("kept")
        self.batches.begin(entries.get("stream") or {})
        if self.meter is not None:
            self.meter.load_state_dict(entries["running"])
        own = entries["solver"]
        if self.partition.count > 1:
            kept = {} if self._kept is None else {"kept": self._kept}
            own = own_terms(own | kept, self.partition, self.solver.counts)
            self._kept = own.pop("kept", None)
        device = self.data.X.device  # a checkpoint's tensors are on the CPU
        own, self._kept = on_device(own, device), on_device(self._kept, device)
        self.state.load_state_dict(own)
        self.solver.attach(self.rank_problem, self.state)

    def execute(self) -> Result:
        """Takes steps until the run ends, and sets `outcome`.  Only the failure of a stream raises, a `StreamError`."""
        failure: StreamError | None = None
        self._guard = DivergenceGuard(self)
        if self._kept is not None:
            self._guard.load_state_dict(self._kept)
            self._kept = None
        try:
            try:
                if self._together(partial(require_finite, self)) and self._together(self._start):
                    self._run_epochs()
                    if self.outcome is None:
                        self._together(partial(self._guard.judge_end, self))
                    self._end(Outcome.FINISHED, "")
            except StreamError as error:  # raised between steps: the last step is whole
                failure = error
                self._end(Outcome.INTERRUPTED, f" {error}")
            self._together(self._finish_steps, interruptible=False)
            if failure is not None:
                failure.result = Result(Outcome.INTERRUPTED, self.message, self.state, self.history)
                raise failure
            if self.outcome is not Outcome.DIVERGED:
                self.solver.finish(self.rank_problem, self.state)
            torch.clear_autocast_cache()
            self._call("finished")
        finally:
            self.batches.close()
            for source in (self.source, self.validation):
                if isinstance(source, Source):
                    source.close()
            close_all(self.callbacks, self.agreement)
        self.agreement.share_error(None)  # raises the error of a callback on another rank
        assert self.outcome is not None
        return Result(self.outcome, self.message, self.state, self.history)

    def take_step(self) -> None:
        """Fetches the next batch of the epoch and takes one step on it; at the end of the epoch it takes none."""
        # the batch: an error here leaves parameters and state whole
        self.batches.open(self.epoch, self.batch)
        started = time.perf_counter()
        fetched = self.batches.fetch()
        if fetched is None:
            return
        batch = fetched.share(self.ranks)
        if self.meter is not None:
            batch = replace(batch, meter=self.meter)
            self.meter.start_step(partial(evaluate_batch, self, fetched), len(fetched))
        # the solver's step
        self.phase, self._whole_state = Phase.STEP, None
        with self._one_step():
            self.state = self.solver.step(self.rank_problem, self.state, batch)
        torch.clear_autocast_cache()  # it has the parameters before the step
        # its metrics, as numbers
        self.state.metrics = read_numbers(self.state.metrics)
        if self.meter is not None:
            self.meter.end_step()
        self.batch += 1
        self.phase = Phase.BETWEEN
        self.seconds += time.perf_counter() - started
        # divergence shows here first: the next row may be far away
        for name, value in flat_metrics(self.state.metrics).items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value} after step {self.state.steps}")
        if self.meter is not None and not math.isfinite(self.meter.last):
            raise Diverged(f"the objective of the batch is {self.meter.last} before step {self.state.steps}")
        self._call("stepped")

    def start_epoch(self, number: int) -> None:
        """Goes to the first batch of an epoch."""
        self.epoch, self.batch = number, 0
        self.batches.begin()
        if self.meter is not None:
            self.meter.start_epoch()

    @property
    def epoch_over(self) -> bool:
        """Whether no batch of the present epoch is left."""
        return self.batches.is_over(self.batch)

    def _start(self) -> None:
        if self.start is None and self._measure_start:
            row = evaluate_row(self) | {"epoch": 0}
            self.start = {name: value for name, value in row.items() if math.isfinite(value)}
        assert self._guard is not None
        self._call("started")
        self._guard.start(self)

    def _finish_steps(self) -> None:
        self.collect(state=False)
        start = self.start or {}
        if self.outcome is Outcome.DIVERGED and not self.history and judged_entry(start) in start:
            self.history.append(dict(start))
        self._call("ended")

    def _run_epochs(self) -> None:
        while self.epoch <= self.epochs and self.outcome is None:
            while not self.epoch_over and self.outcome is None:
                if not self._together(self.take_step):
                    return
            due = self.epoch_over and (self.epoch % self.record_every == 0 or self.epoch == self.epochs)
            if (due and self.outcome is not Outcome.INTERRUPTED) or self._record_at_stop:
                if not self._together(partial(require_finite, self)):
                    return
                if not self._together(self._record):
                    return
            elif self.epoch_over and not due:
                self.start_epoch(self.epoch + 1)

    def _together(self, part: Callable[[], None], interruptible: bool = True) -> bool:
        """Executes a part of the run, and agrees with the other ranks how it ended; False if it failed on any rank."""
        assert self._guard is not None
        # this rank: an exception that ends the run becomes its outcome
        failed, since = True, None
        try:
            part()
            failed = False
        except Stalled as stalled:
            self.phase = Phase.BETWEEN
            self._end(Outcome.STALLED, f" {stalled}")
        except Diverged as diverged:
            self._guard.restore(self)
            since = diverged.since
            where = "" if self.agreement.size == 1 else f" on rank {self.agreement.rank}"
            self._end(Outcome.DIVERGED, f" {diverged}{where}.")
        except StopNow:
            raise
        except KeyboardInterrupt:
            if not interruptible or self.agreement.size > 1:  # other ranks may wait for a message of this one
                raise
            self._end(Outcome.INTERRUPTED, "")
        if self.agreement.size == 1:
            return not failed
        # all ranks: one outcome, that of the rank with the highest precedence
        wanted = None
        if self.outcome is not None:
            wanted = Stop(self.outcome, self.message, self._record_at_stop, failed)
            fault = self.ranks.fault if self.partition.count == 1 else self.border.fault
            since = fault if since is None else since
            wanted = wanted if since is None else replace(wanted, since=since)
        agreed = self.agreement.stop(wanted)
        if agreed is None:
            return True
        if agreed.outcome is Outcome.DIVERGED and self.outcome is not Outcome.DIVERGED:
            self._guard.restore(self)
        self.outcome, self.message, self._record_at_stop = agreed.outcome, agreed.message, agreed.record
        return not agreed.failed

    @contextmanager
    def _one_step(self) -> Iterator[None]:
        """A context for one step: masks, from the run's seed and the step, and batch statistics are computed once."""
        network = self.problem.network
        if not network.has_sites:
            yield
            return
        with network.one_step():
            if network.random:
                device = self.data.X.device
                with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                    torch.manual_seed(named_generator(self.seed, "masks", self.state.steps).initial_seed())
                    yield
            else:
                yield

    def _record(self) -> None:
        """Adds a row to the history and calls the callbacks with it."""
        row = evaluate_row(self)
        assert self._guard is not None
        self._guard.judge(self, row)
        self.phase = Phase.ROW
        self.history.append(row)
        if self.epoch_over:
            self.start_epoch(self.epoch + 1)
        if self.border.largest(any(callback.reads_parameters for callback in self.callbacks)):
            self.collect(state=False)
        self._call("recorded", row)
        self.phase = Phase.BETWEEN
        if self.tolerance is not None and row.get("certificate", math.inf) <= self.tolerance:
            self._end(Outcome.CONVERGED, f" The largest is {row['certificate']:.3g} after {self.state.steps} steps.")

    def _end(self, outcome: Outcome, detail: str) -> None:
        """Ends the run with this outcome; an earlier `stop` stands, unless the run diverged."""
        if self.outcome is None or outcome is Outcome.DIVERGED:
            self.outcome, self.message = outcome, outcome.value + detail

    def _call(self, moment: str, *arguments: Row) -> None:
        for callback in self.callbacks:
            if self.agreement.rank > 0 and not callback.everywhere:
                continue
            try:
                getattr(callback, moment)(self, *arguments)
            except (Stalled, Diverged):
                raise
            except Exception as error:
                if self.agreement.size == 1:
                    raise
                self.agreement.share_error(error, callback_error(callback, moment, error))


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
    variables of the whole set only).  Every `record_every` epochs a row is added to the history, and parameters and
    solver state are scanned.  The run ends as DIVERGED, with the parameters of the last good row, if anything is not
    finite, if the objective exceeds 1e12 times its reference at a row, or 10 times at the last one.  The reference is
    the larger of the objective at the start and the loss of outputs 0; rows of at most 10 times are good.

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

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Linear(1, 1), loss=lb.SquaredError())
        >>> lb.solvers.run(problem, (X, 2 * X + 1), lb.CoordinateDescent(), epochs=5).outcome.name
        'FINISHED'
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
