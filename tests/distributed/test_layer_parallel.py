"""Layer-parallel runs have the bits of one process: parameters, variables, state; numbers of the history to 1e-12."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.distributed.balance import balanced, layer_costs
from lifted_bregman.graph import Links, Partition
from lifted_bregman.solvers import _by_term
from tests import cases
from tests.distributed import bodies, layer_bodies
from tests.distributed.crew import Crew, Mate
from tests.distributed.numbers import differences, digest

ESTIMATED = solvers.CurvatureStep(0.9, upper=False)
JACOBI = solvers.ProximalGradient(sweep=solvers.Jacobi(), step_rule=solvers.FixedStep(0.02, 0.05))
CURVED = solvers.ProximalGradient(sweep=solvers.Jacobi())
SIMULTANEOUS = solvers.StochasticProximalGradient(0.02, order=solvers.Simultaneous())
PIPELINED = solvers.PipelinedSweep(micro_batches=2)
GRAM = solvers.GramSweep(step_size=0.1, micro_batches=3)
SOLVERS = {
    "Jacobi, fixed": JACOBI,
    "Jacobi, bound": CURVED,
    "Jacobi, estimate": solvers.ProximalGradient(sweep=solvers.Jacobi(), step_rule=ESTIMATED, smooth_quadratic=True),
    "simultaneous": SIMULTANEOUS,
    "simultaneous, estimate": solvers.StochasticProximalGradient(ESTIMATED, 0.1, order=solvers.Simultaneous()),
    "pipelined": PIPELINED,
    "pipelined, fixed": solvers.PipelinedSweep(0.03, 0.05, micro_batches=3),
    "Gram": solvers.GramSweep(step_size=0.1),
    "Gram, pipelined": GRAM,
    "Gram, all settings": solvers.GramSweep(0.2, nudge=30.0, damping=3.0, total_steps=40, micro_batches=2),
}
EXACT = ("outcome", "parameters", "state", "work")


def assert_bits_of_one(crew: Crew, size: int, name: str, solver, **settings) -> None:
    (alone,) = crew.run(1, layer_bodies.train, name, solver, **settings)
    first, *others = crew.run(size, layer_bodies.train, name, solver, **settings)
    for part in EXACT:
        assert digest_of(first[part]) == digest_of(alone[part]), (part, differences(first[part], alone[part], 0.0))
    assert differences(_sorted(first["history"]), _sorted(alone["history"]), 1e-12) == []
    for other in others:
        assert all(digest_of(other[part]) == digest_of(first[part]) for part in other)
    assert all(math.isfinite(value) for row in alone["history"] for value in row.values())


def digest_of(value) -> str:
    """Whatever the order of names."""
    return digest(_sorted(value))


def _sorted(value):
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", SOLVERS)
@pytest.mark.parametrize("size", [2, 4])
def test_a_deep_network_has_the_bits_of_one_process(crew: Crew, size: int, kind: str):
    assert_bits_of_one(crew, size, "deep", SOLVERS[kind])


@pytest.mark.parametrize("kind", ["Jacobi, fixed", "simultaneous", "pipelined", "Gram, pipelined"])
@pytest.mark.parametrize("name", ["convolutions", "sequences", "penalised", "classes"])
def test_other_networks_on_two_processes(crew: Crew, name: str, kind: str):
    assert_bits_of_one(crew, 2, name, SOLVERS[kind])


def test_a_map_that_is_not_affine(crew: Crew):
    assert_bits_of_one(crew, 2, "any_map", SOLVERS["Jacobi, estimate"])


def test_float32(crew: Crew):
    (alone,) = crew.run(1, layer_bodies.train, "deep", JACOBI, dtype=torch.float32)
    first, _ = crew.run(2, layer_bodies.train, "deep", JACOBI, dtype=torch.float32)
    assert digest_of(first["parameters"]) == digest_of(alone["parameters"])


@pytest.mark.parametrize("kind", [kind for kind, solver in SOLVERS.items() if solver.data_parallel])
def test_samples_and_layers_shared_at_once(crew: Crew, kind: str):
    """Two processes to a batch and two to the layers: rounding by the sums over samples is all that differs."""
    (alone,) = crew.run(1, layer_bodies.train, "deep", SOLVERS[kind])
    first, *others = crew.run(4, layer_bodies.train, "deep", SOLVERS[kind], data=2)
    assert differences(_sorted(first), _sorted(alone), 1e-12) == []
    for other in others:
        assert all(digest_of(other[part]) == digest_of(first[part]) for part in other)


@pytest.mark.parametrize("kind", ["Jacobi, bound", "simultaneous", "pipelined", "Gram"])
@pytest.mark.parametrize(("size", "then", "data"), [(4, 1, 1), (1, 4, 1), (2, 4, 2)])
def test_a_run_goes_on_with_another_number_of_processes(crew: Crew, kind: str, size: int, then: int, data: int):
    solver = SOLVERS[kind]
    steps = 2 if not solver.minibatch else 4
    (alone,) = crew.run(1, layer_bodies.train, "deep", solver)
    kept, *_ = crew.run(size, layer_bodies.stop_early, "deep", solver, steps)
    ended, *_ = crew.run(then, layer_bodies.resume, "deep", solver, kept, data=data)
    if data == 1:
        for part in ("parameters", "state", "work"):
            assert digest_of(ended[part]) == digest_of(alone[part])
    else:
        assert differences(_sorted(ended["parameters"]), _sorted(alone["parameters"]), 1e-12) == []


REPLICATED = {("visited",), ("distance",)}
"""Tensors of a state that every rank has."""


@pytest.mark.parametrize("kind", SOLVERS)
def test_each_rank_holds_the_state_of_its_terms(crew: Crew, kind: str):
    """A tensor of term l is on the rank that has l and nowhere else, after steps and after a whole state was loaded.

    A vector for ‖J_x f_t‖ is on the rank that has f_t, and a variable on those that move or read it.
    """
    ((whole, _, entries),) = crew.run(1, layer_bodies.places, "deep", SOLVERS[kind])
    assert kind.endswith("fixed") or any(isinstance(key, int) for path in whole for key in path[:-1])
    for found in (
        crew.run(4, layer_bodies.places, "deep", SOLVERS[kind]),
        crew.run(4, layer_bodies.places, "deep", SOLVERS[kind], entries),
    ):
        for path in whole:
            if path[0] in SOLVERS[kind].counts:  # added up, see below
                continue
            holders = [rank for rank, (paths, _, _) in enumerate(found) if path in paths]
            assert holders == [rank for rank, (_, own, _) in enumerate(found) if is_here(path, own)], path
        assert {path for paths, _, _ in found for path in paths} == set(whole)
        assert differences(_sorted(found[0][2]["solver"]), _sorted(entries["solver"]), 0.0) == []


def is_here(path, own) -> bool:
    """Whether the rank of the layers `own` has the tensor, by the meaning of each field."""
    if path in REPLICATED:
        return True
    if path[:2] == ("variables", "LiftedState"):
        return path[2] in {f"x_{layer}" for layer in range(max(own[0] - 1, 1), own[-1] + 1)}
    if path[0] == "step_memory":
        assert path[1] == "power"
        return path[2] in own
    assert path[0] in ("power", "fast", "origin", "units", "memory"), path
    return path[1] in own


def test_of_what_several_ranks_have_rank_0_decides():
    """Numbers by term of one name on two ranks; names that only one has; lists stay as they are."""
    ranks = [{"a": {1: 10.0, 2: 20.0}, "b": {"c": {1: [1.0]}}}, {"a": {2: 0.0, 3: 30.0}, "b": {"c": {3: [3.0, 4.0]}}}]
    whole = {"a": {1: 10.0, 2: 20.0, 3: 30.0}, "b": {"c": {1: [1.0], 3: [3.0, 4.0]}}}

    class Two(lb.problem.Border):
        def collect(self, value):
            assert value == ranks[0]
            return ranks

    found = _by_term.collected(
        ranks[0] | {"steps": 7, "metrics": {"m": 0.5}}, Two(Partition(Links.chain(3), (range(1, 3), range(3, 4)))), ()
    )
    assert found == whole | {"steps": 7, "metrics": {"m": 0.5}}


@pytest.mark.parametrize("kind", ["Jacobi, fixed", "simultaneous", "pipelined", "Gram, pipelined"])
def test_parameters_stay_where_they_are(crew: Crew, kind: str):
    """In between only a process's own layers have moved, and it has no rows of variables it does not read."""
    for moved, own, shapes in crew.run(4, layer_bodies.parameters_before_the_end, "deep", SOLVERS[kind]):
        assert moved == own
        for layer, shape in enumerate(shapes, start=1):
            assert (shape[1] > 0) == (layer in range(own[0] - 1, own[-1] + 1))


