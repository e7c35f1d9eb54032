"""Every public name of the reference has an example in its docstring, and the examples print what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb

REFERENCE = Path(__file__).parent.parent / "docs" / "api"
DIRECTIVE = re.compile(r"\.\. auto(module|class|function):: (lifted_bregman\.\S+)\n((?:   :.*\n)*)")
MEMBERS = re.compile(r"   :members: (.+)\n")
PAGES = sorted(page.stem for page in REFERENCE.glob("*.md") if page.stem not in {"index", "lab"})
"""The lab has a page of its own and is no part of the library."""

IMPORTED = {"lb": lb, "nn": nn, "np": np, "torch": torch}
"""What examples take as imported; the first page of the reference says so."""

WITHOUT = {
    # Bases of the reader's own classes, which the pages "write your own ..." show.
    "activations": {"Joint", "Separable"},
    "penalties": {"find_rule", "penalty_first", "penalty_last", "register_prox"},
    "solvers": {
        # Bases of settings and solvers.
        *("Acceleration", "Direction", "LoopOrder", "InnerStep", "Schedule", "Solver", "StepRule", "Sweep"),
        *("UpdateOrder", "AsynchronousTeam", "SimulatedTeam", "Team"),
        # What a run makes, gives to a solver and keeps for it.
        *("Agreement", "AsynchronousState", "Batch", "DataRanks", "DualityGap", "Meter", "Recorded", "Run"),
        *("SolverState", "Source", "Stop"),
    },
    "problem": {"Border", "BlockGradients", "LinearUnits", "Point", "Shard", "Work"},
    "tasks": {"InverseProblem", "InversionSolver", "InversionProgress", "InversionState"},
    "maps": {"Borrowing", "LayerMap", "TracedMap"},
    "graph": {"PrunedSequential"},
    "backward": {"ActivationRow"},
    # Process groups, which a run makes itself.
    "distributed": {
        *("AsynchronousProcesses", "ProcessAgreement", "ProcessBorder", "ProcessRanks", "Processes"),
    },
    # Errors of runs in several processes, or of runs that broke down.
    "errors": {"CallbackError", "DivergedError", "WorkerError"},
    "data": {"Stored", "Transform", "register"},
    "reports": {"Figure"},
    "training": {"parse_table", "read_files", "sweep", "sync_directory", "take_lock"},
}
"""Public names without an example, by page; this list may only get shorter."""

PARTS_OF_THE_DEFAULT_SOLVER = "lifted_bregman.solvers.gram"
"""Its functions of tensors are shown by `solvers.gram.reference`, which is written to be read."""


def public(page: str) -> Iterator[tuple[str, object]]:
    """The classes and functions that a page of the reference describes, by name."""
    for kind, target, options in DIRECTIVE.findall((REFERENCE / f"{page}.md").read_text()):
        if kind != "module":
            home, _, name = target.rpartition(".")
            yield name, getattr(importlib.import_module(home), name)
            continue
        module = importlib.import_module(target)
        chosen = MEMBERS.search(options)
        defined = [name for name, found in vars(module).items() if getattr(found, "__module__", "") == target]
        listed = chosen[1].split(", ") if chosen else getattr(module, "__all__", defined)
        for name in listed:
            found = getattr(module, name)
            if not name.startswith("_") and (inspect.isclass(found) or inspect.isfunction(found)):
                yield name, found


DESCRIBED = [
    pytest.param(page, name, found, id=f"{page}-{name}")
    for page in PAGES
    for name, found in dict(public(page)).items()
    if not (found.__module__.startswith(PARTS_OF_THE_DEFAULT_SOLVER) and found is not lb.GramSweep)
]


@pytest.mark.parametrize(("page", "name", "found"), DESCRIBED)
def test_a_public_name_has_an_example_that_prints_what_it_shows(page, name, found, tmp_path, monkeypatch):
    parser = doctest.DocTestParser()
    example = parser.get_doctest(inspect.getdoc(found) or "", dict(IMPORTED), name, found.__module__, 0)
    if name in WITHOUT.get(page, ()):
        assert not example.examples, f"{name} has an example: take it off the list of names without"
        return
    assert example.examples, f"{name} is public and its docstring has no example"
    assert "Example:\n" in example.docstring, f"the example of {name} stands below no line 'Example:'"
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        failures: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=failures.append)
    assert not failures, "".join(failures)


def test_the_list_of_names_without_an_example_has_public_names_only():
    described = {parameters.values[:2] for parameters in DESCRIBED}
    assert {(page, name) for page, names in WITHOUT.items() for name in names} <= described


def test_an_example_that_prints_something_else_fails():
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner().run(example, out=lambda text: None).failed == 1
