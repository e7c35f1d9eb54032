"""The demonstration that the tests of its run, its page and its folder share."""

import shutil
from pathlib import Path

import pytest

from tests.reports.short_demo import ShortDemo, one_short_demo


@pytest.fixture(scope="session")
def short_demo(tmp_path_factory: pytest.TempPathFactory) -> ShortDemo:
    return one_short_demo(tmp_path_factory)


@pytest.fixture
def copy(short_demo: ShortDemo, tmp_path: Path) -> Path:
    """The stored demonstration without its page."""
    folder = tmp_path / "copy"
    shutil.copytree(short_demo.folder, folder)
    (folder / "index.html").unlink()
    return folder
