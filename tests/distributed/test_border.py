"""What ranks that share the terms send each other: each message against what was sent; and who borrows what."""

from __future__ import annotations

import itertools

import pytest
import torch

from lifted_bregman.distributed import ProcessBorder
from lifted_bregman.graph import Links, Partition
from lifted_bregman.solvers import Callback, Outcome
from tests.distributed import layer_bodies
from tests.distributed.test_layer_parallel import SOLVERS

PARTS = [range(1, 2), range(2, 4), range(4, 5), range(5, 8)]


def test_neighbours_receive_in_the_order_of_sending(crew):
    """Rows of other shapes go both ways; nothing is below the first process or above the last."""
    found = crew.run(4, with_neighbours)
    for rank, (below, above) in enumerate(found):
        assert below == ([] if rank == 0 else [[10.0 * rank - 10, 1.0], [10.0 * rank - 10, 2.0]])
        assert above == ([] if rank == 3 else [[10.0 * rank + 10, 3.0, 0.5], [10.0 * rank + 10, 4.0, 0.5]])


def with_neighbours(mate):
    border, who = ProcessBorder(Links.chain(7), PARTS, mate.group), 10.0 * mate.rank
    pair, triple = torch.empty(2), torch.empty(3)
    for number in (1.0, 2.0) if border.partition.lent else ():
        border.send_above(torch.tensor([who, number]))
    for number in (3.0, 4.0) if border.partition.borrowed else ():
        border.send_below(torch.tensor([who, number, 0.5]))
    below = [border.from_below(pair).tolist() for _ in range(2)] if border.partition.borrowed else []
    above = [border.from_above(triple).tolist() for _ in range(2)] if border.partition.lent else []
    border.settle()
    return below, above


def test_messages_among_all_ranks(crew):
    """Sums and the largest of all; of a name that several have, the entry of the lowest; every value on rank 0."""
    found = crew.run(4, with_all)
    for rank, (sums, most, of_layers, merged, collected, spread) in enumerate(found):
        assert sums == (8.0, 15.0) and most == 3.0
        assert of_layers == [11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0]
        assert merged == {"shared": 0.0, "of 0": 0.5, "of 1": 1.5, "of 2": 2.5, "of 3": 3.5}
        assert spread == {1: [0.0], 2: [1.0], 3: [1.0], 4: [2.0], 5: [3.0], 6: [3.0], 7: [3.0]}
        assert collected == ([entries_of(r) for r in range(4)] if rank == 0 else [])


def entries_of(rank):
    lists = [[float(rank)], [-1.0, rank + 0.5]]
    return {"rows": [[rank + 0.25] * rank] * 2, "number": rank + 0.75, "nothing": None, rank: {"list": lists, 5: {}}}


def with_all(mate):
    rank, border = mate.rank, ProcessBorder(Links.chain(7), PARTS, mate.group)
    own = entries_of(rank)
    entries = own | {
        "rows": torch.tensor(own["rows"]),
        rank: {"list": list(map(torch.tensor, own[rank]["list"])), 5: {}},
    }
    tensors = {layer: [torch.full((1,), float(rank))] for layer in range(1, 8)}
    border.spread(tensors)
    return (
        border.sum_numbers(rank + 0.5, 2.0**rank),
        border.largest(float(rank)),
        border.all_terms(torch.tensor([10.0 + layer for layer in border.partition.terms])).tolist(),
        border.all_names({"shared": float(rank), f"of {rank}": rank + 0.5}),
        plain(border.collect(entries)),
        {layer: [t.item() for t in values] for layer, values in tensors.items()},
    )


def plain(value):
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("parts", [(3, 4, 2), (1, 1, 7), (9,), (2, 2, 2, 3)])
def test_variables_cross_a_border_where_another_rank_reads_them(parts):
    """Against the definition, edge by edge: in a chain x_b goes up, in a graph whatever is read elsewhere."""
    reads = {
        "chain": [(v,) for v in range(9)],
        "graph": [(0,), (1,), (0, 2), (3, 1), (4,), (5, 2), (-1, 6), (7,), (8, 4)],
    }
    ends = list(itertools.accumulate(parts))
    ranges = tuple(range(end - count + 1, end + 1) for end, count in zip(ends, parts, strict=True))
    for name, inputs in reads.items():
        home = {term: rank for rank, own in enumerate(ranges) for term in own}
        edges = [(v, term) for term, read in enumerate(inputs, start=1) for v in read if v > 0]
        for rank, own in enumerate(ranges):
            found = Partition(Links(inputs), ranges, rank)
            assert found.terms == own and list(found.hidden) == [v for v in own if v < 9] and found.count == len(parts)
            crossing = [(v, term) for v, term in edges if home[v] != home[term]]
            assert set(found.borrowed) == {v for v, term in crossing if home[term] == rank}
            assert set(found.lent) == {v for v, _ in crossing if home[v] == rank}
            assert set(found.held) == set(found.borrowed) | set(found.hidden)
            if name == "chain":
                assert found.borrowed == ((own[0] - 1,) if rank else ()) and len(found.lent) == (rank < len(parts) - 1)
    alone = Partition(Links(reads["graph"]))
    assert (alone.count, list(alone.terms), alone.borrowed, alone.lent) == (1, list(range(1, 10)), (), ())


class Poison(Callback):
    """Makes a number of one process's first layer NaN."""

    everywhere = True
    reads_parameters = False

    def __init__(self, rank):
        self.rank = rank

    def stepped(self, run):
        if run.agreement.rank == self.rank and run.state.steps == 4:
            run.problem.network[run.partition.terms[0]].map.parameters["weight"].detach()[0, 0] = torch.nan


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("kind", ["Jacobi, fixed", "Jacobi, estimate", "simultaneous"])
def test_the_process_where_numbers_were_first_not_finite_is_named(crew, kind, rank):
    """By the time of the next row several have NaN, in a layer or two on each side."""
    found = crew.run(4, poisoned, kind, rank)
    outcome, message, layer, faults = found[rank]
    assert all(entry[:2] == (outcome, message) for entry in found) and outcome is Outcome.DIVERGED
    assert message.endswith(f"on rank {rank}.") and (f"model.{2 * layer - 2} " in message or "residual_6" in message)
    assert faults > 1


def poisoned(mate, kind, rank):
    settings = {"epochs": 6, "record_every": 3, "tolerance": None, "callbacks": [Poison(rank)]}
    run = layer_bodies.run_of(mate, "deep", SOLVERS[kind], **settings)
    result = run.execute()
    faults = run.border.sum_numbers(run.border.fault is not None)[0]
    return result.outcome, result.message, run.partition.terms[0], faults
