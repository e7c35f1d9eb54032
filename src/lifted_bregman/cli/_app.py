"""The commands of `lifted`, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from lifted_bregman.cli import apply, bench, checkpoint, data, demo, doctor, report, reproduce, train

app = typer.Typer(
    name="lifted",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


app.command()(demo.demo)
app.command()(train.train)
app.command()(train.resume)
app.command()(apply.predict)
app.command()(apply.encode)
app.command()(apply.reconstruct)
app.add_typer(data.app)
app.command()(report.report)
app.command()(reproduce.reproduce)
app.add_typer(bench.app)
app.add_typer(checkpoint.app)
app.command()(doctor.doctor)
