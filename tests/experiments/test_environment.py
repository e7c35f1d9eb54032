"""Where a run took place: the commit of the library, and nobody else's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lifted_bregman.experiments import environment
from tests import fresh

ASK = "import importlib.util as u; s = u.spec_from_file_location('e', {!r}); m = u.module_from_spec(s); "
ASK += "s.loader.exec_module(m); print(m.commit())"


def git(folder: Path, *arguments: str) -> str:
    told = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *told, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of its own with the module inside."""
    place = tmp_path / "project" / "package" / "experiments"
    place.mkdir(parents=True)
    shutil.copy(environment.__file__, place / "environment.py")
    git(tmp_path / "project", "init", "-q")
    return place / "environment.py"


def asked(module: Path) -> str:
    return fresh.run(ASK.format(str(module))).stdout.strip()


def test_the_commit_is_the_one_that_is_checked_out(project: Path) -> None:
    root = project.parent.parent.parent
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    assert asked(project) == git(root, "rev-parse", "--short=12", "HEAD").strip()
    project.write_text(project.read_text() + "\n# more\n")
    assert asked(project).endswith(", changed")


def test_a_copy_inside_another_project_has_none(project: Path, tmp_path: Path) -> None:
    assert asked(project) == "unknown"
    shutil.copy(project, tmp_path / "environment.py")
    assert asked(tmp_path / "environment.py") == "unknown"
