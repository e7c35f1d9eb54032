"""`app`: the commands of `lifted`, each imported when it is called."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from lifted_bregman.cli.commands import ELSEWHERE, installed


class _Group(TyperGroup):
    """Imports a command when it is called, and shows the help of all from their one line each."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._installed = installed()
        self.commands: Any = dict.fromkeys(self._installed)  # a typo is compared with its keys

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self._installed:
            if self.commands[cmd_name] is None:
                self.commands[cmd_name] = _as_click(cmd_name, self._installed[cmd_name].load())
            return self.commands[cmd_name]
        if cmd_name in ELSEWHERE:
            ctx.fail(
                f"'lifted {cmd_name}' is part of {ELSEWHERE[cmd_name]}, which is not installed: in a checkout of the "
                "repository, 'pip install ./lab' adds it"
            )
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self._installed.items()])


app = typer.Typer(
    name="lifted",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _as_click(name: str, command: Any) -> Any:
    """A function or a Typer as the command that click runs."""
    if not isinstance(command, typer.Typer):
        function, command = command, typer.Typer(add_completion=False, rich_markup_mode=None)
        command.command(name)(function)
    return get_command(command)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"lifted-bregman {version('lifted-bregman')}")
        raise typer.Exit


@app.callback()
def lifted(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
    with_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from; LIFTED_DEBUG=1 does so too.")
    ] = False,
) -> None:
    """Train networks whose activations are proximal maps, without differentiating the activations.

    lifted train --data digits --out runs/a     a first network, in seconds
    """
