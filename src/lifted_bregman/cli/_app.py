"""The commands of `lifted` as one cyclopts application, and how their help looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cyclopts import App, Group, Parameter
from rich.text import Text

from lifted_bregman.cli.commands import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

_HELP = """Train networks whose activations are proximal maps, without differentiating the activations.

lifted train --data digits --out runs/a     a first network, in seconds
lifted COMMAND --help                       all about a command, with examples
"""


class _Columns:
    """Help in two columns, without boxes; lines of examples are never wrapped."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        if not panel.entries:
            return
        labels = [", ".join(entry.display_labels_with_metavar) for entry in panel.entries]
        left = 4 + max(map(len, labels))
        console.print(Text("Options:" if panel.title == "Parameters" else f"{panel.title}:", style="bold"))
        for label, entry in zip(labels, panel.entries, strict=True):
            words = [_plain(entry.description)]
            words += [f"[default: {entry.default}]"] if str(entry.default) not in ("None", "False", '""') else []
            words += ["[required]"] if entry.required else []
            for line in Text(" ".join(words)).wrap(console, max(20, console.width - left)) or [Text()]:
                console.print(Text(f"  {label.ljust(left - 2)}{line.plain.rstrip()}"), soft_wrap=True)
                label = ""
        console.print()

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        console.print(Text(f"Usage: {_plain(usage)}"))
        console.print()

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        for paragraph in _plain(description).split("\n\n"):
            lines = paragraph.splitlines()
            if all(line.lstrip().startswith("lifted ") for line in lines):
                for line in lines:
                    console.print(Text(f"  {line.strip()}"), soft_wrap=True)
            else:
                console.print(Text(" ".join(map(str.strip, lines))))
            console.print()


def _plain(text: Any) -> str:
    """The plain text of a help entry, which cyclopts may have wrapped in a rich object."""
    return "" if text is None else str(getattr(text, "primary_renderable", text)).strip()


def make_app(commands: Mapping[str, Command], called: str | None = None) -> App:
    """The application with these commands.

    Only the command that is called is imported.  The others are their names and help lines.
    """
    app = App(
        name="lifted",
        help=_HELP,
        version=_version,
        help_format="plaintext",
        help_formatter=_Columns(),
        group_parameters=Group("Options", sort_key=2),
        group_arguments=Group("Arguments", sort_key=1),
        group_commands=Group("Commands", sort_key=3),
        # As on other command lines: the last of several values counts, and a value may begin with a hyphen.
        default_parameter=Parameter(allow_repeating=True, allow_leading_hyphen=True, negative=(), show_choices=False),
        suppress_keyboard_interrupt=False,
    )
    for place, (name, command) in enumerate(commands.items()):
        if name == called:
            app.command(command.load(), name=name)
        else:
            app.command(command.target, name=name, help=command.help, sort_key=place)
    # `main` takes this one out of the arguments, wherever it stands.
    app.command(
        lambda: None,
        name="--traceback",
        help="Show where an error came from; LIFTED_DEBUG=1 does so too.",
        group="Options",
    )
    for flag, words in (("--version", "Show the version and exit."), ("--help", "Show this message and exit.")):
        app[flag].group, app[flag].help = (app.group_parameters,), words
    return app


def _version() -> str:
    from importlib.metadata import version

    return f"lifted-bregman {version('lifted-bregman')}"
