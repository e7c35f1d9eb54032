"""The pages of reproductions, made from stored rows."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from lifted_bregman.experiments.demo_folder import PAGE
from lifted_bregman.reports import report
from lifted_bregman_lab.reproduction.report.page import paper_page
from lifted_bregman_lab.reproduction.report.results import Results, is_results, load_results

REPRODUCTION = Path("out/reproduction")
"""The default folder of a reproduction's page; the folder of rows holds only rows."""


def write_any_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a reproduction, a demonstration or a run.

    Args:
        folder: the --out of `lifted reproduce`, `lifted demo` or `lifted train`.
        out: the folder of the page; None for `folder` itself, or for a reproduction `REPRODUCTION`.
    """
    if is_results(folder):
        return write_paper_report(load_results(folder), out)
    return report.write_report(folder, out)


def write_paper_report(results: Results, out: Path | None = None) -> Path:
    """Write the page of a reproduction into `out`, or into `REPRODUCTION`."""
    with TemporaryDirectory(prefix="report-") as scratch:
        return paper_page(results, Path(scratch)).write((out or REPRODUCTION) / PAGE)
