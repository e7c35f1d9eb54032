"""Exceptions of the library.

Each is also the built-in exception a Python user would expect (`ValueError`, `TypeError`), and each message says what
was given, what was expected and what to do.  They are raised before any work starts; `StreamError` alone may come
later, when a batch does.
"""

from __future__ import annotations

from typing import Any


class LiftedBregmanError(Exception):
    """Base of every exception raised on purpose by this library."""


class SettingError(LiftedBregmanError, ValueError):
    """A hyper-parameter is outside its valid range."""


class TensorError(LiftedBregmanError, ValueError):
    """A tensor has the wrong shape, dtype or device, is empty, or holds NaN or infinity."""


class DomainError(LiftedBregmanError, ValueError):
    """A point lies outside the domain of a potential, so that its Bregman loss would be infinite."""


class NotProximalError(LiftedBregmanError, ValueError):
    """A function is no proximal map: it is not non-decreasing, or not 1-Lipschitz."""


class UnsupportedModuleError(LiftedBregmanError, TypeError):
    """A module of the user's network cannot be lifted."""


class CompatibilityError(LiftedBregmanError, ValueError):
    """Two parts that are fine on their own do not fit together, such as a loss and a final activation."""


class CheckError(LiftedBregmanError, AssertionError):
    """A public `check_*` helper found an identity violated."""


class ActivationDerivativeError(LiftedBregmanError, RuntimeError):
    """An activation was differentiated although `forbid_activation_derivatives` was in force."""


class DataError(LiftedBregmanError, ValueError):
    """A data set is unknown, cannot be obtained, or its content is not what it should be."""


class StreamError(DataError):
    """A stream of batches failed: it raised an error, or gave a batch that does not fit.

    A run that meets one keeps the parameters of its last whole step, and saves a checkpoint where it has a folder.
    """

    result: Any = None
    """What the run had reached, a `Result` with its history; None where it had not begun."""


class CheckpointError(LiftedBregmanError, ValueError):
    """A checkpoint or run folder is missing, damaged, hostile, or belongs to other settings."""


class DivergedError(LiftedBregmanError, ValueError):
    """Training met NaN or infinity where only a model will do; in a search such settings are scored as failed."""


class CallbackError(LiftedBregmanError, RuntimeError):
    """A callback raised an error in another process of a parallel run; that process raises the error itself."""


class WorkerError(LiftedBregmanError, RuntimeError):
    """A process of a parallel run was lost, or did not answer in time."""
