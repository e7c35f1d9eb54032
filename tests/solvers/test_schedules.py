"""Schedules are looked at before a run, at every step that it will take: what cannot be taken is refused there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from lifted_bregman import solvers
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.solvers import Constant, Decaying, Growing, ParameterUpdate, Schedule
from lifted_bregman.solvers.schedules import require_numbers
from tests.solvers.problems import make


@dataclass(frozen=True)
class From(Schedule):
    """One number, and from a step on another."""

    step: int
    first: float
    then: float

    def value(self, step: int) -> float:
        return self.first if step < self.step else self.then


BAD = From(6, 0.05, -1.0)
SETTINGS = {
    "implicit SGD": lambda schedule: solvers.ImplicitSGD(schedule, 2),
    "stochastic": lambda schedule: solvers.StochasticProximalGradient(schedule),
    "its variables": lambda schedule: solvers.StochasticProximalGradient(0.05, schedule),
    "pipelined": lambda schedule: solvers.PipelinedSweep(step_variable=schedule),
    "PIAG": lambda schedule: solvers.PIAG(9, schedule),
    "SAGA": lambda schedule: solvers.SAGA(schedule),
    "implicit, parallel": lambda schedule: solvers.ImplicitParallel(2, schedule, local_steps=2),
    "targeted": lambda schedule: solvers.TargetedPenalties(solvers.ImplicitSGD(schedule, 2)),
}


def trained(solver, epochs):
    """Two batches to an epoch; the parameters before and after."""
    case = make("relu")
    before = [p.detach().clone() for p in case.problem.model.parameters()]
    try:
        return solvers.run(case.problem, case.data, solver, epochs=epochs, batch_size=6 if solver.minibatch else None)
    except (SettingError, CompatibilityError):
        assert all(torch.equal(p, q) for p, q in zip(case.problem.model.parameters(), before, strict=True))
        raise


@pytest.mark.parametrize("name", SETTINGS)
def test_a_number_that_cannot_be_taken_is_refused_before_the_first_step(name):
    """Numbers 0 to 5 can be taken: those of six steps, and of no more."""
    solver = SETTINGS[name](BAD)
    each = 2 if solver.minibatch else 1
    assert trained(solver, 6 // each).state.steps == 6
    with pytest.raises(SettingError, match=rf"From\(.*\), and at step 6 that is -1.0; .* {6 + each} steps"):
        trained(solver, 6 // each + 1)


def test_the_updates_of_a_round_and_the_steps_of_inner_solvers_count():
    """Three updates a round; two rounds of a worker for each round of the whole; two steps of each of three."""
    asynchronous = solvers.AsynchronousPIAG(2, 3, updates=3, step_parameter=BAD)
    trained(asynchronous, 2)
    trained(solvers.ModelAveraging(2, asynchronous, local_steps=2), 9)
    trained(solvers.Constrained(solvers.ImplicitParallel(2, BAD, local_steps=1), inner_steps=2), 3)
    for solver, epochs in (
        (asynchronous, 3),
        (solvers.ModelAveraging(2, asynchronous, local_steps=3), 1),
        (solvers.ImplicitSGD(1.0, 3, solver=asynchronous), 1),
        (solvers.Constrained(solvers.ImplicitParallel(2, BAD, local_steps=1), inner_steps=2), 4),
    ):
        with pytest.raises(SettingError, match="at step 6 that is -1"):
            trained(solver, epochs)


@pytest.mark.parametrize("wrong", [-0.1, math.nan, math.inf])
def test_what_no_number_of_a_schedule_may_be(wrong):
    assert require_numbers(From(3, 0.5, wrong), "t", 3) == 0.5
    with pytest.raises(SettingError, match=rf"t is From.* at step 3 that is {wrong}; it must be finite and above 0"):
        require_numbers(From(3, 0.5, wrong), "t", 4)


def test_zero_is_a_weight_and_no_step_size():
    settings = {"epochs": 2}
    assert trained(solvers.ImplicitSGD(From(1, 1.0, 0.0), 2), **settings).state.steps == 4
    with pytest.raises(SettingError, match=r"at step 1 that is 0\.0; it must be finite and above 0"):
        trained(solvers.ImplicitSGD(From(1, 1.0, 0.0), 2, parameters=ParameterUpdate.EXPLICIT), **settings)
    with pytest.raises(SettingError, match=r"at step 1 that is 0\.0"):
        trained(solvers.SAGA(From(1, 1.0, 0.0)), **settings)


def test_an_inner_solver_that_takes_no_term_is_refused_where_a_later_step_has_one():
    """ADMM moves biases without the proximal term: a weight that starts at 0 is taken as long as it stays there."""
    solver = solvers.ImplicitSGD(From(4, 0.0, 0.5), 2, solver=solvers.ADMM())
    assert trained(solver, 2).state.steps == 4
    with pytest.raises(CompatibilityError, match=r"ADMM requires .* τ = 0.5"):
        trained(solver, 3)


@pytest.mark.parametrize("schedule", [Growing(2.0, 150.0), Decaying(2.0, 150.0)], ids=repr)
def test_powers_beyond_all_numbers_are_refused(schedule):
    """2·100^150 is 2e300, and 200^150 is above 1e345."""
    assert require_numbers(schedule, "t", 100) >= 2.0
    with pytest.raises(SettingError, match="at step 199 that is out of range"):
        require_numbers(schedule, "t", 200)


@pytest.mark.parametrize("schedule", [Constant(0.3), Growing(0.3, 0.7), Decaying(0.3, 0.7)], ids=repr)
def test_schedules_of_the_library_know_where_they_are_least_and_largest(schedule):
    """Whatever the number of steps, in one look or two."""
    for steps in (1, 2, 50):
        values = [schedule.value(k) for k in range(steps)]
        looked_at = [schedule.value(k) for k in schedule.extremes(steps)]
        assert min(looked_at) == min(values) and max(looked_at) == max(values) == require_numbers(schedule, "t", steps)
        assert len(looked_at) <= 2
    assert all(a <= b for a, b in pairwise(values)) or all(a >= b for a, b in pairwise(values))
