"""The folders of the library can be read from top to bottom: a part imports only from the parts above it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fresh

LIBRARY = "lifted_bregman"
LAB = "lifted_bregman_lab"
ROOT = Path(__file__).parents[1] / "src" / LIBRARY

# The way data flows: what a line names may be imported by the lines below it, never by those above.
ORDER = (
    "errors",
    "_text",
    "_device",
    "_no_graph",
    "_autocast",
    "_arguments",
    "_generators",
    "_linalg",
    "activations",
    "losses",
    "penalties",
    "maps",
    "models",
    "graph",
    "problem",
    "solvers",
    "backward",
    "data",
    "distributed",
    "optim",
    "training",
    "experiments",
    "reports",
    "tasks",
    "estimators",
    "cli",
)

# Heavy packages that somebody who only wants an activation should not wait for.
NOT_AT_IMPORT = ("matplotlib", "jinja2", "sklearn", "scipy", "torch.distributed.fsdp", "torch.distributed.checkpoint")


def imported_modules(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of every import in `source`, at any depth: in functions and under TYPE_CHECKING too.

    `from a import b` gives `a.b`, because b may be a module.
    """
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, node.module] if node.module else base
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """One sentence for each import of `module` that breaks the order."""
    found = []
    parts = module.split(".")
    own = parts[1] if len(parts) > 1 else None  # None: the top-level __init__, which gathers every part
    if own is not None and own not in ORDER:
        return [f"{module}: '{own}' has no place in the order; the parts are {', '.join(ORDER)}"]
    for line, name in imported_modules(source, module, is_package):
        top, *rest = name.split(".")
        if top == LAB:
            found.append(f"{module}:{line} imports {name}; the library never imports the lab")
        elif top == LIBRARY and own is not None:
            if not rest or rest[0] not in ORDER:
                found.append(f"{module}:{line} imports {name}; import from the part that defines it")
            elif ORDER.index(rest[0]) > ORDER.index(own):
                found.append(f"{module}:{line} imports {name}; '{rest[0]}' comes after '{own}'")
    return found


def modules_below(root: Path, package: str) -> list[tuple[str, Path]]:
    """(absolute name, file) of every module of a package that lies in `root`."""
    modules = []
    for path in sorted(root.rglob("*.py")):
        parts = [package, *path.relative_to(root).with_suffix("").parts]
        modules.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return modules


def test_a_part_imports_only_from_parts_above_it() -> None:
    found = [
        sentence
        for module, path in modules_below(ROOT, LIBRARY)
        for sentence in violations(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    ]
    assert found == []


def test_the_walk_sees_the_library() -> None:
    modules = dict(modules_below(ROOT, LIBRARY))
    assert LIBRARY in modules
    assert {f"{LIBRARY}.{part}" for part in ("errors", "activations", "losses", "maps", "graph", "problem")} <= set(
        modules
    )


@pytest.mark.parametrize(
    ("module", "source", "culprit"),
    [
        ("activations.smooth", "from lifted_bregman.losses import BregmanLoss", "losses"),
        ("activations.smooth", "from lifted_bregman import losses", "losses"),
        ("activations.smooth", "import lifted_bregman.problem.blocks as blocks", "problem"),
        ("activations.smooth", "from ..losses import BregmanLoss", "losses"),
        ("activations.smooth", "from .. import losses", "losses"),
        ("losses._base", "def late():\n    from lifted_bregman.graph import lift", "graph"),
        ("losses._base", "if TYPE_CHECKING:\n    from lifted_bregman.solvers import ADMM", "solvers"),
        ("errors", "try:\n    import lifted_bregman.cli\nexcept ImportError:\n    pass", "cli"),
        ("reports.page", "from lifted_bregman_lab.paper import theory", "lifted_bregman_lab"),
        ("cli.main", "import lifted_bregman_lab.paper.recipes", "lifted_bregman_lab"),
        ("maps.dense", "from lifted_bregman import BregmanLoss", "the part that defines it"),
        ("maps.dense", "import lifted_bregman", "the part that defines it"),
        ("misc.helpers", "", "no place in the order"),
    ],
)
def test_the_checker_finds_a_violation(module: str, source: str, culprit: str) -> None:
    (sentence,) = violations(source, f"{LIBRARY}.{module}")
    assert culprit in sentence


@pytest.mark.parametrize(
    ("module", "source", "is_package"),
    [
        ("lifted_bregman", "from lifted_bregman.cli import main", True),
        ("lifted_bregman.problem.blocks", "from lifted_bregman.problem._power import norm", False),
        ("lifted_bregman.problem.blocks", "from ._power import norm", False),
        ("lifted_bregman.problem", "from .blocks import Block", True),
        ("lifted_bregman.problem.blocks", "from ..activations import ReLU", False),
        ("lifted_bregman.losses._base", "from lifted_bregman import activations", False),
        ("lifted_bregman.losses._base", "import torch\nfrom torch import nn", False),
    ],
)
def test_the_checker_lets_the_right_order_pass(module: str, source: str, is_package: bool) -> None:
    assert violations(source, module, is_package) == []


def test_the_top_level_may_not_import_the_lab_either() -> None:
    assert violations("import lifted_bregman_lab.paper", LIBRARY, is_package=True)


def test_the_names_of_the_library_import_nothing_heavy() -> None:
    # torch brings some modules of its own; the library must add none of the heavy ones to them.  Estimators may.
    script = (
        "import sys, torch; before = set(sys.modules)\n"
        "import lifted_bregman as lb\n"
        "[getattr(lb, name) for name in lb.__all__ if lb._MODULES.get(name) != 'estimators']\n"
        "print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    run = fresh.run(script)
    added = run.stdout.split()
    assert "lifted_bregman.training.fit" in added
    heavy = [name for name in added if any(name == h or name.startswith(h + ".") for h in NOT_AT_IMPORT)]
    assert heavy == []


def test_importing_the_library_does_not_import_torch() -> None:
    script = "import sys; before = set(sys.modules); import lifted_bregman; print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert "lifted_bregman" in run.stdout.split() and "torch" not in run.stdout.split()


def test_the_rooms_are_attributes_of_the_package_in_a_new_process() -> None:
    # In the order of the rooms none is imported before it is asked for.
    rooms = [room for room in ORDER if not room.startswith("_") and room not in ("experiments", "reports", "cli")]
    script = f"import lifted_bregman as lb; print(*[getattr(lb, room).__name__ for room in {rooms}])"
    run = fresh.run(script, check=False)
    assert run.stdout.split() == [f"lifted_bregman.{room}" for room in rooms], run.stderr


def test_every_public_name_is_there_and_no_other() -> None:
    import lifted_bregman as lb

    assert all(getattr(lb, name) is not None for name in lb.__all__) and set(lb.__all__) <= set(dir(lb))
    assert set(lb._MODULES) < set(lb.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'ImplicitSDG'"):
        _ = lb.ImplicitSDG
