"""ImplicitSGD and GramSweep in all the ways that they have of moving a layer, over several processes."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from lifted_bregman import solvers
from lifted_bregman.solvers import Coupling, Space
from tests.distributed import bodies
from tests.distributed.numbers import differences, digest
from tests.distributed.test_data_parallel import assert_as_one_process

CERTIFIED = solvers.CurvatureStep(1.0)
READINGS = [solvers.Corrected(), solvers.Literal(batch_factor=True, bias_step=0.02), solvers.Majorised()]
ORDERS = [solvers.Sweeps(), solvers.LayerByLayer()]
PROBLEMS = ["smooth", "frozen and bias-free", "sequences", "joint", "penalised", "relu"]


def implicit(**settings) -> solvers.ImplicitSGD:
    return solvers.ImplicitSGD(prox_weight=4.0, inner_steps=2, **settings)


@pytest.mark.parametrize("coupling", list(Coupling), ids=lambda c: c.name)
@pytest.mark.parametrize("order", ORDERS, ids=repr)
@pytest.mark.parametrize("reading", READINGS, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("space", [Space.SAMPLES, Space.WEIGHTS], ids=lambda s: s.name)
def test_implicit_steps(crew, space, reading, order, coupling):
    """Every combination on two processes; the problem changes from one to the next."""
    choices = product((Space.SAMPLES, Space.WEIGHTS), READINGS, ORDERS, Coupling)
    place = [(s, r, o, c) for s, r, o, c in choices].index((space, reading, order, coupling))
    name = PROBLEMS[(place + place // len(PROBLEMS)) % len(PROBLEMS)]
    solver = implicit(space=space, reading=reading, order=order, coupling=coupling)
    assert_as_one_process(crew, 2, name, solver, epochs=1)


@pytest.mark.parametrize("space", list(Space), ids=lambda s: s.name)
@pytest.mark.parametrize("reading", READINGS, ids=lambda r: type(r).__name__)
def test_implicit_steps_on_four_processes(crew, space, reading):
    """One of which has no sample of the last batch."""
    assert_as_one_process(crew, 4, "smooth", implicit(space=space, reading=reading), epochs=1)


@pytest.mark.parametrize("reading", [solvers.Corrected(CERTIFIED), solvers.Majorised(CERTIFIED)], ids=repr)
def test_guaranteed_norms(crew, reading):
    for space, name in ((Space.SAMPLES, "relu"), (Space.WEIGHTS, "convolutions")):
        assert_as_one_process(crew, 4, name, implicit(reading=reading, space=space), epochs=1)


@pytest.mark.parametrize(("space", "samples"), [(Space.SAMPLES, 13), (Space.WEIGHTS, 40)], ids=lambda v: str(v))
def test_a_proximal_weight_that_is_lost_in_rounding(crew, space, samples):
    """ε > 0: what earlier inner steps have moved is kept in part.  In sample space systems have a condition of 1e8."""
    solver = solvers.ImplicitSGD(0.0, inner_steps=3, reading=solvers.Majorised(), space=space)
    (alone,) = crew.run(1, bodies.train, "smooth", solver, samples=samples, batch=samples)
    for size in (2, 4):
        first, *others = crew.run(size, bodies.train, "smooth", solver, samples=samples, batch=samples)
        assert differences(first, alone, 1e-6 if space is Space.SAMPLES else 1e-11) == []
        assert others == [digest(first)] * (size - 1)


GRAM = {
    "weight space": {"block": 100},
    "parts that end with blocks": {"block": 2},
    "blocks of one sample": {"block": 1},
    "parts that end in blocks": {"block": 3},
    "both": {"block": 4},
    "several inner steps, own blocks": {"block": 2, "inner_steps": 2},
    "several inner steps, all rows": {"block": 3, "inner_steps": 3},
    "several inner steps, weight space": {"inner_steps": 2},
    "gradient": {"block": 2, "damping": math.inf},
    "no average": {"block": 3, "average": 0.0},
}


@pytest.mark.parametrize("name", GRAM)
def test_gram_sweep(crew, name):
    """Batches of 8, 8 and 7 samples; with blocks of 2 every part of 4 processes, and of 2, ends where a block does."""
    solver = solvers.GramSweep(step_size=0.02, **GRAM[name])
    for size, problem in ((4, "relu"), (2, "frozen and bias-free"), (2, "sequences")):
        assert_as_one_process(crew, size, problem, solver, samples=23, batch=8, epochs=1)


@pytest.mark.parametrize("block", [1, 3])
def test_gram_sweep_with_too_few_samples_for_all(crew, block):
    """The last batch has 3 samples for 4 processes."""
    solver = solvers.GramSweep(step_size=0.02, block=block, inner_steps=2)
    assert_as_one_process(crew, 4, "smooth", solver, samples=11, batch=8, epochs=2)


@pytest.mark.parametrize("damping", [0.15, math.inf], ids=str)
def test_gram_sweep_with_penalties_on_parameters(crew, damping):
    solver = solvers.GramSweep(step_size=0.02, block=2, damping=damping)
    assert_as_one_process(crew, 4, "penalised", solver, samples=23, batch=8)


@pytest.mark.parametrize("block", [2, 3, 100])
def test_gram_sweep_in_single_precision(crew, block):
    solver = solvers.GramSweep(step_size=0.02, block=block)
    assert_as_one_process(crew, 4, "smooth", solver, samples=23, batch=8, dtype=torch.float32)


def test_a_system_of_one_process_that_cannot_be_solved_counts_for_all(crew):
    """One block has no factor: everyone takes the step that replaces the solution, as one process does."""
    (alone,) = crew.run(1, one_unsolvable_block)
    assert alone["state"]["fallbacks"] == 1 and alone["failed here"]
    for size in (2, 4):
        found = crew.run(size, one_unsolvable_block)
        assert [entry.pop("failed here") for entry in found] == [rank == 5 // (8 // size) for rank in range(size)]
        for entry in found:
            assert differences(entry, {key: alone[key] for key in entry}, 1e-12) == []


def one_unsolvable_block(mate):
    """A step in which blocks with an input of 30 have no factor; sample 5 of 8 has one."""
    solver = solvers.GramSweep(step_size=0.02, block=2)
    problem, X, Y = bodies.problem_of("relu", torch.float64, 8)
    X = X.clone()
    X[5, 2] = 30.0
    batch = solvers.Batch.whole(problem, X, Y).share(mate.ranks())
    state = solver.init(problem, batch)
    real, failed = torch.linalg.cholesky_ex, []

    def refuse_large(K):
        info = (K.diagonal(dim1=-2, dim2=-1).amax(-1) > 400.0).int()
        failed.append(bool(info.any()))
        return real(K)[0], info

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.linalg, "cholesky_ex", refuse_large)
        state = solver.step(problem, state, batch)
    parameters = [p.detach() for p in problem.model.parameters()]
    return {"state": state.state_dict(), "parameters": parameters, "failed here": any(failed)}
