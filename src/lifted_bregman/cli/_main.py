"""`main`: runs a command, and turns whatever comes out of it into an exit code and at most one sentence."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from lifted_bregman.cli import _console
from lifted_bregman.cli._errors import ExitCode, explained
from lifted_bregman.errors import WorkerError

# click's own exceptions, wherever typer has click from
_USAGE_ERROR, _CLICK_ERROR = typer.BadParameter.__mro__[1:3]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `lifted` with these arguments, those of the process by default, and returns its exit code.

    0 all went well, 1 a self-check or the program itself failed, 2 usage, 3 data, 4 checkpoints, 5 the run diverged,
    130 and 143 the run was interrupted by SIGINT or SIGTERM.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with_traceback = bool(os.environ.get("LIFTED_DEBUG")) or "--traceback" in arguments
    arguments = [argument for argument in arguments if argument != "--traceback"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    _console.silence(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=RuntimeWarning, module="lifted_bregman")
        warnings.showwarning = _show_warning
        try:
            return _run(arguments)
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        except Exception as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                _console.messages().print(str(error))
                return ExitCode.USAGE
            if with_traceback:
                traceback.print_exc()
            code, sentence = _usage(error) if isinstance(error, _CLICK_ERROR) else explained(error)
            return _ended(_told(error, code, sentence))


def _run(arguments: Sequence[str]) -> int:
    from lifted_bregman.cli._app import app

    try:
        returned: Any = get_command(app)(arguments, prog_name="lifted", standalone_mode=False, obj=arguments)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if returned is None else int(returned)


def _told(error: Exception, code: int, sentence: str) -> int:
    """Says the sentence once, whoever of a parallel run says it; returns the exit code of this process.

    One that has lost the others speaks for itself.
    """
    from lifted_bregman.cli._workers import leave
    from lifted_bregman.distributed.environment import LOST, launched

    if isinstance(error, WorkerError):
        if launched():
            return LOST
    elif _console.silent() and sentence.startswith("rank "):
        return ExitCode.OK  # that one says it
    if not leave(sentence):
        _console.silence(False)
        _console.say("lifted", sentence)
    return code


def _ended(code: int) -> int:
    """The code; a process that has joined others ends with it whatever the end of the interpreter would do."""
    from lifted_bregman.distributed.environment import process_info

    if process_info() is not None:
        from lifted_bregman.distributed.world import end_at_once, joined

        if joined():
            atexit.register(end_at_once, code)
    return code


def _usage(error: Any) -> tuple[int, str]:
    """click's message, without its box; --help is where the remedy is."""
    from lifted_bregman.experiments.settings import names

    context = getattr(error, "ctx", None)
    command = "lifted" if context is None else context.command_path
    option = str(getattr(error, "option_name", ""))
    if command == "lifted resume" and (option == "--set" or option.removeprefix("--").replace("-", "_") in names()):
        return ExitCode.USAGE, (
            f"{option} is fixed when a run is started: start a new run with it, 'lifted train --config "
            f"RUN/settings.toml {option} ... --out FOLDER', or see 'lifted resume --help' for what can be changed."
        )
    return ExitCode.USAGE, f"{error.format_message().rstrip('.')}; see '{command} --help'."


def _show_warning(message: Warning | str, *ignored: Any, **also_ignored: Any) -> None:
    _console.say("warning", str(message), "bold yellow")
