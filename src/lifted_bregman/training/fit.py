"""`fit`: data, a problem and a solver in; a trained network, a history and an outcome out."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers import Batch, Callback, GramSweep, Outcome, Result, Run, Solver
from lifted_bregman.training.callbacks import Checkpoint
from lifted_bregman.training.inputs import read_inputs
from lifted_bregman.training.run_folder import RunFolder
from lifted_bregman.training.signals import Signals

_BATCH_SIZE = 100


def default_solver() -> Solver[Any]:
    """The solver of `fit` where none is named."""
    return GramSweep()


def fit(
    problem: LiftedProblem,
    data: Any,
    solver: Solver[Any] | None = None,
    *,
    epochs: int,
    batch_size: int | None = None,
    seed: int = 0,
    validation: Any = None,
    sample_weights: Any = None,
    tolerance: float | None = None,
    record_every: int = 1,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Trains the problem's model in place, and returns history, outcome and message.

    The order of the samples is a function of `seed` and epoch.  The same call with the same seed and number of threads
    gives the same bits, and a run that was cut anywhere and resumed gives those of one that was not.

    Ctrl-C ends the run after the present step with what was reached; a second one raises KeyboardInterrupt at once.
    With `out`, SIGTERM saves a checkpoint too, and then raises SystemExit(143).

    Args:
        problem: made by `lift`.
        data: (X, Y) of tensors or NumPy arrays, Y targets or integer labels; a `Dataset` or `DataLoader`, which is read
            into memory once; or the name of a data set, such as "mnist-1k", for its images and labels.
        solver: any solver or baseline; `default_solver()` if None.
        epochs: passes over the data; for a whole-set solver, steps.  A resumed run counts those it had.
        batch_size: samples per step; None for 100 (or the DataLoader's own) where the solver takes batches.
        seed: a whole number.
        validation: a second set in any of these forms, evaluated for each row of the history.
        sample_weights: w_i > 0, one for each sample, by which its energy counts.
        tolerance: stop when every block's certificate is at most this; None for never.
        record_every: epochs between rows of the history.
        callbacks: see `lifted_bregman.callbacks`.
        out: a folder for history, checkpoints and the trained model; None for none.  It gets a checkpoint an epoch
            unless `callbacks` has a `Checkpoint` that says otherwise.
        resume: continue the run in `out`, if there is one.
    """
    solver = default_solver() if solver is None else solver
    if not isinstance(solver, Solver):
        raise SettingError(f"solver is {solver!r}; it must be a solver such as lb.ImplicitSGD().")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise SettingError(f"callbacks holds {callback!r}; each must be a lb.callbacks.Callback.")
    if resume and out is None:
        raise SettingError("resume needs the folder of the run to continue: give out='runs/name'.")
    inputs = read_inputs(problem, data)
    train = inputs.batch(problem, sample_weights)
    held_out = None if validation is None else read_inputs(problem, validation, "validation").batch(problem)
    size = batch_size if batch_size is not None else inputs.batch_size
    if size is None and solver.minibatch:
        size = min(_BATCH_SIZE, len(train))
    with Signals(terminate=out is not None, break_off=out is not None) as signals:
        run = Run(
            problem,
            solver,
            train,
            epochs=epochs,
            batch_size=size if solver.minibatch or batch_size is not None else None,
            seed=seed,
            tolerance=tolerance,
            record_every=record_every,
            validation=held_out,
            classify=inputs.labels,
            callbacks=[signals, *callbacks],
        )
        if out is not None:
            _prepare(run, RunFolder(out), resume)
        elif any(isinstance(callback, Checkpoint) for callback in callbacks):
            raise SettingError("Checkpoint needs a folder: give fit(..., out='runs/name').")
        result = run.execute()
    if result.outcome is Outcome.INTERRUPTED:
        signals.exit_if_terminated()
    return result


def _prepare(run: Run, folder: RunFolder, resume: bool) -> None:
    """Opens the folder, puts its callbacks in their places, and goes back to its last checkpoint."""
    if folder.started_before and not resume:
        raise CheckpointError(
            f"{folder.path} holds a run already: continue it with resume=True, or choose another folder."
        )
    folder.open()
    try:
        savers = [callback for callback in run.callbacks if isinstance(callback, Checkpoint)] or [Checkpoint()]
        others = [callback for callback in run.callbacks if not isinstance(callback, Checkpoint)]
        run.callbacks = [*others, folder, *savers]  # a checkpoint holds what the others have made of the same row
        folder.settings = run_settings(run)
        for saver in savers:
            saver.attach(folder)
        if folder.started_before:
            folder.restore(run)
            for saver in savers:
                saver.resumed(run)
            if folder.notice is not None:
                warnings.warn(folder.notice, RuntimeWarning, stacklevel=4)
    except BaseException:
        folder.close()
        raise


def run_settings(run: Run) -> dict[str, Any]:
    """What makes a run the run it is: continuing with anything else would be another run."""
    problem = run.problem
    return {
        "model": repr(problem.model),
        "loss": repr(problem.loss),
        "weights": list(problem.weights),
        "penalties": {str(layer): repr(penalty) for layer, penalty in problem.penalties.items()},
        "parameter_penalties": {str(l): repr(penalty) for l, penalty in problem.parameter_penalties.items()},
        "solver": repr(run.solver),
        "batch_size": run.batch_size,
        "seed": run.seed,
        "record_every": run.record_every,
        "dtype": str(run.data.X.dtype),
        "samples": len(run.data),
        "data": _digest(run.data),
        "validation": None if run.validation is None else _digest(run.validation),
    }


def _digest(batch: Batch) -> str:
    """sha256 of the samples' bytes."""
    digest = hashlib.sha256()
    for tensor in (batch.X, batch.Y, batch.weights):
        if tensor is not None:
            digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().numpy().reshape(-1).view("uint8").data
