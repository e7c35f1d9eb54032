"""The list of mutations fits the library and its tests, so that `scripts/mutation_check.py` proves what it names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

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


def _misfit(mutation) -> str | None:
    """Why a mutation does not fit the library or its tests; None if it does."""
    source = mutation.path(ROOT).read_text()
    if source.count(mutation.old) != 1 or mutation.new == mutation.old:
        return f"its line stands {source.count(mutation.old)} times in {mutation.file}"
    try:
        compile(source.replace(mutation.old, mutation.new), mutation.file, "exec")
    except SyntaxError as error:
        return f"what replaces its line is not Python: {error}"
    paths, _, word = mutation.tests.partition(" -k ")
    files = [ROOT / path for path in paths.split()]
    if not files or not all(path.exists() for path in files):
        return f"there is no {paths}"
    tests = [file.read_text() for path in files for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return None if any(word in text for text in tests) and " " not in word else f"no test has {word!r} in its name"


def test_every_mutation_fits_the_library_and_its_tests():
    found = {mutation.name: misfit for mutation in SCRIPT.MUTATIONS if (misfit := _misfit(mutation)) is not None}
    assert found == {}
