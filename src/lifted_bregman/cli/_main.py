"""`main`: runs a command, and turns every error into an exit code and one sentence."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from cyclopts import CycloptsError, MissingArgumentError, UnknownCommandError, UnknownOptionError, UnusedCliTokensError

from lifted_bregman._text import did_you_mean
from lifted_bregman.cli import terminal
from lifted_bregman.cli._app import make_app
from lifted_bregman.cli.commands import ELSEWHERE, installed
from lifted_bregman.cli.exit_codes import ExitCode, explain_error
from lifted_bregman.errors import SettingError, WorkerError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `lifted` with these arguments, those of the process by default, and returns its exit code.

    0 success, 1 a failed self-check or an unexpected error, 2 usage, 3 data, 4 checkpoints, 5 the run diverged, 130 and
    143 the run was interrupted by SIGINT or SIGTERM.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with_traceback = bool(os.environ.get("LIFTED_DEBUG")) or "--traceback" in arguments
    arguments = [argument for argument in arguments if argument != "--traceback"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    terminal.silence(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=RuntimeWarning, module="lifted_bregman")
        warnings.showwarning = _show_warning
        try:
            return _run(arguments)
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        except Exception as error:
            if with_traceback:
                traceback.print_exc()
            code, sentence = _usage(error) if isinstance(error, CycloptsError) else explain_error(error)
            return _ended(_told(error, code, sentence))


def _run(arguments: Sequence[str]) -> int:
    """Parses the arguments and calls the command; returns its exit code."""
    commands, called = installed(), next(iter(arguments), None)
    if called in ELSEWHERE and called not in commands:
        raise SettingError(
            f"'lifted {called}' is part of {ELSEWHERE[called]}, which is not installed: in a checkout of the "
            "repository, 'pip install ./lab' adds it; see 'lifted --help'."
        )
    app = make_app(commands, called)
    # A group without a command, such as `lifted data`: its help, as an error.
    _, path, left = app.parse_commands(arguments)
    if path[-1].default_command is None and not left:
        app.help_print(arguments, console=terminal.messages(wrapped=True))
        return ExitCode.USAGE
    command, bound, unparsed = app.parse_args(arguments, exit_on_error=False, print_error=False, verbose=False)
    # What commands take besides parsed parameters: their command line, and the console for help.
    known = {"arguments": arguments, "console": terminal.output(wrapped=True)}
    returned: Any = command(*bound.args, **bound.kwargs, **{name: known[name] for name in unparsed if name in known})
    return ExitCode.OK if returned is None else int(returned)


def _told(error: Exception, code: int, sentence: str) -> int:
    """Prints the sentence, once for all ranks of a run; returns the exit code of this process.

    A rank that has lost its connection to the others prints it too.
    """
    from lifted_bregman.cli._workers import leave
    from lifted_bregman.distributed.environment import LOST, launched

    if isinstance(error, WorkerError):
        if launched():
            return LOST
    elif terminal.silent() and sentence.startswith("rank "):
        return ExitCode.OK  # that rank prints it
    if not leave(sentence):
        terminal.silence(False)
        terminal.say("lifted", sentence)
    return code


def _ended(code: int) -> int:
    """Returns the code.  A rank of a world exits with it at once, without waiting for threads of torch."""
    from lifted_bregman.distributed.environment import process_info

    if process_info() is not None:
        from lifted_bregman.distributed.world import end_at_once, has_joined

        if has_joined():
            atexit.register(end_at_once, code)
    return code


def _usage(error: CycloptsError) -> tuple[int, str]:
    """The exit code and the sentence for a command line that cannot be parsed."""
    command = " ".join(("lifted", *(error.command_chain or ())))
    if isinstance(error, UnknownCommandError):
        given = (error.unused_tokens or [""])[0]
        sentence = f"there is no command '{given}'{did_you_mean(given, installed() if command == 'lifted' else ())}"
    elif isinstance(error, UnknownOptionError):
        option = error.token.keyword or error.token.value
        if command == "lifted resume" and _is_setting(option):
            return ExitCode.USAGE, (
                f"{option} is fixed when a run is started: start a new run with it, 'lifted train --config "
                f"RUN/settings.toml {option} ... --out FOLDER', or see 'lifted resume --help' for what can be changed."
            )
        known = [name for entry in error.argument_collection for name in entry.names if name.startswith("--")]
        sentence = f"there is no option {option}{did_you_mean(option, known)}"
    elif isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.keyword or error.argument.parameter.metavar or error.argument.name
        sentence = f"{name} needs a value" if name.startswith("-") else f"Missing argument {name}"
    elif isinstance(error, UnusedCliTokensError):
        sentence = f"'{(error.unused_tokens or [''])[0]}' is one argument too many"
    else:
        sentence = str(error).rstrip(".")
    return ExitCode.USAGE, f"{sentence}; see '{command} --help'."


def _is_setting(option: str) -> bool:
    from lifted_bregman.experiments.settings import SETTING_NAMES

    return option == "--set" or option.removeprefix("--").replace("-", "_") in SETTING_NAMES


def _show_warning(message: Warning | str, *ignored: Any, **also_ignored: Any) -> None:
    terminal.say("warning", str(message), "bold yellow")
