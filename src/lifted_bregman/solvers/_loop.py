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
from lifted_bregman.solvers._batches import InMemory, Source
from lifted_bregman.solvers._by_term import added_up, collected, own_terms
from lifted_bregman.solvers._callbacks import Callback, callback_error, close_all
from lifted_bregman.solvers._finite import Diverged, Keeper, flat_metrics, read_numbers, require_finite
from lifted_bregman.solvers._growth import ADVICE, EXPLODED, GOOD, Reference, reference, row_value, zero_loss
from lifted_bregman.solvers._history import (
    largest_certificate,
    lifted_energies,
    measured,
    measured_in_pieces,
    require_certificates,
)
from lifted_bregman.solvers._interface import Batch, Solver, SolverState, on_device
from lifted_bregman.solvers._meter import Meter
from lifted_bregman.solvers._requirements import require_compatible, require_streamable
from lifted_bregman.solvers.agreement import Agreement, Stop
from lifted_bregman.solvers.data_ranks import DataRanks
from lifted_bregman.solvers.outcome import Outcome, Result

__all__ = ["Callback", "Diverged", "Phase", "Row", "Run", "Stalled", "StopNow", "require_finite", "run"]

Row = dict[str, float]


class Stalled(Exception):
    """Raised by a solver's step when it can make no more progress; the message names layer and quantity."""


class StopNow(KeyboardInterrupt):
    """A KeyboardInterrupt that a run does not turn into an outcome: the user asked a second time."""


class Phase(Enum):
    """What a run is doing now."""

    STEP = "in a step: parameters and state may be half changed"
    BETWEEN = "between steps"
    ROW = "handing a new row to the callbacks: some have it and some not"
    SAVE = "writing a checkpoint"


