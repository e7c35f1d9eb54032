"""What `lifted train` and `lifted resume` print when a run ends."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.distributed.environment import follows
from lifted_bregman.experiments import RunData, Settings
from lifted_bregman.experiments.runs import SETTINGS
from lifted_bregman.solvers import Outcome, Result
from lifted_bregman.solvers.divergence import remedy

_FRACTIONS = ("accuracy", "validation_accuracy", "sparsity")
_SHOWN = {
    "objective": "objective",
    "validation": "validation objective",
    "accuracy": "accuracy",
    "validation_accuracy": "validation accuracy",
    "sparsity": "zeros in the middle layer",
}


@contextmanager
def announced_stop(run: Path) -> Iterator[None]:
    """Prints how to continue the run where SIGTERM or a second Ctrl-C ends it."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as stop:
        if (run / SETTINGS).exists():
            how = "everything is saved" if isinstance(stop, SystemExit) else "the last checkpoint is kept"
            terminal.say("lifted", f"stopped, {how}; 'lifted resume {shlex.quote(str(run))}' continues.", "bold yellow")
        raise


def print_ending(result: Result, run: Path, settings: Settings, samples: RunData) -> int:
    """Prints the last row of the history, the outcome and the folder; returns the exit code."""
    row = result.history[-1] if result.history else {}
    shown = {word: _number(name, row[name]) for name, word in _SHOWN.items() if name in row}
    if row:
        shown["seconds in steps"] = f"{row['seconds']:.2f}"
        shown["epochs"] = f"{int(row['epoch'])} of {settings.epochs}"
    shown["data"] = f"{len(samples.train[0]):,} samples of {settings.data}. {samples.source}"
    shown |= {"outcome": result.message, "run": str(run)}
    if result.outcome is Outcome.INTERRUPTED:
        shown["continue"] = f"lifted resume {shlex.quote(str(run))}"
    elif result.outcome is not Outcome.DIVERGED:
        shown["use"] = f"lifted {'reconstruct' if settings.autoencoder else 'predict'} {shlex.quote(str(run))} FILE"
    terminal.show_rows(shown)
    if settings.parallel is not None and follows():
        return ExitCode.OK  # rank 0 returns the code of the run
    if result.outcome is Outcome.DIVERGED:
        known = remedy(settings.make_solver())
        advice = "" if known in result.message else f" Use float64, or {known}."
        terminal.say("lifted", f"{result.message}{advice}")
        return ExitCode.DIVERGED
    return ExitCode.INTERRUPTED if result.outcome is Outcome.INTERRUPTED else ExitCode.OK


def _number(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name in _FRACTIONS else f"{value:.6g}"
