"""Every data-parallel solver gives the numbers of one process, and the same bits to all.

Parameters, the whole of the solver's state, the history and the counters of work are compared with a run of the library
in one process, which other tests compare with independent oracles.
"""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman._generators import named_generator
from lifted_bregman.problem.blocks import VariableBlock
from tests import cases
from tests.distributed import bodies
from tests.distributed.crew import Crew
from tests.distributed.numbers import differences, digest
from tests.solvers.problems import NAMES

base = solvers.baselines
ESTIMATED = solvers.CurvatureStep(1.0, upper=False)
SPARSE = {1: solvers.TargetSparsity(0.3)}
BACKTRACKING = solvers.ProximalGradient(step_rule=solvers.Backtracking())
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
SOLVERS = [solver for solver in cases.solver_cases() if solver.data_parallel]
PROBLEMS = ["convolutions", *NAMES, "penalised", "sequences"]


def assert_as_one_process(crew: Crew, size: int, name: str, solver, **settings) -> None:
    (alone,) = crew.run(1, bodies.train, name, solver, **settings)
    first, *others = crew.run(size, bodies.train, name, solver, **settings)
    assert differences(first, alone, TOLERANCE[settings.get("dtype", torch.float64)]) == []
    assert others == [digest(first)] * (size - 1)
    rows = alone["history"]
    assert rows and all(math.isfinite(value) for row in rows for value in row.values())


def fitting(solver, names: list[str]) -> list[str]:
    """Those of the problems that the solver takes."""
    found = []
    for name in names:
        try:
            solver.require(bodies.problem_of(name, torch.float64)[0])
        except errors.CompatibilityError:
            continue
        found.append(name)
    return found


def test_which_solvers_are_data_parallel():
    """All that take batches, and those of the whole set that are listed; others say that they are not."""
    taken = {type(solver) for solver in SOLVERS}
    assert {type(s) for s in cases.solver_cases() if s.minibatch} <= taken
    whole_set = {type(s) for s in SOLVERS if not s.minibatch} - {solvers.TargetedPenalties}
    assert whole_set == {
        solvers.ProximalGradient,
        solvers.Constrained,
        base.GradientDescent,
        base.ClassicalLifted,
        base.FenchelLifted,
    }
    assert all(solver.data_parallel is (type(solver) in taken) for solver in cases.solver_cases())


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda inner: solvers.ImplicitSGD(solver=inner),
        lambda inner: solvers.TargetedPenalties(inner),
        lambda inner: solvers.Constrained(solver=inner),
    ],
)
def test_a_wrapping_solver_is_data_parallel_where_the_inner_one_is(wrapped):
    assert wrapped(solvers.ProximalGradient()).data_parallel is True
    assert wrapped(solvers.CoordinateDescent()).data_parallel is False


WAYS = ("on four", "on two", "single precision")


@pytest.mark.parametrize(
    ("place", "way"),
    [
        pytest.param(place, way, marks=() if number == place % 3 else pytest.mark.long)
        for place in range(len(SOLVERS))
        for number, way in enumerate(WAYS)
    ],
    ids=lambda value: value if isinstance(value, str) else cases.name(SOLVERS[value])[:60],
)
def test_every_solver_has_the_numbers_of_one_process(crew, place, way):
    """On 4 processes and on 2, on two problems that change from solver to solver; and on 2 in float32."""
    solver = SOLVERS[place]
    names = fitting(solver, PROBLEMS)
    if way == "on four":
        assert_as_one_process(crew, 4, names[place % len(names)], solver)
    elif way == "on two":
        assert_as_one_process(crew, 2, names[(place + 3) % len(names)], solver)
    else:
        assert_as_one_process(crew, 2, names[-1], solver, dtype=torch.float32, epochs=1)


CONVOLUTIONAL = [
    solvers.GramSweep(step_size=0.02),
    solvers.GramSweep(step_size=0.2, total_steps=40),
    solvers.ImplicitSGD(prox_weight=5.0, inner_steps=2),
    solvers.StochasticProximalGradient(step_parameter=ESTIMATED, order=solvers.Simultaneous()),
    solvers.SAGA(),
    solvers.AdaBreg(step_size=0.01),
    solvers.ProximalGradient(),
    base.Adam(learning_rate=0.01),
]


@pytest.mark.parametrize("solver", CONVOLUTIONAL, ids=lambda solver: type(solver).__name__)
def test_convolutions(crew, solver):
    assert_as_one_process(crew, 4, "convolutions", solver, epochs=1)


