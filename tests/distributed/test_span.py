"""What the processes that share the layers tell each other: each message against what was sent."""

from __future__ import annotations

import pytest
import torch

from lifted_bregman.distributed import ProcessSpan
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
    span, who = ProcessSpan(PARTS, mate.group), 10.0 * mate.rank
    pair, triple = torch.empty(2), torch.empty(3)
    for number in (1.0, 2.0) if span.lent else ():
        span.send_above(torch.tensor([who, number]))
    for number in (3.0, 4.0) if span.borrowed else ():
        span.send_below(torch.tensor([who, number, 0.5]))
    below = [span.from_below(pair).tolist() for _ in range(2)] if span.borrowed else []
    above = [span.from_above(triple).tolist() for _ in range(2)] if span.lent else []
    span.settle()
    return below, above


def test_what_all_tell_each_other(crew):
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
    rank, span = mate.rank, ProcessSpan(PARTS, mate.group)
    own = entries_of(rank)
    entries = own | {
        "rows": torch.tensor(own["rows"]),
        rank: {"list": list(map(torch.tensor, own[rank]["list"])), 5: {}},
    }
    tensors = {layer: [torch.full((1,), float(rank))] for layer in range(1, 8)}
    span.spread(tensors)
    return (
        span.total_of(rank + 0.5, 2.0**rank),
        span.most(float(rank)),
        span.all_layers(torch.tensor([10.0 + layer for layer in span.layers])).tolist(),
        span.merged({"shared": float(rank), f"of {rank}": rank + 0.5}),
        plain(span.collect(entries)),
        {layer: [t.item() for t in values] for layer, values in tensors.items()},
    )


def plain(value):
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


class Poison(Callback):
    """Makes a number of one process's first layer NaN."""

    everywhere = True
    reads_parameters = False

    def __init__(self, rank):
        self.rank = rank

    def stepped(self, run):
        if run.agreement.rank == self.rank and run.state.steps == 4:
            run.problem.network[run.span.layers[0]].map.parameters["weight"].detach()[0, 0] = torch.nan


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
    faults = run.span.total_of(run.span.fault is not None)[0]
    return result.outcome, result.message, run.span.layers[0], faults
