"""`lifted data`: lists the data sets, fetches one, verifies one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App
from rich import box
from rich.table import Table
from rich.text import Text

from lifted_bregman import data
from lifted_bregman.cli import terminal
from lifted_bregman.cli.parameters import Parameter, argument

data_app = App(
    name="data",
    help="Data sets, pictures, texts and tables by name: list, get, verify.\n\nlifted data list\nlifted data get mnist",
)

SetName = Annotated[str, argument("The set; 'mnist-1k' means 'mnist', of which it is a part.")]
DataFolder = Annotated[Path | None, Parameter(help="A folder that holds the sets; without it, the cache alone.")]


@data_app.command(name="list")
def list_data(*, data_dir: DataFolder = None) -> None:
    """Show the sets, and where each is stored or can be downloaded.

    lifted data list
    lifted data list --data-dir sets
    """
    # One row for each set, picture, text and table
    header = ("name", "samples", "shape", "classes", "where", "origin")
    rows = [
        (
            info.name,
            f"{info.samples[0]:,} + {info.samples[1]:,}",
            " x ".join(map(str, info.shape)),
            str(len(info.classes)),
            data.whereabouts(info, data_dir),
            info.note,
        )
        for info in data.SETS.values()
    ]
    rows += [
        (info.name, f"{len(info.files)} pictures", info.size, "-", data.whereabouts(info, data_dir), info.note)
        for info in data.PICTURES.values()
    ]
    rows += [
        (text.name, f"{text.file.size:,} characters", "text", "-", data.whereabouts(text, data_dir), text.note)
        for text in data.TEXTS.values()
    ]
    rows += [
        (
            table.name,
            f"{table.samples:,}, {table.abnormal:,} abnormal",
            f"{table.features} features",
            "2",
            data.whereabouts(table, data_dir),
            table.note,
        )
        for table in data.TABLES.values()
    ]
    # Aligned plain text for a pipe or a file
    console = terminal.output()
    if not console.is_terminal:
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        for row in (header, *rows):
            console.print("  ".join(map(str.ljust, row, widths)).rstrip())
        return
    # A table for a terminal, with origins in a second line
    table = Table(*header[:4], "where, origin", box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[:4]:
        column.no_wrap = True
    for *first, where, origin in rows:
        table.add_row(*first, Text.assemble(where, "\n", (origin, "dim")))
    console.print(table, soft_wrap=False)
    console.print("samples: to train on + to test on.  mnist-1k is a random thousand of mnist, mnist-500 five hundred.")


@data_app.command(name="get")
def get_data(name: SetName, /, *, data_dir: DataFolder = None) -> None:
    """Download a set unless it is on this machine, and verify it.

    lifted data get mnist
    """
    with terminal.downloads() as progress:
        source = data.get(name, data_dir=data_dir, progress=progress)
    terminal.output().print(f"{name} is here and verified: {source}")


@data_app.command(name="verify")
def verify_data(name: SetName, /, *, data_dir: DataFolder = None) -> None:
    """Read a set again and check its sha256.

    lifted data verify mnist
    """
    for what in data.verify(name, data_dir=data_dir):
        terminal.output().print(f"ok  {what}")
