"""`lifted report`: the page again, from stored rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lifted_bregman.cli import _console
from lifted_bregman.reports.report import require_drawing, write_report


def report(
    folder: Annotated[
        Path, typer.Argument(help="What 'lifted demo', 'lifted train' or 'lifted bench race' was given as --out.")
    ],
) -> None:
    """Make the page of a demonstration, of a run or of a race from its stored rows, without training.

    \b
    lifted report out/demo
    lifted report runs/a
    lifted report out/race
    """
    require_drawing()
    _console.output().print(f"page: {write_report(folder)}")
