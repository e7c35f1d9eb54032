"""`lifted report`: writes the page of a stored run or demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman.cli import terminal
from lifted_bregman.cli.parameters import Parameter, argument
from lifted_bregman.reports.report import require_drawing, write_report


def report_command(
    folder: Annotated[Path, argument("The --out of 'lifted demo' or 'lifted train'.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Where the page goes. [default: FOLDER]")] = None,
) -> None:
    """Make the page of a demonstration or a run from its stored rows, without training.

    lifted report out/demo
    lifted report runs/a
    """
    require_drawing()
    terminal.output().print(f"page: {write_report(folder, out)}")
