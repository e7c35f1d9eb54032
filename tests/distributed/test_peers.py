"""What processes send each other: the parts of a batch, sums and means over all, and how many bytes that takes."""

from __future__ import annotations

import math

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.distributed import process_peers
from lifted_bregman.problem import Peers, gradient_agreement
from lifted_bregman.solvers.baselines.classical_lifted import classical_problem
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


def test_alone_everything_is_the_identity():
    peers, rows = Peers(), torch.arange(6.0).view(3, 2)
    before = rows.clone()
    assert peers.divide(rows) == (rows,) and peers.own(rows) is rows and peers.gather(rows) is rows
    peers.mean(rows)
    peers.total(rows)
    assert torch.equal(rows, before) and peers.samples(3) == 3 and peers.ends(3) == (3,) and peers.light(rows)
    assert peers.mean_of(1.5, 2.0) == peers.total_of(1.5, 2.0) == peers.norms_of(1.5, 2.0) == (1.5, 2.0)


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
        "mean": [X.mean(0), X.mean(), X.mean().float()],
        "numbers": [float(X.sum()), float(X.mean()), float(torch.linalg.vector_norm(X))],
        "ends": [sum(sizes[: rank + 1]) for rank in range(size)],
    }
    for entry in found:
        assert differences({key: entry[key] for key in expected}, expected, 1e-6) == []
        assert differences(entry["gathered"], expected["gathered"], 0.0) == []
        for key in ("total", "mean", "numbers"):
            assert differences(entry[key][0], expected[key][0], 1e-14) == []
        assert digest({key: entry[key] for key in expected}) == digest({key: found[0][key] for key in expected})
        assert entry["free"] == 0


def rows_of(samples):
    return torch.randn(samples, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(samples))


def exchange(mate, samples):
    peers, X = mate.peers(), rows_of(samples)
    part, index = peers.divide(X, torch.arange(samples))
    assert torch.equal(peers.gather(part), X) and torch.equal(peers.gather(index), torch.arange(samples))
    waves = part.cos()
    halves = part.cos().view(-1, 2)
    gathered = [peers.gather(waves, keep=True), peers.gather(halves, each=2), peers.gather(part[:, 0] > 0)]
    before = peers.sent
    assert peers.gather(waves) is gathered[0] and torch.equal(peers.own(X), part)
    free = peers.sent - before
    total = [part.sum(0), part.sum(0).float()]
    peers.total(*total)
    mean = [part.mean(0), part.mean(), part.mean().float()]  # of no rows: NaN
    peers.mean(*mean)
    sums = peers.total_of(float(part.sum()), float(len(part)))
    means = peers.mean_of(float(part.mean()))
    norms = peers.norms_of(float(torch.linalg.vector_norm(part)))
    return {
        "own": len(part),
        "gathered": [*gathered, peers.gather(index.clone())],
        "total": [*total, sums[1]],
        "mean": mean,
        "numbers": [sums[0], *means, *norms],
        "ends": list(peers.ends(len(part))),
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
    peers, total = mate.peers(), summand(mate.rank)
    peers.total(total)
    sent = peers.sent
    peers.total_of(math.nan if mate.rank == 1 else 1e308 * 1.7)  # which is finite, and overflows in a sum
    return total, sent, peers.fault


def test_norms_do_not_overflow(crew):
    for (norm,) in crew.run(4, huge_norm):
        assert norm == pytest.approx(2e200, rel=1e-15)


def huge_norm(mate):
    return mate.peers().norms_of(1e200)


def test_a_batch_that_was_not_divided_is_refused(crew):
    for messages in crew.run(2, undivided):
        assert len(messages) == 4
        for message in messages:
            assert message.endswith("every batch goes through problem.peers.divide first."), message


def undivided(mate):
    peers, X = mate.peers(), rows_of(8)
    calls = [lambda: peers.samples(8), lambda: peers.own(X), lambda: peers.gather(X), lambda: peers.ends(4)]
    messages = []
    for number, call in enumerate(calls):
        if number == 1:
            peers.divide(rows_of(5))
        try:
            call()
        except errors.SettingError as error:
            messages.append(str(error))
    return messages


def test_views_of_a_problem_keep_its_peers():
    class Marked(Peers):
        pass

    problem, *_ = bodies.problem_of("relu", torch.float64)
    peers = Marked()
    shared = problem.with_peers(peers)
    assert problem.peers is not peers and shared.peers is peers
    assert shared.work is problem.work and shared.penalties is problem.penalties and shared.model is problem.model
    anchor = {layer: {} for layer in (1, 2, 3)}
    views = [shared.with_weights(2.0), classical_problem(shared), shared.anchored(anchor, 0.5)]
    views.append(views[-1].with_weights(3.0))
    assert all(view.peers is peers for view in views)


@pytest.mark.parametrize(("size", "name"), [(2, "penalised"), (4, "convolutions"), (4, "sparse code")])
def test_every_quantity_of_a_problem(crew, size, name):
    """Energies, gradients, curvatures, certificates and diagnostics, for 6 samples and for 3."""
    for samples in (6, 3):
        (alone,) = crew.run(1, quantities, name, samples)
        found = crew.run(size, quantities, name, samples)
        assert differences(found[0], alone, 1e-12) == []
        assert {digest(entry) for entry in found} == {digest(found[0])}


def quantities(mate, name, samples):
    problem, X, Y = bodies.problem_of(name, torch.float64, samples)
    problem = problem.with_peers(mate.peers())
    X, Y = problem.prepare(X, Y)
    own = solvers.Batch(X, Y, torch.arange(samples), samples, torch.linspace(0.5, 1.5, samples, dtype=X.dtype))
    own = own.share(problem.peers)
    state = problem.forward_state(own.X, check=False)
    for layer, x in enumerate(state, start=1):
        state[layer] = problem.variable_prox(layer, x + 0.1 * x.sin(), 0.3)
    point = problem.point(state, own.X, own.Y, own.weights)
    energies, diagnostics = lb.problem.energies, lb.problem.diagnostics
    into = {layer: [torch.ones_like(p) for p in problem.network[layer].map.parameters.values()] for layer in (1, 3)}
    for layer, tensors in into.items():
        named = dict(zip(problem.network[layer].map.parameters, tensors, strict=True))
        problem.accumulate_parameter_gradient(point, layer, named, scale=0.3, decay=0.0 if layer == 1 else 0.6)
    found = {
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
        "consistency": diagnostics.consistency(problem, state, own.X),
        "linear": [(units.pairs, units.units) for units in diagnostics.linear_units(problem, own.X)],
    }
    if len(own) and samples == 6:  # it checks its data, and checks refuse an empty part
        agreement = gradient_agreement(problem, own.X, own.Y, sweeps=3)
        found["agreement"] = [agreement.cosines, agreement.relative_errors, agreement.change]
    return found


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
        patch.setattr(process_peers, "_LIGHT", 0)
        patch.setattr(process_peers, "_SMALL", 0)
        return bodies.train(mate, name, solver, epochs=1)


def test_a_failing_process_is_reported_with_its_traceback(crew):
    with pytest.raises(CrewError, match=r"(?s)rank 1 of 2 failed.*in broken.*ZeroDivisionError"):
        crew.run(2, broken)
    assert crew.run(2, huge_norm)  # by a new crew


def broken(mate):
    peers = mate.peers()
    peers.total_of(1.0 / (1 - mate.rank))
