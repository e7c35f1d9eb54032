"""`lifted report`: the page again, from stored rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lifted_bregman.cli import _console
from lifted_bregman.reports.report import require_drawing, write_report


def report(
    folder: Annotated[Path, typer.Argument(help="The --out of 'lifted demo' or 'lifted train'.")],
    out: Annotated[Path | None, typer.Option(help="Where the page goes. [default: FOLDER]")] = None,
) -> None:
    """Make the page of a demonstration or a run from its stored rows, without training.

    \b
    lifted report out/demo
    lifted report runs/a
    """
    require_drawing()
    _console.output().print(f"page: {write_report(folder, out)}")
