"""The workers of model averaging in processes of their own: bitwise the numbers of one process."""

from __future__ import annotations

import pytest
import torch

from lifted_bregman import solvers
from lifted_bregman.distributed import Processes
from lifted_bregman.solvers import Growing, ImplicitParallel, ModelAveraging, OneProcess
from tests.distributed import bodies
from tests.distributed.numbers import digest, outcome_of

PLAIN = solvers.ProximalGradient()
CASES = {
    "averaging": (ModelAveraging, {"workers": 4, "solver": PLAIN, "local_steps": 3}),
    "fewer workers than processes": (ModelAveraging, {"workers": 3, "local_steps": 2, "seed": 2}),
    "more workers than processes": (ModelAveraging, {"workers": 5, "local_steps": 2}),
    "implicit": (ImplicitParallel, {"workers": 4, "prox_weight": Growing(0.8), "local_steps": 3}),
    "another solver": (
        ImplicitParallel,
        {"workers": 3, "prox_weight": 1.0, "solver": solvers.CoordinateDescent(block_iterations=5), "local_steps": 1},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_one_process(crew, name, dtype):
    """Parameters, variables, history, counters of work: all that a run leaves, on 2 and on 4 processes."""
    (alone,) = crew.run(1, average, name, dtype)
    for size in (2, 4):
        assert crew.run(size, average, name, dtype) == [alone] * size


def average(mate, name, dtype):
    kind, settings = CASES[name]
    team = OneProcess() if mate.size == 1 else Processes(mate.group)
    problem, X, Y = bodies.problem_of("smooth", dtype)
    solver = kind(**settings, team=team)
    weights = torch.linspace(0.4, 1.9, len(X), dtype=dtype) if solver.weighted else None
    data = solvers.Batch.whole(problem, X, Y, weights)
    run = solvers.Run(problem, solver, data, epochs=3, tolerance=1e-9, agreement=mate.agreement())
    found = outcome_of(run)
    assert len(found["history"]) == 3 and len(found["state"]["variables"]["LiftedState"]) == 2
    return digest(found)


def test_a_team_does_not_tell_its_group():
    """So that a run continues with another number of processes: settings are compared by their representation."""
    assert repr(Processes()) == "Processes()" and Processes() == Processes()
