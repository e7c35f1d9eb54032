"""`lifted report`: the page of a demonstration, a run or a reproduction, made from stored rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from lifted_bregman.cli import terminal
from lifted_bregman.cli.parameters import Parameter, argument
from lifted_bregman.errors import CheckpointError
from lifted_bregman.reports.report import require_drawing
from lifted_bregman_lab.reports import write_any_report, write_paper_report
from lifted_bregman_lab.reproduction.report.results import is_results, load_results
from lifted_bregman_lab.reproduction.report.summary import require_place, write_headline, write_summary
from lifted_bregman_lab.reproduction.report.tables import counted


def report(
    folder: Annotated[
        Path,
        argument("The --out of 'lifted demo', 'lifted train' or 'lifted reproduce'."),
    ],
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="Where the page goes. [default: FOLDER; of a reproduction out/reproduction]")
    ] = None,
    summary: Annotated[Path | None, Parameter(help="Of a reproduction: write its summary to this file.")] = None,
    headline: Annotated[
        Path | None, Parameter(help="Of a reproduction: put its headline table between the marks of this file.")
    ] = None,
    paper: Annotated[str | None, Parameter(help="Which paper, where several are installed.")] = None,
) -> None:
    """Make the page of a demonstration, a run or a reproduction from its stored rows, without training.

    lifted report out/demo
    lifted report runs/a
    lifted report results --summary docs/reproduction-results.md
    """
    require_drawing()
    console = terminal.output()
    if not is_results(folder):
        _refuse(folder, {"--summary": summary, "--headline": headline, "--paper": paper})
        console.print(f"page: {write_any_report(folder, out)}")
        return
    results = load_results(folder, paper)
    if headline is not None:
        require_place(headline)
    for name, reason in results.ignored.items():
        terminal.say("warning", f"{folder / name}: {reason}", "bold yellow")
    console.print(counted(results))
    console.print(f"page: {write_paper_report(results, out)}")
    if summary is not None:
        console.print(f"summary: {write_summary(results, summary)}")
    if headline is not None:
        console.print(f"headline: {write_headline(results, headline)}")


def _refuse(folder: Path, options: Mapping[str, object]) -> None:
    """Raise an error if an option is given that is for reproductions only."""
    for option, value in options.items():
        if value is not None and folder.is_dir():
            raise CheckpointError(
                f"{folder} holds no rows of a reproduction, which {option} is for: run 'lifted reproduce' first, or "
                f"leave {option} out."
            )
