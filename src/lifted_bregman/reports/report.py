"""`write_report`: the page of whatever a folder holds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from lifted_bregman.experiments import demo_folder, race
from lifted_bregman.reports.demo_page import demo_page
from lifted_bregman.reports.paper_page import paper_page
from lifted_bregman.reports.paper_results import Results, is_results, load_results
from lifted_bregman.reports.race_page import race_page
from lifted_bregman.reports.run_page import run_page

PAGE = demo_folder.PAGE
RACE = "race.json"
REPRODUCTION = Path("out/reproduction")
"""Where the page of a reproduction is written if nobody says otherwise: not beside the rows, which are kept."""


def require_drawing() -> None:
    """ImportError if what draws pages is not installed, so that nobody finds out after the training."""
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ImportError(f"the page needs {' and '.join(missing)}: install lifted-bregman with the extra 'plot'")


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Writes the page of a race, a demonstration, a run or a reproduction, from what is stored in its folder.

    Args:
        folder: what `lifted bench race`, `lifted demo`, `lifted train` or `lifted reproduce` was given as --out.
        out: the folder of the page; None for `folder` itself, or for a reproduction `REPRODUCTION`.
    """
    if is_results(folder):
        return write_paper_report(load_results(folder), out)
    if (folder / RACE).is_file():
        page = race_page(race.read_race(folder / RACE))
    elif demo_folder.is_demo(folder):
        page = demo_page(demo_folder.load(folder))
    else:
        page = run_page(folder)
    return page.write((out or folder) / PAGE)


def write_paper_report(results: Results, out: Path | None = None) -> Path:
    """Writes the page of a reproduction into `out`, or into `REPRODUCTION`."""
    with TemporaryDirectory(prefix="report-") as scratch:
        return paper_page(results, Path(scratch)).write((out or REPRODUCTION) / PAGE)