class Run:
    """One run of a solver on a problem: where it stands and what it has reached.

    The samples' order is a function of seed and epoch, so that position, solver state and parameters are all that a
    continuation needs.  Callbacks read these attributes.

    Several processes can share a run.  All have the whole data and make the same run, each with its part of every batch
    or of the layers; what follows differs from it by rounding alone.  Those that share a batch have the same parameters
    and the same state.  Those that share the layers have them for their own layers, and `collect` brings them together.

    data               the whole set in memory, or a source that streams batches
    batch_size         samples per step of a set in memory, None for the whole set; a stream has its own
    measure_start      whether the initial parameters are evaluated, to compare rows with; without, rows are compared
                       with the loss of outputs 0 alone
    evaluate_training  whether each row reads the whole stream once more, to evaluate it at the row's parameters
    ranks              the ranks that share each batch; by default this process alone
    border             the messages between ranks that share the terms; those of the problem by default
    agreement          who has to agree on the end of the run; by default this process decides
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
        epochs, record_every = whole(epochs, "epochs"), whole(record_every, "record_every")
        seed = whole(seed, "seed", least=None)
        if batch_size is not None and not solver.minibatch:
            raise SettingError(
                f"batch_size is {batch_size!r}, but {type(solver).__name__} takes the whole set at every step; leave "
                "it out, or put the solver into ImplicitSGD(solver=...)."
            )
        self.source = source = data if isinstance(data, Source) else InMemory(data, batch_size, seed)
        if source.streamed:
            require_streamable(solver)
        self.data = source.data if isinstance(source, InMemory) else source.first
        """The whole set; of a stream its first batch."""
        self.ranks = DataRanks() if ranks is None else ranks
        self.border = problem.border if border is None else border
        self.agreement = Agreement() if agreement is None else agreement
        require_compatible(solver, problem, self.data, self.ranks, self.partition)
        self.epochs, self.seed, self.batch_size = epochs, seed, batch_size
        if source.batches is None and solver.ends_with_run:
            raise SettingError(
                f"a schedule of {type(solver).__name__} ends with the run, and the data do not say how many batches an "
                "epoch has: give epoch_steps=, the data a length (__len__), or the schedule steps=."
            )
        steps = epochs * (source.batches or 1)  # at least, where it is not known
        self.solver = solver = solver.planned(math.inf if source.batches is None else steps, epochs)
        solver.require(problem)
        self.problem = problem
        if problem.partition.count > 1:
            self.problem = problem.with_border(Border(Partition(problem.links)))
        self._shared = self.problem if self.partition.count == 1 else self.problem.with_border(self.border)
        self._whole_state: dict[str, Any] | None = None
        self.validation, self.tolerance, self.record_every = validation, tolerance, record_every
        self.classify = classify
        self.callbacks, self._measure_start = list(callbacks), measure_start
        self.epoch = 1
        """The epoch under way, from 1."""
        self.batch = 0
        """Batches of this epoch that are done."""
        self.seconds = 0.0
        self.history = []
        self.start: Row | None = None
        """The row of the initial parameters, with step and epoch 0, from the beginning of the run on; None where they
        were not measured.
        """
        self._reference: Reference | None = None
        self._keeper: Keeper | None = None
        self._kept: dict[str, Any] | None = None  # of a state that was loaded
        self.phase = Phase.BETWEEN
        self.outcome: Outcome | None = None
        self.message = ""
        self._record_at_stop = False
        self._batches: Iterator[Batch] | None = None  # of the epoch under way
        self._exhausted = False  # whether these have ended
        self._place: Mapping[str, Any] = {}  # where a stream goes on, if its epoch is not open
        self._meter = Meter(classify) if source.streamed else None
        self.evaluate_training = evaluate_training
        solver.require_steps(problem, steps)
        problem.work.reset()  # a run counts its own work
        source.require(problem)
        with problem.network.evaluating():
            self.state: SolverState = solver.init(self._shared, source.first.share(self.ranks))
        solver.attach(self._shared, self.state)
        if tolerance is not None:
            whole_set = isinstance(source, InMemory) and source.whole
            require_certificates(solver, self.state, tolerance, whole_set)

    @property
    def partition(self) -> Partition:
        """Which terms this rank holds."""
        return self.border.partition

    @property
    def intact(self) -> bool:
        """Whether parameters, state, history and callbacks are those after a whole step or row."""
        return self.phase not in (Phase.STEP, Phase.ROW) and self.outcome is not Outcome.DIVERGED

    def stop(self, outcome: Outcome, reason: str, record: bool = False) -> None:
        """Ends the run after the present step or row; `record` adds a row for an epoch that is not over."""
        if self.outcome is None:
            self.outcome, self.message, self._record_at_stop = outcome, f"{outcome.value} {reason}", record

    def state_dict(self) -> dict[str, Any]:
        """Position, solver state and counters of work: with parameters and history, all of a run.  Not copied.

        "start" is the row of the initial parameters, and "kept" has those of the last good row, unless the parameters
        are still the same.  Where processes share the layers, `collect` comes first, in all of them.
        """
        position: dict[str, Any] = {
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
            "start": self.start,
        }
        if self._meter is not None:
            position["running"] = self._meter.state_dict()
            position["stream"] = self._place if self._batches is None else self.source.state_dict(self.batch)
        if self._whole_state is not None:
            return position | self._whole_state
        own = {"work": self.problem.work.as_dict(), "solver": self.state.state_dict()}
        return position | own | self._kept_state()

    def _kept_state(self) -> dict[str, Any]:
        if self._keeper is None:
            return {} if self._kept is None else {"kept": self._kept}
        return {} if self._keeper.steps == self.state.steps else {"kept": self._keeper.state_dict(self.partition)}

    def collect(self, state: bool = True) -> None:
        """Brings together what the ranks that share the terms have; does nothing where this one has all of them.

        All ranks get the parameters; with `state`, rank 0 gets the solver's state and the counters of work.
        """
        if self.partition.count == 1:
            return
        self.agreement.share_error(None)  # a rank that has failed sends nothing
        network = self.problem.network
        self.border.spread({l: [p.detach() for p in network[l].map.parameters.values()] for l in layers(len(network))})
        if state:
            whole = collected(self.state.state_dict() | self._kept_state(), self.border, self.solver.counts)
            kept = {"kept": whole.pop("kept")} if "kept" in whole else {}
            self._whole_state = {"work": self._work(), "solver": whole} | kept

    def _work(self) -> dict[str, float]:
        """The work of all ranks that share the terms."""
        own = self.problem.work.as_dict()
        return dict(zip(own, map(int, self.border.sum_numbers(*own.values())), strict=True))

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Continues where `state_dict` was taken; parameters and history are put back by the caller."""
        self.epoch, self.batch, self.seconds = entries["epoch"], entries["batch"], entries["seconds"]
        self.problem.work.reset(entries["work"] if self.partition.rank == 0 else dict.fromkeys(entries["work"], 0))
        self.start, self._kept = entries.get("start"), entries.get("kept")
        self._batches, self._exhausted, self._place = None, False, entries.get("stream") or {}
        if self._meter is not None:
            self._meter.load_state_dict(entries["running"])
        own = entries["solver"]
        if self.partition.count > 1:
            kept = {} if self._kept is None else {"kept": self._kept}
            own = own_terms(own | kept, self.partition, self.solver.counts)
            self._kept = own.pop("kept", None)
        device = self.data.X.device  # a checkpoint's tensors are on the CPU
        own, self._kept = on_device(own, device), on_device(self._kept, device)
        self.state.load_state_dict(own)
        self.solver.attach(self._shared, self.state)

    def execute(self) -> Result:
        """Runs to the end, which is an outcome and not an exception; a stream that fails is a `StreamError`."""
        failure: StreamError | None = None
        keeper = self._keeper = Keeper(self)
        if self._kept is not None:
            keeper.load_state_dict(self._kept)
            self._kept = None
        try:
            try:
                if self._together(partial(require_finite, self), keeper) and self._together(self._start, keeper):
                    self._epochs(keeper)
                    if self.outcome is None:
                        self._together(partial(self._judge_end, keeper), keeper)
                    self._end(Outcome.FINISHED, "")
            except StreamError as error:  # raised between steps: what was reached is whole
                failure = error
                self._end(Outcome.INTERRUPTED, f" {error}")
            self._together(self._ended, keeper, interruptible=False)
            if failure is not None:
                failure.result = Result(Outcome.INTERRUPTED, self.message, self.state, self.history)
                raise failure
            if self.outcome is not Outcome.DIVERGED:
                self.solver.finish(self._shared, self.state)
            torch.clear_autocast_cache()
            self._call("finished")
        finally:
            self._batches = None
            for source in (self.source, self.validation):
                if isinstance(source, Source):
                    source.close()
            close_all(self.callbacks, self.agreement)
        self.agreement.share_error(None)  # what the last callbacks raised elsewhere
        assert self.outcome is not None
        return Result(self.outcome, self.message, self.state, self.history)

    def _start(self) -> None:
        if self.start is None and self._measure_start:
            row = self._row() | {"epoch": 0}
            self.start = {name: value for name, value in row.items() if math.isfinite(value)}
        if self._reference is None:
            zero = zero_loss(self.problem, self.data)
            start = self.start or {}
            self._reference = reference(start.get("objective", start.get("running_objective", math.inf)), zero)
        self._call("started")

    def _ended(self) -> None:
        self.collect(state=False)
        start = self.start or {}
        if self.outcome is Outcome.DIVERGED and not self.history and self._named(start) in start:
            self.history.append(dict(start))
        self._call("ended")

    def _epochs(self, keeper: Keeper) -> None:
        while self.epoch <= self.epochs and self.outcome is None:
            while not self._epoch_over and self.outcome is None:
                if not self._together(self._step, keeper):
                    return
            due = self._epoch_over and (self.epoch % self.record_every == 0 or self.epoch == self.epochs)
            if (due and self.outcome is not Outcome.INTERRUPTED) or self._record_at_stop:
                if not self._together(partial(require_finite, self), keeper):
                    return
                if not self._together(partial(self._record, keeper), keeper):
                    return
            elif self._epoch_over and not due:
                self._next_epoch()

    @property
    def _epoch_over(self) -> bool:
        """Whether no batch is left.  A stream tells it when it is asked for the next one, whatever its length says."""
        return self._exhausted or (not self.source.streamed and self.batch == self.source.batches)

    def _next_epoch(self) -> None:
        self.epoch, self.batch = self.epoch + 1, 0
        self._batches, self._exhausted, self._place = None, False, {}
        if self._meter is not None:
            self._meter.start_epoch()

    def _together(self, part: Callable[[], None], keeper: Keeper, interruptible: bool = True) -> bool:
        """Does a part of the run, and agrees with the others on how it goes on; False if the part failed anywhere."""
        failed, since = True, None
        try:
            part()
            failed = False
        except Stalled as stalled:
            self.phase = Phase.BETWEEN
            self._end(Outcome.STALLED, f" {stalled}")
        except Diverged as diverged:
            keeper.restore(self)
            since = diverged.since
            where = "" if self.agreement.size == 1 else f" on rank {self.agreement.rank}"
            self._end(Outcome.DIVERGED, f" {diverged}{where}.")
        except StopNow:
            raise
        except KeyboardInterrupt:
            if not interruptible or self.agreement.size > 1:  # the others may wait for what this one was to send
                raise
            self._end(Outcome.INTERRUPTED, "")
        if self.agreement.size == 1:
            return not failed
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
            keeper.restore(self)
        self.outcome, self.message, self._record_at_stop = agreed.outcome, agreed.message, agreed.record
        return not agreed.failed

    def _step(self) -> None:
        if self._batches is None:
            self._batches = self.source.epoch(self.epoch, self.batch, self._place)
        started = time.perf_counter()
        # A batch that fails to come leaves parameters and state whole.
        fetched = next(self._batches, None)
        if fetched is None:
            self._exhausted = True
            return
        batch = fetched.share(self.ranks)
        if self._meter is not None:
            batch = replace(batch, meter=self._meter)
            self._meter.start_step(partial(self._measure, fetched), len(fetched))
        self.phase, self._whole_state = Phase.STEP, None
        with self._one_step():
            self.state = self.solver.step(self._shared, self.state, batch)
        torch.clear_autocast_cache()  # it has the parameters as they were
        self.state.metrics = read_numbers(self.state.metrics)
        if self._meter is not None:
            self._meter.end_step()
        self.batch += 1
        self.phase = Phase.BETWEEN
        self.seconds += time.perf_counter() - started
        for name, value in flat_metrics(self.state.metrics).items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value} after step {self.state.steps}")
        if self._meter is not None and not math.isfinite(self._meter.last):  # the end of an epoch may be far
            raise Diverged(f"the objective of the batch is {self._meter.last} before step {self.state.steps}")
        self._call("stepped")

    def _measure(self, batch: Batch) -> Row:
        """A batch at the present parameters; what it costs is not the solver's work."""
        counted = self.problem.work.as_dict()
        try:
            with self.problem.network.evaluating():
                return measured(self.problem, batch, self.classify)
        finally:
            self.problem.work.reset(counted)

    @contextmanager
    def _one_step(self) -> Iterator[None]:
        """Within a step the maps have one mask and one set of statistics, drawn from the run's seed and the step."""
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

    def _record(self, keeper: Keeper) -> None:
        row = self._row()
        name = self._named(row)
        if not math.isfinite(row[name]):
            raise Diverged(f"the {name.replace('_', ' ')} is {row[name]} after epoch {self.epoch}")
        times = self._times(row)
        if times > EXPLODED:
            raise self._grown(row, times, keeper)
        if times <= GOOD:
            keeper.keep(self)
        keeper.behind = times > GOOD
        self.phase = Phase.ROW
        self.history.append(row)
        if self._epoch_over:
            self._next_epoch()
        if self.border.largest(any(callback.reads_parameters for callback in self.callbacks)):
            self.collect(state=False)
        self._call("recorded", row)
        self.phase = Phase.BETWEEN
        self._judge(row)

    def _named(self, row: Row) -> str:
        """Which entry of a row says how well the network is doing."""
        return "objective" if "objective" in row or self._meter is None else "running_objective"

    def _times(self, row: Row) -> float:
        """How many times the reference a row is; the steps of a stream by their mean or their last, if that is less."""
        assert self._reference is not None
        if self._named(row) == "objective":
            samples = 0 if self._meter is not None else len(self.data)  # which the solver may have variables for
            return self._reference.times(row_value(row, self.state, samples))
        assert self._meter is not None
        return self._reference.times(min(row["running_objective"], self._meter.last))

    def _row(self) -> Row:
        """What has been reached; what it costs is not the solver's work, even if it is broken off."""
        own_work, counted = self.problem.work.as_dict(), self._work()
        try:
            with self.problem.network.evaluating():
                row = self._evaluated()
        finally:
            self.problem.work.reset(own_work)
        metrics = flat_metrics(self.state.metrics)
        return row | counted | self.border.all_names(metrics) | added_up(metrics, self.border, self.solver.counts)

    def _evaluated(self) -> Row:
        row: Row = {"step": self.state.steps, "epoch": self.epoch, "seconds": self.seconds}
        row |= self._training()
        if self.validation is not None:
            if isinstance(self.validation, Source):
                reached = measured_in_pieces(self.problem, self.validation.epoch(1), self.classify)
            else:
                reached = measured(self._shared, self.validation, self.classify, self.ranks)
            row["validation"] = reached["objective"]
            if self.classify:
                row["validation_accuracy"] = reached["accuracy"]
        certificate = None
        if self.tolerance is not None:
            certificate = largest_certificate(self._shared, self.state, self.data, self.ranks)
        return row if certificate is None else row | {"certificate": certificate}

    def _training(self) -> Row:
        """What a row says about the training samples."""
        if isinstance(self.source, InMemory):
            last = self.source.last(self.epoch, self.batch)
            lifted = lifted_energies(self._shared, self.state, self.data, last, self.ranks)
            return measured(self._shared, self.data, self.classify, self.ranks, by_layer=not lifted) | lifted
        assert self._meter is not None
        row = self._meter.row()
        if not row:  # before the first step
            first = measured(self.problem, self.data, self.classify)
            row = {f"running_{name}": value for name, value in first.items() if name in ("objective", "accuracy")}
        if self.evaluate_training:
            if self._batches is not None and not self._exhausted:  # the epoch is opened again after this
                self._place, self._batches = self.source.state_dict(self.batch), None
            row |= measured_in_pieces(self.problem, self.source.epoch(self.epoch), self.classify)
        return row

    def _judge_end(self, keeper: Keeper) -> None:
        """A run that took all its steps has diverged if its last row is not good."""
        if keeper.behind:
            row = self.history[-1]
            raise self._grown(row, self._times(row), keeper)

    def _grown(self, row: Row, times: float, keeper: Keeper) -> Diverged:
        assert self._reference is not None
        name = self._named(row)
        return Diverged(
            f"the {name.replace('_', ' ')} is {row[name]:.4g} after epoch {int(row['epoch'])}, {times:.3g} times the "
            f"{self._reference.value:.4g} {self._reference.meaning}; the model has {keeper.meaning}; {ADVICE}"
        )

    def _judge(self, row: Row) -> None:
        if self.tolerance is not None and row.get("certificate", math.inf) <= self.tolerance:
            self._end(Outcome.CONVERGED, f" The largest is {row['certificate']:.3g} after {self.state.steps} steps.")

    def _end(self, outcome: Outcome, detail: str) -> None:
        """What ends a run by itself; a stop that was asked for before stands, unless the run diverged."""
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
