"""`lifted demo`: lifted training against SGD and Adam in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole
from lifted_bregman.experiments.demo import DEMO_METHODS, DemoSettings, run_demo
from lifted_bregman.reports.demo_page import HEADER, final_rows
from lifted_bregman.reports.report import require_drawing, write_report


def demo_command(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of training for each method.")] = DemoSettings.seconds,
    out: Annotated[Path, Parameter(help="The folder for rows, pictures and page.")] = Path("out/demo"),
    seed: Annotated[Whole, Parameter(help="Fixes digits, initial weights and their order.")] = DemoSettings.seed,
    threads: Annotated[Whole | None, Parameter(help="Threads of torch. [default: as many as torch takes]")] = None,
    data_dir: Annotated[Path | None, Parameter(help="A folder that holds data sets. [default: the cache]")] = None,
) -> int:
    """Train a sparse autoencoder of 1,000 digits lifted, by SGD and by Adam, for the same time each.

    lifted demo
    lifted demo --seconds 5 --out out/demo

    Prints a table and writes a page with curves, reconstructions and codes; about a minute on two cores.
    """
    settings = DemoSettings(seconds, seed, threads, data_dir)
    require_drawing()
    console = terminal.messages()
    names = ", ".join(method.name for method in DEMO_METHODS)
    console.print(f"MNIST-1K sparse autoencoder: {names}, {seconds:g} seconds of training each")
    result = run_demo(settings, out, console)
    page = write_report(out)
    _print_table(HEADER, final_rows(result))
    terminal.output().print(f"page: {page}")
    diverged = any(method.outcome == "DIVERGED" for method in result.methods)
    return ExitCode.DIVERGED if diverged else ExitCode.OK


def _print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Prints a table as plain text; columns except the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    console = terminal.output()
    for line in (header, *rows):
        first, *others = zip(line, widths, strict=True)
        console.print("   ".join((first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others))))
