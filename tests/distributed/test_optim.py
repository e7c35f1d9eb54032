"""`lb.optim.Gram` with DistributedDataParallel: two processes make the moves of one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lifted_bregman as lb
from lifted_bregman.solvers.gram import moves, rule

F64 = torch.float64


class Network(nn.Module):
    """A dense layer in sample space, one in weight space, a convolution, an embedding and a norm without a rule."""

    def __init__(self):
        super().__init__()
        self.table, self.convolution = nn.Embedding(5, 8), nn.Conv1d(2, 3, 2)
        self.norm, self.wide, self.head = nn.LayerNorm(9), nn.Linear(9, 4), nn.Linear(4, 3)

    def forward(self, index):
        h = torch.tanh(self.convolution(self.table(index).unflatten(1, (2, 4)))).flatten(1)
        return self.head(torch.relu(self.wide(self.norm(h))))


def trained(mate, inputs, block, parts):
    """The parameters after steps on batches of 8 samples, of which each process has its part."""
    rule.WIDEST_INPUTS, moves.LARGEST_BLOCK = inputs, block
    torch.manual_seed(0)
    model = Network().double()
    index, target = torch.randint(0, 5, (24,)), torch.randn(24, 3, dtype=F64)
    net = model if mate.group is None else DistributedDataParallel(model, process_group=mate.group)
    optimizer = lb.optim.Gram(net, total_steps=24)
    for start in (0, 8, 16, 4) * 6:
        first = start + sum(parts[: mate.rank])
        rows = slice(first, first + parts[mate.rank]) if mate.group is not None else slice(start, start + 8)
        optimizer.zero_grad()
        (0.5 * (net(index[rows]) - target[rows]).square().sum(1)).mean().backward()
        optimizer.step()
    rule.WIDEST_INPUTS, moves.LARGEST_BLOCK = 256, 256
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(("inputs", "block"), [(8, 3), (8, 8), (100, 8)], ids=["samples", "both", "weights"])
def test_two_processes_equal_one(crew, inputs, block):
    """Blocks of 3 samples do not end where the parts of 4 samples do."""
    (alone,) = crew.run(1, trained, inputs, block, (8,))
    start = [p.detach() for p in (torch.manual_seed(0), Network().double())[1].parameters()]
    for found in crew.run(2, trained, inputs, block, (4, 4)):
        for p, q, r in zip(found, alone, start, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-9)
            assert float((q - r).abs().max()) > 1e-3
