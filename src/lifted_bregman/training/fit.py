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
from lifted_bregman.distributed.environment import process_info
from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.errors import CheckpointError, SettingError, StreamError, WorkerError
from lifted_bregman.graph.inputs import input_tensors
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers import Batch, Callback, GramSweep, Outcome, Result, Run, Solver
from lifted_bregman.solvers._batches import Source
from lifted_bregman.solvers._loop import StopNow
from lifted_bregman.solvers._requirements import require_streamable
from lifted_bregman.training._company import Company, company, described, digest, require_parallel
from lifted_bregman.training._workers import in_workers
from lifted_bregman.training.callbacks import Checkpoint
from lifted_bregman.training.inputs import read_inputs, read_stream, read_validation
from lifted_bregman.training.run_folder import RunFolder
from lifted_bregman.training.signals import Signals

_BATCH_SIZE = 100


def default_solver(parallel: Parallel | None = None) -> Solver[Any]:
    """The solver of `fit` where none is named; where layers are shared and batches are not, it cuts batches up."""
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
    gives the same bits, and a run that was cut anywhere and resumed gives those of one that was not.

    Ctrl-C ends the run after the present step with what was reached; a second one raises KeyboardInterrupt at once.
    With `out`, SIGTERM saves a checkpoint too, and then raises SystemExit(143).

    A stream that fails in the middle of a run, by an error or a batch that does not fit, is a `StreamError` that names
    epoch and batch.  The model keeps the parameters of the last whole step, and `out` has a checkpoint of it.

    With `parallel` the run is shared by several processes, and its numbers are those of one but for rounding
    (`AsynchronousPIAG` apart, whose numbers depend on who comes first).  Where torchrun or SLURM started this process
    together with others, they share it, and each makes the same call.  Otherwise worker processes are started on this
    machine, which takes seconds, and what came of it is put into the model here: the first worker calls the callbacks,
    on copies that get their `state_dict` back.  Workers that are lost are started again, and go on from the last
    checkpoint in `out`, or from the beginning without one: to the same end.

    Args:
        problem: made by `lift`.
        data: (X, Y) of tensors or NumPy arrays, Y targets or integer labels; the name of a data set, such as
            "mnist-1k", for its images and labels; or a stream, which is read anew in each epoch and never held: a
            `DataLoader`, with its own order, or a `Dataset`, map-style or iterable.  `lb.data.gathered` holds one in
            memory, for solvers that need the whole set.  For a model that takes several tensors X is a tuple,
            ((A, B), Y), and a stream gives ((a, b), y) or (a, b, y).
        solver: any solver or baseline; `default_solver()` if None.
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
        evaluate_training: whether each row reads a stream once more and evaluates all of it at the row's parameters;
            without, its rows have the means over the epoch's steps.
        callbacks: see `lifted_bregman.callbacks`.
        out: a folder for history, checkpoints and the trained model; None for none.  It gets a checkpoint an epoch
            unless `callbacks` has a `Checkpoint` that says otherwise.
        resume: continue the run in `out`, if there is one.
        parallel: how many processes share the run; None for this one alone.  A run may be resumed with other numbers.
    """
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
        labels = inputs.labels
        if evaluate_training:
            raise SettingError("evaluate_training is for streams: a set in memory is evaluated for every row.")
        size = None if batch_size is None else whole(batch_size, "batch_size")
        if size is None and solver.minibatch:
            size = min(_BATCH_SIZE, len(train))
        batch_size = size if solver.minibatch or batch_size is not None else None
    second, held_out = read_validation(problem, validation, validation_weights, seed)
    if isinstance(held_out, Stream) and parallel is not None and parallel.size > 1:
        raise SettingError(
            f"parallel has {parallel.size} processes, and validation is a stream, which one process reads: give "
            "tensors (X, Y), or hold the set in memory by lb.data.gathered(validation)."
        )
    if out is None and any(isinstance(callback, Checkpoint) for callback in callbacks):
        raise SettingError("Checkpoint needs a folder: give fit(..., out='runs/name').")
    settings: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "tolerance": tolerance,
        "record_every": record_every,
    }

    def make(others: Company, *more: Callback) -> Run:
        return Run(
            problem,
            others.engage(solver),
            train,
            validation=held_out,
            classify=labels,
            evaluate_training=evaluate_training,
            callbacks=[*more, *callbacks],
            ranks=others.ranks,
            border=others.border(problem, example),
            agreement=others.agreement,
            **settings,
        )

    if parallel is not None and parallel.size > 1:
        require_parallel(parallel, problem.depth, solver, min(batch_size or len(example), len(example)))
    if parallel is not None and parallel.size > 1 and process_info() is None:
        counted = problem.work.as_dict()
        make(Company())  # what is wrong with the other settings is told before workers start, too
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
    device = next(problem.model.parameters()).device
    with Signals(terminate=out is not None, break_off=out is not None) as signals:
        try:
            with company(parallel, device) as others:
                others.begin(problem, described((solver, settings)), example, _example(held_out))
                run = make(others, signals)
                if out is not None:
                    _prepare(run, RunFolder(out), resume or others.attempt > 0, others, solver)
                result = run.execute()
                if result.outcome is Outcome.INTERRUPTED:
                    signals.received = others.most(signals.received or 0) or None
        except StreamError as error:
            if signals.received is None or error.result is None:
                raise _explained(error, out) from error.__cause__
            # The signal has ended the loader's workers too.
            message = f"{Outcome.INTERRUPTED.value} It was sent {signal.Signals(signals.received).name}."
            result = replace(error.result, message=message)
        except StopNow:
            raise
        except (KeyboardInterrupt, WorkerError):
            if signals.received is None:
                raise
            signals.exit_if_terminated()  # a step was broken off, here or in another process, and the run with it
            raise KeyboardInterrupt from None
    if result.outcome is Outcome.INTERRUPTED:
        signals.exit_if_terminated()
    return result


def _example(data: Batch | Source | None) -> Batch | None:
    """The whole set, or the first batch of a stream."""
    return data.first if isinstance(data, Source) else data


def _explained(error: StreamError, out: str | Path | None) -> StreamError:
    """The error with what is kept, and what to do."""
    if error.result is None:
        return error
    kept = f"The model has the parameters of step {error.result.state.steps}, the last whole one"
    saved = "" if out is None else f", and so has the checkpoint in {out}: mend the data, then continue by resume=True"
    explained = StreamError(f"{error} {kept}{saved}.")
    explained.result = error.result
    return explained


def _prepare(run: Run, folder: RunFolder, resume: bool, others: Company, solver: Solver[Any]) -> None:
    """Opens the folder, puts its callbacks in their places, and goes back to its last checkpoint.

    The first process alone opens it and writes there; the others read the checkpoint that it takes.
    """
    try:
        with others.together():
            if others.leads:
                _require_free(folder, resume)
                folder.open()
        savers = [callback for callback in run.callbacks if isinstance(callback, Checkpoint)] or [Checkpoint()]
        rest = [callback for callback in run.callbacks if not isinstance(callback, Checkpoint)]
        run.callbacks = [*rest, folder, *savers]  # a checkpoint holds what the others have made of the same row
        folder.settings = run_settings(run, solver)
        for saver in savers:
            saver.attach(folder)
        if others.first(folder.started_before):
            _restore(run, folder, others)
            if not others.first(folder.differs):  # else the first save is before the first step, as of a new run
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
            f"{folder.path} holds {found[0]} and no checkpoint that a run could go on from: choose another folder."
        )


def _restore(run: Run, folder: RunFolder, others: Company) -> None:
    step = 0
    with others.together():
        if others.leads:
            step = folder.restore(run).snapshot.step
    step = others.first(step)
    with others.together():
        if not others.leads:
            folder.restore(run, step)


def run_settings(run: Run, solver: Solver[Any]) -> dict[str, Any]:
    """What makes a run the run it is: continuing with anything else would be another run.

    How many processes share it does not, nor what they make of the `solver` that was given.  Its epochs do where a
    schedule of the solver ends with them.
    """
    problem = run.problem
    epochs: dict[str, Any] = {"epochs": run.epochs} if solver.ends_with_run else {}
    stream = run.source.fingerprint() if isinstance(run.source, Stream) else {"samples": len(run.data)}
    return (
        epochs
        | stream
        | {
            "model": described(problem.model),
            "trained": [name for name, parameter in problem.model.named_parameters() if parameter.requires_grad],
            "loss": described(problem.loss),
            "weights": list(problem.weights),
            "penalties": {str(layer): described(penalty) for layer, penalty in problem.penalties.items()},
            "parameter_penalties": {str(l): described(penalty) for l, penalty in problem.parameter_penalties.items()},
            "solver": described(solver),
            "batch_size": run.batch_size,
            "seed": run.seed,
            "record_every": run.record_every,
            "dtype": ", ".join(str(x.dtype) for x in input_tensors(run.data.X)),
            "data": digest(run.data),  # of a stream, its first batch
            "validation": digest(_example(run.validation)),
        }
    )
