"""The list of mutations fits the library and its tests, so that `scripts/mutation_check.py` proves what it names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _script():
    specification = importlib.util.spec_from_file_location("mutation_check", ROOT / "scripts" / "mutation_check.py")
    module = sys.modules["mutation_check"] = importlib.util.module_from_spec(specification)  # which dataclasses look up
    specification.loader.exec_module(module)
    return module


SCRIPT = _script()


def test_names_are_unique():
    names = [mutation.name for mutation in SCRIPT.MUTATIONS]
    assert names and len(set(names)) == len(names)


@pytest.mark.parametrize("mutation", SCRIPT.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_library(mutation):
    """Its line stands once in the file, what replaces it is Python, and what it names of the tests is there."""
    source = mutation.path(ROOT).read_text()
    assert source.count(mutation.old) == 1 and mutation.new != mutation.old
    compile(source.replace(mutation.old, mutation.new), mutation.file, "exec")
    paths, _, word = mutation.tests.partition(" -k ")
    files = [ROOT / path for path in paths.split()]
    assert files and all(path.exists() for path in files)
    tests = [file.read_text() for path in files for file in ([path] if path.is_file() else path.rglob("*.py"))]
    assert any(word in text for text in tests) and " " not in word
