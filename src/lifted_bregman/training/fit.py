"""`fit`: data, a problem and a solver in; a trained network, a history and an outcome out."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lifted_bregman._arguments import whole
from lifted_bregman.data.streams import Stream
from lifted_bregman.distributed.environment import follows, process_info
from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.errors import CheckpointError, SettingError, StreamError, WorkerError
from lifted_bregman.graph.inputs import input_tensors
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers import Batch, Callback, GramSweep, Outcome, Result, Run, Solver
from lifted_bregman.solvers.batches import Source
from lifted_bregman.solvers.outcome import StopNow
from lifted_bregman.solvers.requirements import require_streamable
from lifted_bregman.training.callbacks import Checkpoint
from lifted_bregman.training.inputs import (
    TensorData,
    read_inputs,
    read_stream,
    read_validation,
    warn_unless_standardised,
)
from lifted_bregman.training.ranks import RunRanks, batch_sha256, ranks_of_run, require_parallel, stable_repr
from lifted_bregman.training.run_folder import RunFolder
from lifted_bregman.training.signals import Signals
from lifted_bregman.training.workers import in_workers

_BATCH_SIZE = 100


def default_solver(parallel: Parallel | None = None) -> Solver[Any]:
    """The solver of `fit` by default; in a layer-parallel run without data parallelism, with 4 micro-batches a step.

    Example:
        >>> type(lb.training.default_solver()).__name__
        'GramSweep'
    """
    return GramSweep(micro_batches=4 if parallel is not None and parallel.layer > 1 == parallel.data else 1)


def fit(
    problem: LiftedProblem,
    data: Any,
    solver: Solver[Any] | None = None,
    *,
    epochs: int,
    batch_size: int | None = None,
    epoch_steps: int | None = None,
    seed: int = 0,
    validation: Any = None,
    sample_weights: Any = None,
    validation_weights: Any = None,
    tolerance: float | None = None,
    record_every: int = 1,
    evaluate_training: bool = False,
    callbacks: Iterable[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
    parallel: Parallel | None = None,
) -> Result:
    """Trains the problem's model in place, and returns history, outcome and message.

    The order of the samples is a function of `seed` and epoch.  The same call with the same seed and number of threads
    gives bitwise equal results.  A run that was interrupted and resumed gives those of an uninterrupted run.

    Ctrl-C ends the run after the current step and returns its result; a second Ctrl-C raises KeyboardInterrupt at once.
    With `out`, Ctrl-C and SIGTERM save a checkpoint; SIGTERM then raises SystemExit(143).

    If a stream fails during a run, by an error or a batch that does not fit, `fit` raises a `StreamError` that names
    epoch and batch.  The model keeps the parameters of the last whole step, and `out` has a checkpoint of it.

    `fit` warns of a set in memory that is far from standardised: its root mean square is above 1000, or the values of a
    feature are further from 0 than 10 times their range and the typical range of all features.

    A second `fit` of a trained problem is a new run: the default solver begins again at its full rate, which can undo
    the first.  Instead resume the run in its folder, with the length of the whole run in the solver:
    `GramSweep(total_steps=..., epochs=...)`.  Or give the second run a smaller `step_size`.

    With `parallel` several processes share the run.  Its numbers are those of one process up to rounding, except for
    `AsynchronousPIAG`, whose numbers depend on the order in which workers answer.  Under torchrun or SLURM each process
    makes the same call.  Otherwise `fit` starts worker processes on this machine, which takes seconds; trained
    parameters and callback states are copied back to this process.  Only rank 0 calls callbacks.  Lost workers are
    started again.  They resume from the last checkpoint in `out`, or else start anew, with the same result.

    Args:
        problem: made by `lift`.
        data: (X, Y) of tensors or NumPy arrays, Y targets or integer labels; the name of a data set, such as
            "mnist-1k", for its images and labels; or a stream, which is read anew in each epoch and never held: a
            `DataLoader`, with its own order, or a `Dataset`, map-style or iterable.  `lb.data.gathered` holds one in
            memory, for solvers that need the whole set.  For a model that takes several tensors X is a tuple,
            ((A, B), Y), and a stream gives ((a, b), y) or (a, b, y).
        solver: any solver or baseline; None for `default_solver`.
        epochs: passes over the data; for a whole-set solver, steps.  A resumed run counts those it had.
        batch_size: samples per step; None for 100 where the solver takes batches.  A `DataLoader` has its own.
        epoch_steps: batches after which an epoch of a stream ends, for streams without a length or without an end;
            None for all that it gives.
        seed: a whole number.
        validation: a second set in any of these forms, evaluated for each row of the history.
        sample_weights: w_i > 0, one for each sample, by which its energy counts.
        validation_weights: w_i > 0, one for each sample of `validation`, by which its objective counts.
        tolerance: stop when every block's certificate is at most this, for solvers that keep the variables of the
            whole set; None for never.
        record_every: epochs between rows of the history.
        evaluate_training: True: each row reads the stream once more and evaluates all of it at the row's parameters.
            False: the row of a stream has running means over the steps of the epoch.
        callbacks: see `lifted_bregman.callbacks`.
        out: a folder for history, checkpoints and the trained model; None for none.  It gets a checkpoint an epoch
            unless `callbacks` contains a `Checkpoint`, whose settings are then used.
        resume: continue the run in `out`, if there is one.
        parallel: how many processes share the run; None for this one alone.  A run may be resumed with other numbers.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        >>> result = lb.fit(lb.lift(model, loss=lb.CrossEntropy()), "digits", epochs=10)
        >>> result.outcome.name, result.history[-1]["accuracy"] > 0.9
        ('FINISHED', True)
    """
    # Check the arguments that do not depend on the data.
    if not isinstance(problem, LiftedProblem):
        raise SettingError(f"problem is a {type(problem).__name__}; make one of the model: lb.lift(model, loss=...).")
    if not any(layer.map.parameters for layer in problem.network):
        raise SettingError("every parameter has requires_grad=False: there is nothing to train.")
    solver = default_solver(parallel if isinstance(parallel, Parallel) else None) if solver is None else solver
    if not isinstance(solver, Solver):
        raise SettingError(f"solver is {solver!r}; it must be a solver such as lb.ImplicitSGD().")
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise SettingError(f"callbacks is {callbacks!r}; it must be a list of lb.callbacks, such as [Timer(60.0)].")
    callbacks = tuple(callbacks)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise SettingError(f"callbacks holds {callback!r}; each must be a lb.callbacks.Callback.")
    if parallel is not None and not isinstance(parallel, Parallel):
        raise SettingError(f"parallel is {parallel!r}; it must be degrees such as lb.Parallel(data=2).")
    if resume and out is None:
        raise SettingError("resume needs the folder of the run to continue: give out='runs/name'.")
    seed = whole(seed, "seed", least=None)
    # Read the training data: a stream, or the whole set as one batch.
    stream = read_stream(problem, data, batch_size, seed, weights=sample_weights, epoch_steps=epoch_steps)
    train: Batch | Stream
    if stream is not None:
        require_streamable(solver)
        if parallel is not None and parallel.size > 1:
            raise SettingError(
                f"parallel has {parallel.size} processes, and data are a stream, which one process reads: give "
                "tensors (X, Y), or hold the set in memory by lb.data.gathered(data), or use one process."
            )
        inputs, train, example, batch_size = data, stream, stream.first, None
        labels = stream.labels
    else:
        inputs = read_inputs(problem, data)
        train = example = inputs.batch(problem, sample_weights)
        if not isinstance(data, TensorData) and not follows():  # rank 0 of the user's call warns
            warn_unless_standardised(problem, inputs)
        labels = inputs.labels
        if evaluate_training:
            raise SettingError("evaluate_training is for streams: a set in memory is evaluated for every row.")
        size = None if batch_size is None else whole(batch_size, "batch_size")
        if size is None and solver.minibatch:
            size = min(_BATCH_SIZE, len(train))
        batch_size = size if solver.minibatch or batch_size is not None else None
    # Read the validation data.
    second, held_out = read_validation(problem, validation, validation_weights, seed)
    if isinstance(held_out, Stream) and parallel is not None and parallel.size > 1:
        raise SettingError(
            f"parallel has {parallel.size} processes, and validation is a stream, which one process reads: give "
            "tensors (X, Y), or hold the set in memory by lb.data.gathered(validation)."
        )
    if out is None and any(isinstance(callback, Checkpoint) for callback in callbacks):
        raise SettingError("Checkpoint needs a folder: give fit(..., out='runs/name').")
    # The run, on this process alone or on the ranks of a world.
    settings: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "tolerance": tolerance,
        "record_every": record_every,
    }

    def make(ranks: RunRanks, *more: Callback) -> Run:
        return Run(
            problem,
            ranks.with_workers(solver),
            train,
            validation=held_out,
            classify=labels,
            evaluate_training=evaluate_training,
            callbacks=[*more, *callbacks],
            ranks=ranks.ranks,
            border=ranks.border(problem, example),
            agreement=ranks.agreement,
            **settings,
        )

    # Several processes: call `fit` in workers, unless this is one of them.
    if parallel is not None and parallel.size > 1:
        require_parallel(parallel, problem.depth, solver, min(batch_size or len(example), len(example)))
    if parallel is not None and parallel.size > 1 and process_info() is None:
        counted = problem.work.as_dict()
        make(RunRanks())  # checks the other settings before workers start
        problem.work.reset(counted)
        if out is not None:
            _require_free(RunFolder(out), resume)
        return in_workers(
            fit,
            problem,
            callbacks,
            parallel,
            data=inputs,
            solver=solver,
            validation=second,
            sample_weights=sample_weights,
            validation_weights=validation_weights,
            out=out,
            resume=resume,
            **settings,
        )
    # Train, from the last checkpoint of `out` if there is one.
    device = next(problem.model.parameters()).device
    with Signals(terminate=out is not None, break_off=out is not None) as signals:
        try:
            with ranks_of_run(parallel, device) as ranks:
                ranks.require_same(problem, stable_repr((solver, settings)), example, _example(held_out))
                run = make(ranks, signals)
                if out is not None:
                    _prepare(run, RunFolder(out), resume or ranks.attempt > 0, ranks, solver)
                result = run.execute()
                if result.outcome is Outcome.INTERRUPTED:
                    signals.received = ranks.largest(signals.received or 0) or None
        except StreamError as error:
            if signals.received is None or error.result is None:
                raise _explained(error, out) from error.__cause__
            # The signal ended the workers of the DataLoader, so the stream failed: the run was interrupted.
            message = f"{Outcome.INTERRUPTED.value} It was sent {signal.Signals(signals.received).name}."
            result = replace(error.result, message=message)
        except StopNow:
            raise
        except (KeyboardInterrupt, WorkerError):
            if signals.received is None:
                raise
            signals.exit_if_terminated()  # a step was interrupted, in this process or another
            raise KeyboardInterrupt from None
    if result.outcome is Outcome.INTERRUPTED:
        signals.exit_if_terminated()
    return result


def _example(data: Batch | Source | None) -> Batch | None:
    """The whole set, or the first batch of a stream."""
    return data.first if isinstance(data, Source) else data


def _explained(error: StreamError, out: str | Path | None) -> StreamError:
    """The error of a stream, with the step whose parameters are kept and how to continue."""
    if error.result is None:
        return error
    kept = f"The model has the parameters of step {error.result.state.steps}, the last whole one"
    saved = "" if out is None else f", and so has the checkpoint in {out}: mend the data, then continue by resume=True"
    explained = StreamError(f"{error} {kept}{saved}.")
    explained.result = error.result
    return explained


def _prepare(run: Run, folder: RunFolder, resume: bool, ranks: RunRanks, solver: Solver[Any]) -> None:
    """Opens the folder, adds its callbacks to the run, and restores the last checkpoint if there is one.

    Only rank 0 opens the folder and writes there.  The other ranks read the checkpoint that rank 0 has restored.
    """
    try:
        with ranks.errors_shared():
            if ranks.is_first:
                _require_free(folder, resume)
                folder.open()
        savers = [callback for callback in run.callbacks if isinstance(callback, Checkpoint)] or [Checkpoint()]
        rest = [callback for callback in run.callbacks if not isinstance(callback, Checkpoint)]
        run.callbacks = [*rest, folder, *savers]  # savers last: a checkpoint holds the other callbacks' new states
        folder.settings = run_settings(run, solver)
        for saver in savers:
            saver.attach(folder)
        if ranks.broadcast(folder.started_before):
            _restore(run, folder, ranks)
            if not ranks.broadcast(folder.differs):  # else the first save is before the first step, as of a new run
                for saver in savers:
                    saver.resumed(run)
            if folder.notice is not None:
                warnings.warn(folder.notice, RuntimeWarning, stacklevel=4)
    except BaseException:
        folder.close()
        raise


def _require_free(folder: RunFolder, resume: bool) -> None:
    if folder.started_before and not resume:
        raise CheckpointError(
            f"{folder.path} holds a run already: continue it with resume=True, or choose another folder."
        )
    if not folder.started_before and (found := folder.results()):
        raise CheckpointError(
            f"{folder.path} holds {found[0]} and no checkpoint to resume from: choose another folder."
        )


def _restore(run: Run, folder: RunFolder, ranks: RunRanks) -> None:
    step = 0
    with ranks.errors_shared():
        if ranks.is_first:
            step = folder.restore(run).snapshot.step
    step = ranks.broadcast(step)
    with ranks.errors_shared():
        if not ranks.is_first:
            folder.restore(run, step)


def run_settings(run: Run, solver: Solver[Any]) -> dict[str, Any]:
    """The settings that a resumed run must share with its checkpoint.

    The number of processes is not among them: a run may be resumed with another.  The number of epochs is, where a
    schedule of the solver ends with the run.
    """
    problem = run.problem
    epochs: dict[str, Any] = {"epochs": run.epochs} if solver.ends_with_run else {}
    stream = run.source.fingerprint() if isinstance(run.source, Stream) else {"samples": len(run.data)}
    return (
        epochs
        | stream
        | {
            "model": stable_repr(problem.model),
            "trained": [name for name, parameter in problem.model.named_parameters() if parameter.requires_grad],
            "loss": stable_repr(problem.loss),
            "weights": list(problem.weights),
            "penalties": {str(layer): stable_repr(penalty) for layer, penalty in problem.penalties.items()},
            "parameter_penalties": {str(l): stable_repr(penalty) for l, penalty in problem.parameter_penalties.items()},
            "solver": stable_repr(solver),
            "batch_size": run.batch_size,
            "seed": run.seed,
            "record_every": run.record_every,
            "dtype": ", ".join(str(x.dtype) for x in input_tensors(run.data.X)),
            "data": batch_sha256(run.data),  # of a stream, its first batch
            "validation": batch_sha256(_example(run.validation)),
        }
    )
