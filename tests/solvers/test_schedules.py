"""Schedules are looked at before a run, at every step that it will take: what cannot be taken is refused there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from lifted_bregman import solvers
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.solvers import (
    Constant,
    CosineDecay,
    Decaying,
    Growing,
    LinearDecay,
    ParameterUpdate,
    Schedule,
    StepDecay,
)
from lifted_bregman.solvers.schedules import require_schedule
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
    "SGD": lambda schedule: solvers.baselines.SGD(schedule),
    "Adam": lambda schedule: solvers.baselines.Adam(schedule),
    "AdamW": lambda schedule: solvers.baselines.AdamW(schedule),
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
    assert require_schedule(From(3, 0.5, wrong), "t", 3) == 0.5
    with pytest.raises(SettingError, match=rf"t is From.* at step 3 that is {wrong}; it must be finite and above 0"):
        require_schedule(From(3, 0.5, wrong), "t", 4)


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
    assert require_schedule(schedule, "t", 100) >= 2.0
    with pytest.raises(SettingError, match="at step 199 that is out of range"):
        require_schedule(schedule, "t", 200)


@pytest.mark.parametrize(
    "schedule", [Constant(0.3), Growing(0.3, 0.7), Decaying(0.3, 0.7), StepDecay(0.3, 7, 0.5)], ids=repr
)
def test_schedules_of_the_library_know_where_they_are_least_and_largest(schedule):
    """Whatever the number of steps, in one look or two."""
    for steps in (1, 2, 50):
        values = [schedule.value(k) for k in range(steps)]
        looked_at = [schedule.value(k) for k in schedule.extremes(steps)]
        assert min(looked_at) == min(values) and max(looked_at) == max(values) == require_schedule(schedule, "t", steps)
        assert len(looked_at) <= 2
    assert all(a <= b for a, b in pairwise(values)) or all(a >= b for a, b in pairwise(values))


# Schedules that end with the run

LR = torch.optim.lr_scheduler
TORCH = {
    "cosine": (CosineDecay(0.3, steps=40), lambda o: LR.CosineAnnealingLR(o, T_max=40)),
    "cosine, warm-up": (
        CosineDecay(0.3, warm_up=5, steps=40),
        lambda o: LR.SequentialLR(
            o, [LR.LinearLR(o, start_factor=1 / 5, total_iters=4), LR.CosineAnnealingLR(o, T_max=35)], milestones=[5]
        ),
    ),
    "linear": (LinearDecay(0.3, steps=40), lambda o: LR.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=40)),
    "linear, warm-up": (
        LinearDecay(0.3, warm_up=5, steps=40),
        lambda o: LR.SequentialLR(
            o,
            [
                LR.LinearLR(o, start_factor=1 / 5, total_iters=4),
                LR.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=35),
            ],
            milestones=[5],
        ),
    ),
    "steps": (StepDecay(0.3, every=7, factor=0.4), lambda o: LR.StepLR(o, step_size=7, gamma=0.4)),
}


@pytest.mark.parametrize("name", TORCH)
def test_schedules_are_those_of_torch(name):
    schedule, make_theirs = TORCH[name]
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    theirs = make_theirs(optimiser)
    for step in range(40):
        assert schedule.value(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimiser.step()
        theirs.step()


@pytest.mark.parametrize("kind", [CosineDecay, LinearDecay])
def test_a_schedule_with_a_warm_up_knows_where_it_is_least_and_largest(kind):
    for warm_up in (0, 1, 8):
        schedule = kind(0.3, warm_up, 50)
        for steps in (1, 2, 8, 50):
            values = [schedule.value(k) for k in range(steps)]
            looked_at = [schedule.value(k) for k in schedule.extremes(steps)]
            assert min(looked_at) == min(values) > 0.0 and max(looked_at) == max(values) and len(looked_at) <= 3


@pytest.mark.parametrize(
    ("solver", "last"),
    [
        (solvers.baselines.SGD(CosineDecay(0.02)), lambda s: s.learning_rate),
        (solvers.StochasticProximalGradient(LinearDecay(0.05)), lambda s: s.step_parameter),
        (solvers.TargetedPenalties(solvers.SAGA(LinearDecay(0.01))), lambda s: s.solver.step_parameter),
    ],
    ids=["SGD", "stochastic", "targeted"],
)
def test_a_schedule_without_steps_ends_with_the_run(solver, last):
    """Three epochs of two batches: six steps."""
    case = make("relu")
    data = solvers.Batch.whole(case.problem, *case.data)
    run = solvers.Run(case.problem, solver, data, epochs=3, batch_size=6 if solver.minibatch else None)
    steps = 6 if solver.minibatch else 3
    assert solver.ends_with_run and not run.solver.ends_with_run
    assert last(run.solver).steps == steps == run.execute().state.steps
    assert last(run.solver).value(steps - 1) > 0.0 == last(run.solver).value(steps)


def test_inner_solvers_have_the_steps_that_they_take():
    """Three updates a round, and two rounds for each batch or round of the whole."""
    inner = solvers.AsynchronousPIAG(2, 3, updates=3, step_parameter=LinearDecay(0.01))
    for solver in (
        solvers.ImplicitSGD(1.0, 2, solver=inner),
        solvers.ModelAveraging(2, inner, local_steps=2),
        solvers.ImplicitParallel(2, 1.0, inner, local_steps=2),
    ):
        assert solver.planned(100, 10).solver.step_parameter.steps == 6 and not solver.ends_with_run
    constrained = solvers.Constrained(inner, inner_steps=2)
    assert constrained.planned(100, 10).solver.step_parameter.steps == 600 and constrained.ends_with_run
    assert solvers.ImplicitParallel(2, CosineDecay(1.0), local_steps=2).planned(100, 10).prox_weight.steps == 100


def test_a_step_outside_a_run_refuses_a_schedule_without_steps():
    case, solver = make("relu"), solvers.baselines.SGD(CosineDecay(0.02))
    batch = solvers.Batch.whole(case.problem, *case.data)
    state = solver.init(case.problem, batch)
    with pytest.raises(SettingError, match=r"CosineDecay.* ends with the run, .* give steps="):
        solver.step(case.problem, state, batch)


def test_a_run_beyond_the_end_of_its_schedule_or_within_its_warm_up_is_refused():
    with pytest.raises(SettingError, match=r"at step 5 that is 0\.0; .* at each of the 6 steps"):
        trained(solvers.baselines.SGD(CosineDecay(0.02, steps=4)), 3)
    with pytest.raises(SettingError, match="warm_up is 6, and the schedule has 6 steps"):
        trained(solvers.baselines.SGD(CosineDecay(0.02, warm_up=6)), 3)


@pytest.mark.parametrize(
    "build",
    [
        lambda: CosineDecay(0.0),
        lambda: CosineDecay(0.1, warm_up=-1),
        lambda: LinearDecay(0.1, steps=0),
        lambda: StepDecay(0.1, 0),
        lambda: StepDecay(0.1, 5, 1.1),
    ],
)
def test_schedules_out_of_range_are_refused(build):
    with pytest.raises(SettingError):
        build()
