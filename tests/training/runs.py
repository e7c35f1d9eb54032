"""What the tests of training share: runs that are cut, resumed and compared bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.solvers import Callback, Outcome, Result, Run
from tests.solvers.problems import Case, make


def case_in(dtype: torch.dtype, name: str = "relu", samples: int = 12) -> Case:
    """A fresh copy of a test problem in another precision."""
    case = make(name, samples=samples)
    case.problem.model.to(dtype)
    problem = lb.lift(
        case.problem.model, loss=case.problem.loss, weights=case.problem.weights, penalties=case.problem.penalties
    )
    Y = case.Y if case.Y.dtype == torch.int64 else case.Y.to(dtype)
    return Case(name, problem, case.X.to(dtype), Y)


def parameters(case: Case) -> list[torch.Tensor]:
    """Copies of the model's."""
    return [p.detach().clone() for p in case.problem.model.parameters()]


class Pairs(torch.utils.data.Dataset[Any]):
    """A map-style set of arrays."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Any:
        return self.entries[index]


class StopAt(Callback):
    """Ends a run after given steps, as a signal would."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def stepped(self, run: Run) -> None:
        if run.state.steps in self.steps:
            run.stop(Outcome.INTERRUPTED, "The test asked for it.")


class Recorder(Callback):
    """Copies of the parameters after given steps."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = steps
        self.parameters: dict[int, list[torch.Tensor]] = {}

    def stepped(self, run: Run) -> None:
        if run.state.steps in self.steps:
            self.parameters[run.state.steps] = [p.detach().clone() for p in run.problem.model.parameters()]


def train(
    case: Case, solver: solvers.Solver[Any], epochs: int, out: Path | None = None, *callbacks: Callback, **more: Any
) -> Result:
    """`fit` with the settings that these tests have in common."""
    return lb.fit(
        case.problem,
        case.data,
        solver,
        epochs=epochs,
        batch_size=5 if solver.minibatch else None,
        seed=3,
        out=out,
        callbacks=callbacks,
        **more,
    )


def scrambled(case: Case) -> Case:
    """The same problem with parameters that are certainly not the right ones."""
    with torch.no_grad():
        for p in case.problem.model.parameters():
            if p.requires_grad:
                p.add_(1.0)
    return case


def assert_same(value: Any, expected: Any, path: str = "") -> None:
    """Equal bit by bit, at every depth; times aside."""
    if isinstance(expected, torch.Tensor):
        assert value.dtype == expected.dtype and torch.equal(value, expected), path
    elif isinstance(expected, dict):
        assert set(value) == set(expected), path
        for key in expected:
            if key != "seconds":
                assert_same(value[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(value) == len(expected), path
        for number, (one, other) in enumerate(zip(value, expected, strict=True)):
            assert_same(one, other, f"{path}/{number}")
    else:
        assert value == expected or (value != value and expected != expected), f"{path}: {value} != {expected}"


def assert_same_end(case: Case, result: Result, other_case: Case, other: Result) -> None:
    """Parameters, solver state (auxiliary variables, multipliers, ...), history, counters of work and outcome."""
    assert_same(list(case.problem.model.parameters()), list(other_case.problem.model.parameters()), "parameters")
    assert_same(result.state.state_dict(), other.state.state_dict(), "state")
    assert_same(result.history, other.history, "history")
    assert_same(case.problem.work.as_dict(), other_case.problem.work.as_dict(), "work")
    assert (result.outcome, result.message) == (other.outcome, other.message)
