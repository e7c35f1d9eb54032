"""The exit code and the sentence that the command line gives for an error."""

from __future__ import annotations

from enum import IntEnum

from lifted_bregman.errors import (
    CheckError,
    CheckpointError,
    CompatibilityError,
    DataError,
    DomainError,
    LiftedBregmanError,
    NotProximalError,
    SettingError,
    TensorError,
    UnsupportedModuleError,
)


class ExitCode(IntEnum):
    """The exit codes of `lifted`."""

    OK = 0
    FAILED = 1
    """An error that should not happen, or a self-check that failed."""
    USAGE = 2
    DATA = 3
    CHECKPOINT = 4
    DIVERGED = 5
    INTERRUPTED = 130
    TERMINATED = 143


_CODES: dict[type[Exception], ExitCode] = {
    SettingError: ExitCode.USAGE,
    CompatibilityError: ExitCode.USAGE,
    NotProximalError: ExitCode.USAGE,
    UnsupportedModuleError: ExitCode.USAGE,
    DataError: ExitCode.DATA,
    TensorError: ExitCode.DATA,
    DomainError: ExitCode.DATA,
    CheckpointError: ExitCode.CHECKPOINT,
    CheckError: ExitCode.FAILED,
}


def explain_error(error: Exception) -> tuple[ExitCode, str]:
    """The exit code and the sentence for an error."""
    if isinstance(error, LiftedBregmanError):
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), ExitCode.FAILED)
        return code, str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error)):
        return ExitCode.USAGE, "there is not enough memory: take narrower layers, smaller batches or fewer samples."
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return ExitCode.USAGE, f"{where}{error.strerror or error}; check the path, its rights and the space left."
    if isinstance(error, ImportError):
        return ExitCode.USAGE, f"{error}; install lifted-bregman with the extra that brings it, see 'lifted doctor'."
    what = f"{type(error).__name__}: {error}".rstrip(".")
    return ExitCode.FAILED, f"this should not happen ({what}); run it again with --traceback, and report what it shows."
