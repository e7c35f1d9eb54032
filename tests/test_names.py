"""One public name for one thing, and private modules for their own room only, in the library and in the lab."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.test_import_order import LAB, LIBRARY, ROOT, imported_modules, modules_below

LAB_ROOT = Path(__file__).parents[1] / "lab" / "src" / LAB

SAME_PROTOCOL: dict[str, str] = {
    "main": "a module that `python -m` runs defines `main`",
    "page": "each study of the lab defines `page`, the Markdown that its command writes",
    "run": "each module of lab/commands defines the function `run` that its command calls",
}
"""Public names that several modules define on purpose, each with the protocol that fixes the name."""


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def room_of(name: str) -> tuple[str, ...]:
    """The package and the first folder below it: ("lifted_bregman", "solvers")."""
    return tuple(name.split(".")[:2])


def public_definitions(source: str) -> set[str]:
    """The names of the public classes and functions at the top level of a module."""
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name for node in ast.parse(source).body if isinstance(node, definitions) and not node.name.startswith("_")
    }


def private_imports(source: str, module: str, is_package: bool = False) -> set[tuple[str, str]]:
    """(module, name) of each import of a private module, or private name, of another room.

    A private module is named without what is taken from it.  Private modules at the root of the library belong to
    every room.
    """
    found = set()
    for _, name in imported_modules(source, module, is_package):
        parts = name.split(".")
        if parts[0] not in (LIBRARY, LAB) or room_of(name) == room_of(module):
            continue
        place = next((k for k, part in enumerate(parts[1:], 1) if is_private(part)), None)
        if place is not None and place > 1:
            found.add((module, ".".join(parts[: place + 1])))
    return found


def all_modules() -> list[tuple[str, Path]]:
    return [*modules_below(ROOT, LIBRARY), *modules_below(LAB_ROOT, LAB)]


def names_defined_twice() -> dict[str, set[str]]:
    homes: dict[str, set[str]] = {}
    for module, path in all_modules():
        if not any(is_private(part) for part in module.split(".")):
            for name in public_definitions(path.read_text(encoding="utf-8")):
                homes.setdefault(name, set()).add(module)
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


def all_private_imports() -> set[tuple[str, str]]:
    return {
        found
        for module, path in all_modules()
        if "." in module  # the top of a distribution gathers its rooms
        for found in private_imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    }


def test_no_public_name_is_defined_twice() -> None:
    twice = {name: modules for name, modules in names_defined_twice().items() if name not in SAME_PROTOCOL}
    assert twice == {}, "give one of the two another word"


def test_no_room_imports_a_private_module_of_another() -> None:
    assert all_private_imports() == set(), (
        "make the module public, or move what is needed to where both rooms may import it"
    )


def test_every_listed_exception_is_still_there() -> None:
    twice = names_defined_twice()
    assert [name for name in SAME_PROTOCOL if name not in twice] == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("class A: ...\ndef b(): ...\nasync def c(): ...", {"A", "b", "c"}),
        ("class _A: ...\ndef _b(): ...", set()),
        ("class A:\n    def inner(self): ...\ndef b():\n    def inner(): ...", {"A", "b"}),
        ("from x import A\nB = 3", set()),
    ],
)
def test_definitions_are_the_public_ones_at_the_top_level(source: str, names: set[str]) -> None:
    assert public_definitions(source) == names


@pytest.mark.parametrize(
    ("module", "source", "private"),
    [
        ("lifted_bregman.maps.dense", "from lifted_bregman.graph._cut import f", "lifted_bregman.graph._cut"),
        ("lifted_bregman.maps.dense", "from lifted_bregman.graph import _cut", "lifted_bregman.graph._cut"),
        ("lifted_bregman.maps.dense", "import lifted_bregman.graph._cut as c", "lifted_bregman.graph._cut"),
        ("lifted_bregman.maps.dense", "from ..graph._cut import f", "lifted_bregman.graph._cut"),
        ("lifted_bregman.maps.dense", "from lifted_bregman.graph.cut import _f", "lifted_bregman.graph.cut._f"),
        ("lifted_bregman.maps.dense", "def f():\n    from ..graph._cut import g", "lifted_bregman.graph._cut"),
        ("lifted_bregman_lab.race.runs", "from lifted_bregman.graph._a.b import f", "lifted_bregman.graph._a"),
        ("lifted_bregman_lab.race.runs", "from lifted_bregman_lab.paper._a import f", "lifted_bregman_lab.paper._a"),
    ],
)
def test_a_private_import_from_another_room_is_found(module: str, source: str, private: str) -> None:
    assert private_imports(source, module) == {(module, private)}


@pytest.mark.parametrize(
    "source",
    [
        "from lifted_bregman.maps._patches import f",
        "from ._patches import f",
        "from lifted_bregman._linalg.norms import norm",
        "from lifted_bregman._text import unknown",
        "from lifted_bregman.graph import Network",
        "from torch._dynamo import explain",
        "from lifted_bregman.graph.cut import __doc__",
    ],
)
def test_other_imports_are_no_violation(source: str) -> None:
    assert private_imports(source, "lifted_bregman.maps.dense") == set()
