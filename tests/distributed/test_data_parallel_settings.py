"""ImplicitSGD and GramSweep in all the ways that they have of moving a layer, over several processes."""

from __future__ import annotations

from itertools import product

import pytest

from lifted_bregman import solvers
from lifted_bregman.solvers import Coupling, Space
from lifted_bregman.solvers.gram import moves, rule
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
def test_implicit_steps_have_the_numbers_of_one_process(crew, space, reading, order, coupling):
    """Every combination on two processes; the problem changes from one to the next."""
    choices = product((Space.SAMPLES, Space.WEIGHTS), READINGS, ORDERS, Coupling)
    place = [(s, r, o, c) for s, r, o, c in choices].index((space, reading, order, coupling))
    name = PROBLEMS[(place + place // len(PROBLEMS)) % len(PROBLEMS)]
    solver = implicit(space=space, reading=reading, order=order, coupling=coupling)
    assert_as_one_process(crew, 2, name, solver, epochs=1)


@pytest.mark.parametrize("space", list(Space), ids=lambda s: s.name)
@pytest.mark.parametrize("reading", READINGS, ids=lambda r: type(r).__name__)
def test_implicit_steps_on_four_processes_have_the_numbers_of_one(crew, space, reading):
    """One of which has no sample of the last batch."""
    assert_as_one_process(crew, 4, "smooth", implicit(space=space, reading=reading), epochs=1)


@pytest.mark.parametrize("reading", [solvers.Corrected(CERTIFIED), solvers.Majorised(CERTIFIED)], ids=repr)
def test_guaranteed_norms_have_the_numbers_of_one_process(crew, reading):
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
    "weight space": (256, 256),
    "samples of all": (1, 256),
    "blocks that end in parts": (1, 3),
    "both": (4, 4),
}
"""Inputs up to which a layer has a running metric, and the rows of a block in sample space."""


def in_spaces(mate, inputs, block, *arguments, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "WIDEST_INPUTS", inputs)
        patch.setattr(moves, "LARGEST_BLOCK", block)
        return bodies.train(mate, *arguments, **settings)


@pytest.mark.parametrize("name", GRAM)
def test_gram_sweep(crew, name):
    """Batches of 8, 8 and 7 samples."""
    solver, settings = solvers.GramSweep(step_size=0.1), {"samples": 23, "batch": 8, "epochs": 1}
    for size, problem in ((4, "relu"), (2, "frozen and bias-free"), (2, "sequences")):
        (alone,) = crew.run(1, in_spaces, *GRAM[name], problem, solver, **settings)
        first, *others = crew.run(size, in_spaces, *GRAM[name], problem, solver, **settings)
        assert differences(first, alone, 1e-9) == []
        assert others == [digest(first)] * (size - 1)


def test_gram_sweep_with_too_few_samples_for_all(crew):
    """The last batch has 3 samples for 4 processes."""
    assert_as_one_process(crew, 4, "smooth", solvers.GramSweep(step_size=0.1), samples=11, batch=8, epochs=2)


def test_gram_sweep_with_penalties_on_parameters(crew):
    assert_as_one_process(crew, 4, "penalised", solvers.GramSweep(step_size=0.1), samples=23, batch=8)