@pytest.mark.parametrize("kind", ["Jacobi, fixed", "Jacobi, bound", "simultaneous", "pipelined, fixed", "pipelined"])
def test_bytes_sent_are_those_of_the_formula(crew: Crew, kind: str):
    """Up x_b, down J^T d and where steps need it a number: once a sweep, and for each micro-batch its rows."""
    solver = SOLVERS[kind]
    found = crew.run(4, layer_bodies.sent, "deep", solver)
    problem, X, _ = layer_bodies.deep(bodies.SAMPLES)
    widths = [math.prod(shape) for shape in problem.shapes(X)]
    parts = balanced(layer_costs(problem, X), 4)
    number = 0 if kind in ("Jacobi, fixed", "pipelined, fixed") else 8
    for rank, (counts, samples) in enumerate(found):
        up = 8 * samples * widths[parts[rank][-1] - 1] if rank < 3 else 0
        down = 8 * samples * widths[parts[rank - 1][-1] - 1] + number if rank > 0 else 0
        assert [bytes_sent for bytes_sent, _ in counts][1:] == [up + down] * 2


def test_the_most_expensive_part_is_minimal_among_all_splits():
    """Against all cuts there are."""
    generator = torch.Generator().manual_seed(4)
    for depth, parts in itertools.product((1, 2, 5, 8), (1, 2, 3, 4)):
        if parts > depth:
            continue
        costs = torch.rand(depth, generator=generator).tolist()
        found = balanced(costs, parts)
        assert [layer for part in found for layer in part] == list(range(1, depth + 1))
        assert len(found) == parts
        assert all(len(part) > 0 for part in found)
        cuts = itertools.combinations(range(1, depth), parts - 1)
        best = min(max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cut, depth))) for cut in cuts)
        assert max(sum(costs[layer - 1] for layer in part) for part in found) == pytest.approx(best, rel=1e-12)


