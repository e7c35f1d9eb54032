"""`lifted report`: the page again, from stored rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman.cli import _console
from lifted_bregman.cli.parameters import Parameter, argument
from lifted_bregman.reports.report import require_drawing, write_report


def report(
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
    _console.output().print(f"page: {write_report(folder, out)}")
