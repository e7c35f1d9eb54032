"""The Python code in the documentation runs as it stands."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(page.name for page in DOCS.glob("*.md") if "```python" in page.read_text())


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_runs(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)  # blocks of a page share their names, as a reader would


def test_there_are_pages_with_code():
    assert "solvers.md" in PAGES
