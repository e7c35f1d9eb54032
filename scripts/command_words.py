"""List every word that users of `lifted` type: commands, arguments, flags, keys of settings files, exit codes.

    python scripts/command_words.py > words.txt

One line for each word, sorted.  `tests/cli/command_words.txt` is the list of an earlier version.  A test checks that
each of its lines is in the present list, so that no change takes a word away from users unnoticed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from cyclopts import App

from lifted_bregman.cli._app import make_app
from lifted_bregman.cli.commands import installed
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.experiments.settings import SETTING_NAMES
from lifted_bregman.experiments.solver_names import SOLVERS


def parameter_words(path: str, app: App) -> Iterator[str]:
    """A command's arguments and flags; a flag with a value is followed by VALUE."""
    for entry in app.assemble_argument_collection():
        if not entry.parse or not entry.show:
            continue
        if entry.field_info.is_positional:
            optional = "" if entry.required else " optional"
            yield f"{path} argument {entry.parameter.metavar or entry.name}{optional}"
        else:
            count, repeated = entry.token_count()
            for name in set(entry.names) - set(entry.negatives):
                yield f"{path} {name}{' VALUE' if count else ''}{' repeated' if repeated else ''}"


def command_words(path: str, app: App) -> Iterator[str]:
    """A command's words, and those of the commands below it."""
    yield path
    yield from (f"{path} {flag}" for flag in app.help_flags)
    if app.default_command is not None:
        yield from parameter_words(path, app)
    for name in app:
        if name.startswith("-"):
            yield f"{path} {name}"
        elif path != "lifted":
            yield from command_words(f"{path} {name}", app[name])


def all_words() -> list[str]:
    """The sorted list."""
    commands = installed()
    words = set(command_words("lifted", make_app(commands)))
    for name in commands:
        words |= set(command_words(f"lifted {name}", make_app(commands, name)[name]))
    words |= {f"settings.toml {name}" for name in SETTING_NAMES}
    for name, kind in SOLVERS.items():
        words.add(f"settings.toml [solver] name = {name}")
        words |= {f"settings.toml [solver] of {name}: {entry.name}" for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
    words |= {f"exit code {code:d} {code.name}" for code in ExitCode}
    return sorted(words)


if __name__ == "__main__":
    print("\n".join(all_words()))
