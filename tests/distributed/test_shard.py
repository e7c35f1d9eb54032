"""What ranks that share a batch send each other: sums over all samples, and the rows of all."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.distributed import process_shard
from lifted_bregman.problem.shard import WHOLE, join_norms, sum_numbers
from tests import fresh
from tests.distributed import bodies
from tests.distributed.crew import CrewError
from tests.distributed.numbers import differences, digest

SIZES = pytest.mark.parametrize("size", [2, 4])


def test_using_the_library_imports_nothing_that_processes_need():
    """torch brings some of torch.distributed by itself; the library adds nothing to it."""
    script = (
        "import sys, torch; before = set(sys.modules)\n"
        "import lifted_bregman as lb; lb.fit, lb.lift, lb.Parallel, lb.GramSweep\n"
        "print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    run = fresh.run(script)
    added = run.stdout.split()
    assert "lifted_bregman.distributed" in added
    assert [name for name in added if name.startswith(("torch.distributed", "lifted_bregman.distributed.pro"))] == []


def test_for_one_process_everything_is_the_identity():
    rows = torch.arange(6.0).view(3, 2)
    before = rows.clone()
    assert solvers.DataRanks().divide(rows, before) == (WHOLE, (rows, before))
    assert WHOLE.own_rows(rows) is rows and WHOLE.all_rows(rows) is rows
    WHOLE.all_sum(rows)
    assert torch.equal(rows, before) and WHOLE.whole
    assert WHOLE.samples(3) == 3 and WHOLE.ends(3) == (3,) and WHOLE.rows_are_cheap(rows)
    assert sum_numbers(WHOLE, 1.5, 2.0) == join_norms(WHOLE, 1.5, 2.0) == (1.5, 2.0)


@SIZES
@pytest.mark.parametrize("samples", [1, 3, 8, 13])
def test_sums_and_rows_of_a_batch(crew, size, samples):
    """Parts of sizes that differ by at most one, in the order of the batch, some of them empty."""
    found = crew.run(size, exchange, samples)
    X = rows_of(samples)
    sizes = [entry["own"] for entry in found]
    assert sum(sizes) == samples and max(sizes) - min(sizes) <= 1 and sorted(sizes, reverse=True) == sizes
    expected = {
        "gathered": [X.cos(), X.cos().view(2 * samples, 2), X[:, 0] > 0, torch.arange(samples)],
        "total": [X.sum(0), X.sum(0).float(), float(samples)],
        "numbers": [float(X.sum()), float(torch.linalg.vector_norm(X))],
        "ends": [sum(sizes[: rank + 1]) for rank in range(size)],
    }
    for entry in found:
        assert differences({key: entry[key] for key in expected}, expected, 1e-6) == []
        assert differences(entry["gathered"], expected["gathered"], 0.0) == []
        for key in ("total", "numbers"):
            assert differences(entry[key][0], expected[key][0], 1e-14) == []
        assert digest({key: entry[key] for key in expected}) == digest({key: found[0][key] for key in expected})
        assert entry["free"] == 0


def rows_of(samples):
    return torch.randn(samples, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(samples))


def exchange(mate, samples):
    ranks, X = mate.ranks(), rows_of(samples)
    shard, (part, index) = ranks.divide(X, torch.arange(samples))
    assert torch.equal(shard.all_rows(part), X) and torch.equal(shard.all_rows(index), torch.arange(samples))
    assert shard.samples(len(part)) == samples
    waves = part.cos()
    halves = part.cos().view(-1, 2)
    gathered = [shard.all_rows(waves, keep=True), shard.all_rows(halves, each=2), shard.all_rows(part[:, 0] > 0)]
    before = ranks.sent
    assert shard.all_rows(waves) is gathered[0] and torch.equal(shard.own_rows(X), part)
    free = ranks.sent - before
    total = [part.sum(0), part.sum(0).float()]
    shard.all_sum(*total)
    sums = sum_numbers(shard, float(part.sum()), float(len(part)))
    norms = join_norms(shard, float(torch.linalg.vector_norm(part)))
    return {
        "own": len(part),
        "gathered": [*gathered, shard.all_rows(index.clone())],
        "total": [*total, sums[1]],
        "numbers": [sums[0], *norms],
        "ends": list(shard.ends(len(part))),
        "free": free,
    }


@SIZES
def test_large_sums_are_the_same_bits_everywhere(crew, size):
    """1 MB, which is reduced in a ring; and a number that is not finite is known to have come from rank 1."""
    found = crew.run(size, large_sum)
    expected = sum(summand(rank) for rank in range(size))
    assert differences(found[0][0], expected, 1e-14) == []
    assert len({digest(total) for total, *_ in found}) == 1
    assert [sent for _, sent, *_ in found] == [2**20] * size
    assert [fault for *_, fault in found] == [None, 2, *[None] * (size - 2)]


def summand(rank):
    return torch.randn(2**17, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def large_sum(mate):
    ranks, total = mate.ranks(), summand(mate.rank)
    shard, _ = ranks.divide(torch.zeros(4))
    shard.all_sum(total)
    sent = ranks.sent
    sum_numbers(shard, math.nan if mate.rank == 1 else 1e308 * 1.7)  # which is finite, and overflows in a sum
    return total, sent, ranks.fault


def test_norms_do_not_overflow(crew):
    for norms in crew.run(4, huge_norm):
        assert norms == pytest.approx((2e200, 6.0), rel=1e-15)


def huge_norm(mate):
    shard, _ = mate.ranks().divide(torch.zeros(4))
    return join_norms(shard, 1e200, 3.0)


def test_rows_of_another_batch_are_refused(crew):
    """Each batch has a shard of its own, so that a later batch changes nothing for an earlier one."""
    for messages in crew.run(2, rows_of_others):
        assert len(messages) == 4
        for message in messages:
            assert message.endswith("use the shard of the batch that the rows belong to."), message


def rows_of_others(mate):
    ranks, X = mate.ranks(), rows_of(8)
    shard, (part,) = ranks.divide(rows_of(6))
    ranks.divide(X)
    assert shard.samples(len(part)) == 6
    calls = [lambda: shard.samples(4), lambda: shard.own_rows(X), lambda: shard.all_rows(X), lambda: shard.ends(4)]
    messages = []
    for call in calls:
        try:
            call()
        except errors.SettingError as error:
            messages.append(str(error))
    return messages


def test_parts_of_a_shard_are_whole_batches():
    """A slice of this rank's samples, or some of them, is a batch of its own, without others."""

    class Marked(lb.problem.Shard):
        pass

    problem, X, Y = bodies.problem_of("relu", torch.float64)
    shard = Marked()
    batch = dataclasses.replace(solvers.Batch.whole(problem, X, Y), shard=shard)
    assert batch.point(problem, problem.forward_state(X)).shard is shard
    assert batch.slice(0, 3).shard is WHOLE and batch.select(torch.tensor([2, 0])).shard is WHOLE