OTHERS = {
    "printed order": (solvers.StochasticProximalGradient(0.05, order=solvers.Simultaneous()), "classes"),
    "variables first": (solvers.StochasticProximalGradient(ESTIMATED, order=solvers.VariablesFirst(2)), "penalised"),
    "sum over the batch": (base.SGD(0.01, normalisation=base.Normalisation.SUM), "penalised"),
    "sum, inner steps": (base.ImplicitBackprop(1.0, 2, 0.01, normalisation=base.Normalisation.SUM), "smooth"),
    "target of parameters": (solvers.LinBreg(0.05, penalties=solvers.TargetSparsity(0.4)), "relu"),
    "target of variables": (
        solvers.TargetedPenalties(solvers.ImplicitSGD(5.0, 2), parameters=SPARSE, variables=SPARSE),
        "relu",
    ),
    "target in a table": (solvers.TargetedPenalties(solvers.SAGA(), variables=SPARSE), "smooth"),
    "several sweeps": (solvers.AdaBreg(0.01, direction=solvers.LiftedDirection(3)), "sparse code"),
    "backtracking": (BACKTRACKING, "smooth"),
    "backtracking, odd and even": (
        solvers.ProximalGradient(step_rule=solvers.Backtracking(), sweep=solvers.OddEven(), smooth_quadratic=True),
        "penalised",
    ),
    "monotone": (
        solvers.ProximalGradient(acceleration=solvers.HeavyBall(0.9), monotone=True, sweep=solvers.Jacobi()),
        "relu",
    ),
    "estimated norms": (solvers.ProximalGradient(step_rule=ESTIMATED), "sequences"),
    "inner backtracking": (solvers.ImplicitSGD(1.0, 2, solver=BACKTRACKING), "penalised"),
    "constrained batches": (solvers.Constrained(inner_steps=2, solver=BACKTRACKING), "smooth"),
    "a map of one's own": (solvers.ImplicitSGD(5.0, 2), "any_map"),
    "a map of one's own, in tables": (solvers.StochasticProximalGradient(ESTIMATED), "any_map"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_have_the_numbers_of_one_process(crew, name):
    solver, problem = OTHERS[name]
    epochs = 5 if not solver.minibatch else 2
    assert_as_one_process(crew, 2, problem, solver, epochs=epochs)


def test_an_evaluation_in_parts_is_that_of_the_whole(crew):
    """The default solver for a few steps on more samples than are evaluated at once, and two processes."""
    assert_as_one_process(crew, 2, "classes", solvers.GramSweep(), samples=8195, batch=2732, epochs=1)


def test_each_process_works_on_its_own_part(crew):
    """Contiguous parts of every batch, in the order of ranks, none of them twice."""
    order = torch.randperm(13, generator=named_generator(3, "data order", 1)).tolist()
    for size in (2, 4):
        found = crew.run(size, seen)
        for batch, start in enumerate((0, 5, 10)):
            assert [place for entry in found for place in entry[batch]] == order[start : start + 5]
            assert max(len(entry[batch]) for entry in found) == -(-len(order[start : start + 5]) // size)


class Noting(base.SGD):
    seen: ClassVar[list] = []

    def step(self, problem, state, batch):
        self.seen.append(batch.index.tolist())
        return super().step(problem, state, batch)


def seen(mate):
    Noting.seen.clear()
    bodies.run_of(mate, "relu", Noting(0.01), epochs=1).execute()
    return Noting.seen


def test_backtracking_decides_by_the_moves_of_all(crew):
    """One number for each sample, of which only the last ones move: a step of 1.95/L decreases E by too little.

    In x of one sample E is ½(x - z)² + ½(y - x)², with L = 2.  A step t lowers it by (t - t²)g², of which a tenth of
    tg²/2 must remain: t <= 0.95.
    """
    (alone,) = crew.run(1, one_variable)
    assert alone[0] == 0.975 * 0.5
    for size in (2, 4):
        assert crew.run(size, one_variable) == [alone] * size


def one_variable(mate):
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    for linear in model:
        nn.init.ones_(linear.weight)
    problem = lb.lift(model, loss=lb.SquaredError())
    X, Y = torch.zeros(8, 1, dtype=torch.float64), torch.zeros(8, 1, dtype=torch.float64)
    Y[6:] = 1.0
    own = solvers.Batch.whole(problem, X, Y).share(mate.ranks())
    point, memory = problem.forward_point(own.X, own.Y, shard=own.shard), {}
    rule = solvers.Backtracking(initial=0.975)
    rule.update(problem, point, (VariableBlock(1),), memory, smooth_quadratic=True)
    return next(iter(memory.values())), own.shard.all_rows(point.x[1]).flatten().tolist()


def test_a_solver_that_is_not_data_parallel_is_refused_before_any_work(crew):
    for solver in (solvers.CoordinateDescent(), solvers.ModelAveraging(2), solvers.ImplicitSGD(solver=solvers.ADMM())):
        for message, unchanged in crew.run(2, refused, solver):
            assert message.startswith(f"{type(solver).__name__} requires the whole of each batch in one process; ")
            assert "2 processes share it" in message and unchanged


def refused(mate, solver):
    problem, X, Y = bodies.problem_of("relu", torch.float64)
    before = [p.detach().clone() for p in problem.model.parameters()]
    ranks = mate.ranks()
    try:
        solvers.Run(problem, solver, solvers.Batch.whole(problem, X, Y), epochs=1, ranks=ranks)
    except errors.CompatibilityError as error:
        same = all(torch.equal(p.detach(), q) for p, q in zip(problem.model.parameters(), before, strict=True))
        return str(error), same and ranks.messages == 0
    return "", False
