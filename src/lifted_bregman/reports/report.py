"""`write_report`: the page of a demonstration or a run, made from the files in its folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from lifted_bregman.experiments import demo_folder
from lifted_bregman.reports.demo_page import demo_page
from lifted_bregman.reports.run_page import run_page


def require_drawing() -> None:
    """Raise ImportError if jinja2 or matplotlib is missing; called before training starts."""
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ImportError(f"the page needs {' and '.join(missing)}: install lifted-bregman with the extra 'plot'")


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a demonstration or a run.

    Args:
        folder: the --out of `lifted demo` or `lifted train`.
        out: the folder of the page; None for `folder` itself.
    """
    page = demo_page(demo_folder.load_demo(folder)) if demo_folder.is_demo(folder) else run_page(folder)
    return page.write((out or folder) / demo_folder.PAGE)