@pytest.mark.parametrize(("size", "name"), [(2, "penalised"), (4, "convolutions"), (4, "sparse code")])
def test_every_quantity_of_a_problem(crew, size, name):
    """Energies, gradients, curvatures and certificates, for 6 samples and for 3."""
    for samples in (6, 3):
        (alone,) = crew.run(1, quantities, name, samples)
        found = crew.run(size, quantities, name, samples)
        assert differences(found[0], alone, 1e-12) == []
        assert {digest(entry) for entry in found} == {digest(found[0])}


def quantities(mate, name, samples):
    problem, X, Y = bodies.problem_of(name, torch.float64, samples)
    X, Y = problem.prepare(X, Y)
    own = solvers.Batch(X, Y, torch.arange(samples), samples, torch.linspace(0.5, 1.5, samples, dtype=X.dtype))
    own = own.share(mate.ranks())
    state = problem.forward_state(own.X, check=False)
    for layer, x in enumerate(state, start=1):
        state[layer] = problem.variable_prox(layer, x + 0.1 * x.sin(), 0.3)
    point = own.point(problem, state)
    energies, diagnostics = lb.problem.energies, lb.problem.diagnostics
    into = {layer: [torch.ones_like(p) for p in problem.network[layer].map.parameters.values()] for layer in (1, 3)}
    for layer, tensors in into.items():
        named = dict(zip(problem.network[layer].map.parameters, tensors, strict=True))
        problem.accumulate_parameter_gradient(point, layer, named, scale=0.3, decay=0.0 if layer == 1 else 0.6)
    return {
        "energies": [
            energies.layer_energies(problem, point),
            energies.objective(problem, point),
            energies.nonsmooth(problem, point, False),
            energies.smooth(problem, point, True),
            energies.partial_energy(problem, point, (2, 3)),
        ],
        "gradients": problem.gradients(point).parameters,
        "into": into,
        "curvatures": [problem.parameter_curvature(point, layer, upper) for layer in (1, 2, 3) for upper in (0, 1)],
        "variables": [problem.variable_curvature(point, layer, upper) for layer in (1, 2) for upper in (0, 1)],
        "certificates": [*(c := diagnostics.certificates(problem, point)).parameters, *c.variables],
    }


@pytest.mark.parametrize("name", ["smooth", "frozen and bias-free", "convolutions"])
def test_norms_and_sums_of_large_batches(crew, name):
    """Where rows are too many to be gathered the products of power iterations are summed; and all sums are reduced."""
    solver = solvers.ImplicitSGD(5.0, 2, space=solvers.Space.WEIGHTS)
    others = [solver] if name == "convolutions" else [solver, solvers.ImplicitSGD(5.0, 2, reading=solvers.Literal())]
    for chosen in others:
        (alone,) = crew.run(1, heavy, name, chosen)
        first, *rest = crew.run(4, heavy, name, chosen)
        assert differences(first, alone, 1e-12) == [] and rest == [digest(first)] * 3


def heavy(mate, name, solver):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_shard, "_LIGHT", 0)
        patch.setattr(process_shard, "_SMALL", 0)
        return bodies.train(mate, name, solver, epochs=1)


def test_a_failing_process_is_reported_with_its_traceback(crew):
    with pytest.raises(CrewError, match=r"(?s)rank 1 of 2 failed.*in broken.*ZeroDivisionError"):
        crew.run(2, broken)
    assert crew.run(2, huge_norm)  # by a new crew


def broken(mate):
    shard, _ = mate.ranks().divide(torch.zeros(4))
    sum_numbers(shard, 1.0 / (1 - mate.rank))