def test_equal_layers_are_dealt_out_evenly():
    assert [len(part) for part in balanced([1.0] * 20, 4)] == [5, 5, 5, 5]


def test_where_several_cuts_are_best_the_parts_are_longest_at_the_input():
    assert [len(part) for part in balanced([1.0] * 5, 2)] == [3, 2]
    assert [len(part) for part in balanced([1.0] * 4, 3)] == [2, 1, 1]


def test_a_layer_costs_its_multiplications():
    """3kmn for m outputs and n inputs at k places, of which a convolution has one for each pixel of its output."""
    convolution = nn.Conv2d(2, 5, kernel_size=3, bias=False)  # 6 x 7 pixels become 4 x 5
    model = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(100, 8), nn.Tanh(), nn.Linear(8, 3))
    problem = lb.lift(model, loss=lb.SquaredError())
    pixels, inputs = 4 * 5, 2 * 3 * 3
    expected = [16 * 5 * pixels + 3 * pixels * 5 * inputs, 16 * 8 + 3 * 8 * 100, 16 * 3 + 3 * 3 * 8]
    assert layer_costs(problem, torch.zeros(2, 2, 6, 7)) == expected


def test_solvers_that_move_layers_in_turn_are_refused():
    problem, X, Y = layer_bodies.deep(bodies.SAMPLES)
    border = lb.problem.Border(Partition(problem.links, (range(1, 4), range(4, 7))))
    data = solvers.Batch.whole(problem, X, Y)
    for solver in cases.solver_cases():
        if not solver.layer_parallel:
            with pytest.raises(errors.CompatibilityError, match="PipelinedSweep"):
                solvers.Run(problem, solver, data, epochs=1, border=border)


def test_counts_are_those_of_all_layers(crew: Crew):
    """Metrics of inputs and signals for each layer but the one with a penalty, of inputs for the output: 9 a batch.

    All of the first 16 steps compute them.  Also where a run goes on with another number of processes.
    """
    (alone,) = crew.run(1, layer_bodies.without_solutions, layer_bodies.train, "deep", GRAM)
    first, second = crew.run(2, layer_bodies.without_solutions, layer_bodies.train, "deep", GRAM)
    batches = 3 * -(-bodies.SAMPLES // bodies.BATCH)
    assert alone["state"]["fallbacks"] == 9 * batches == alone["history"][-1]["fallbacks"]
    assert differences(_sorted(first), _sorted(alone), 1e-12) == []
    assert second["history"] == first["history"]
    kept, *_ = crew.run(2, layer_bodies.without_solutions, layer_bodies.stop_early, "deep", GRAM, 4)
    assert kept["run"]["solver"]["fallbacks"] == 9 * 4
    ended, *_ = crew.run(4, layer_bodies.without_solutions, layer_bodies.resume, "deep", GRAM, kept)
    assert ended["state"]["fallbacks"] == 9 * batches == ended["history"][-1]["fallbacks"]


def test_which_settings_are_layer_parallel():
    assert all(solver.layer_parallel for solver in SOLVERS.values())
    assert not solvers.ProximalGradient().layer_parallel
    assert not solvers.ProximalGradient(sweep=solvers.Jacobi(), step_rule=solvers.Backtracking()).layer_parallel
    assert not solvers.ProximalGradient(sweep=solvers.Jacobi(), acceleration=solvers.Nesterov()).layer_parallel
    assert not solvers.StochasticProximalGradient(0.1).layer_parallel


def test_one_process_alone_is_a_mate():
    assert Mate(0, 1).agreement().size == 1
