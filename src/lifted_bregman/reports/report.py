"""`write_report`: the page of a demonstration or a run, from what is stored in its folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from lifted_bregman.experiments import demo_folder
from lifted_bregman.reports.demo_page import demo_page
from lifted_bregman.reports.run_page import run_page

PAGE = demo_folder.PAGE


def require_drawing() -> None:
    """ImportError if what draws pages is not installed, so that nobody finds out after the training."""
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ImportError(f"the page needs {' and '.join(missing)}: install lifted-bregman with the extra 'plot'")


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a demonstration or a run.

    Args:
        folder: the --out of `lifted demo` or `lifted train`.
        out: the folder of the page; None for `folder` itself.
    """
    page = demo_page(demo_folder.load(folder)) if demo_folder.is_demo(folder) else run_page(folder)
    return page.write((out or folder) / PAGE)
