"""Exceptions of the library.

Each is also the built-in exception a Python user would expect (`ValueError`, `TypeError`), and each message says what
was given, what was expected and what to do.  They are raised before any work starts; `StreamError` alone may be
raised later, when a batch is read.
"""

from __future__ import annotations

from typing import Any


class LiftedBregmanError(Exception):
    """Base of every exception raised on purpose by this library.

    Example:
        >>> try:
        ...     lb.activations.SoftThreshold(-1.0)
        ... except lb.errors.LiftedBregmanError as error:
        ...     print(error)
        threshold is -1.0; it must be a finite number greater than 0.
    """


class SettingError(LiftedBregmanError, ValueError):
    """A hyper-parameter is outside its valid range.

    Example:
        >>> lb.activations.SoftThreshold(-1.0)
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.SettingError: threshold is -1.0; it must be a finite number greater than 0.
    """


class TensorError(LiftedBregmanError, ValueError):
    """A tensor has the wrong shape, dtype or device, is empty, or holds NaN or infinity.

    Example:
        >>> lb.activations.ReLU()(torch.tensor([1, 2]))
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.TensorError: ReLU was given z of type torch.int64; it takes a torch ...
    """


class DomainError(LiftedBregmanError, ValueError):
    """A point lies outside the domain of a potential, so that its Bregman loss would be infinite.

    Example:
        >>> lb.BregmanLoss(lb.activations.ReLU())(torch.zeros(1, 1), torch.tensor([[-1.0]]))
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.DomainError: the target of sample 0 is outside the domain of ReLU() ...
    """


class NotProximalError(LiftedBregmanError, ValueError):
    """A function is no proximal map: it is not non-decreasing, or not 1-Lipschitz.

    Example:
        >>> lb.activations.FromScalar(torch.square)
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.NotProximalError: FromScalar(square) is no proximal map: it decreases ...
    """


class UnsupportedModuleError(LiftedBregmanError, TypeError):
    """A module of the user's network cannot be lifted.

    Example:
        >>> lb.lift(nn.Sequential(nn.Linear(3, 4), nn.RReLU(), nn.Linear(4, 2)), loss=lb.SquaredError())
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.UnsupportedModuleError: model.1 (RReLU) cannot be lifted: its slope is ...
    """


class CompatibilityError(LiftedBregmanError, ValueError):
    """Two parts do not fit together, such as a loss and a final activation.

    Example:
        >>> lb.lift(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), loss=lb.SquaredError())
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CompatibilityError: the model ends with the activation ReLU(), but the ...
    """


class CheckError(LiftedBregmanError, AssertionError):
    """A public `check_*` helper found an identity violated.

    Example:
        >>> lb.check_map(nn.Dropout(), torch.randn(5, 3, dtype=torch.float64))
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CheckError: f(x) differs between two calls; a map must be deterministic ...
    """


class ActivationDerivativeError(LiftedBregmanError, RuntimeError):
    """An activation was differentiated although `forbid_activation_derivatives` was in force.

    Example:
        >>> z = torch.ones(3, requires_grad=True)
        >>> with lb.forbid_activation_derivatives():
        ...     torch.relu(z).sum().backward()
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.ActivationDerivativeError: an activation was differentiated within ...
    """


class DataError(LiftedBregmanError, ValueError):
    """A data set is unknown, cannot be obtained, or its content is not what it should be.

    Example:
        >>> lb.data.load("mnits")
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.DataError: there is no data set 'mnits'; did you mean 'mnist'? ...
    """


class StreamError(DataError):
    """A stream of batches failed: it raised an error, or gave a batch that does not fit.

    A run that meets one keeps the parameters of its last whole step, and saves a checkpoint where it has a folder.

    Example:
        >>> problem = lb.lift(nn.Linear(1, 1), loss=lb.SquaredError())
        >>> class Batches:
        ...     def __iter__(self):
        ...         yield torch.ones(2, 1), torch.ones(2, 1)
        ...         yield torch.ones(2, 3), torch.ones(2, 1)
        >>> lb.fit(problem, Batches(), epochs=1)
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.StreamError: batch 2 of epoch 1 of data: X has samples of shape (3,), so ...
    """

    result: Any = None
    """The `Result` of the run up to the error, with its history; None if the run had made no step."""


class CheckpointError(LiftedBregmanError, ValueError):
    """A checkpoint or run folder is missing, damaged, hostile, or belongs to other settings.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.checkpoints import verify_checkpoint
        >>> verify_checkpoint(Path("runs/none/checkpoints/step-1"))
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CheckpointError: runs/none/checkpoints/step-1 is no directory; a ...
    """


class DivergedError(LiftedBregmanError, ValueError):
    """An estimator's training met NaN or infinity, or its objective grew far above the start.

    scikit-learn's searches score such settings as failed.
    """


class CallbackError(LiftedBregmanError, RuntimeError):
    """A callback raised an error in another process of a parallel run; that process raises the error itself."""


class WorkerError(LiftedBregmanError, RuntimeError):
    """A process of a parallel run was lost, or did not answer in time."""
