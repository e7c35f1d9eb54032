"""`write_report`: the page of whatever a folder holds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from lifted_bregman.experiments import demo_folder, race
from lifted_bregman.reports.demo_page import demo_page
from lifted_bregman.reports.race_page import race_page
from lifted_bregman.reports.run_page import run_page

PAGE = "index.html"
RACE = "race.json"


def require_drawing() -> None:
    """ImportError if what draws pages is not installed, so that nobody finds out after the training."""
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ImportError(f"the page needs {' and '.join(missing)}: install lifted-bregman with the extra 'plot'")


def write_report(folder: Path) -> Path:
    """Writes the page of a race, a demonstration or a run into its folder, from what is stored there."""
    if (folder / RACE).is_file():
        page = race_page(race.read_race(folder / RACE))
    elif demo_folder.is_demo(folder):
        page = demo_page(demo_folder.load(folder))
    else:
        page = run_page(folder)
    return page.write(folder / PAGE)
