"""Recurrent networks written out in time equal torch's, with one call for each gate, layer, direction and step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from lifted_bregman.errors import UnsupportedModuleError
from tests.graph.test_decompose import F64, assert_same, covering, draw, targets, trace

STEPS = 4
KINDS = {
    "RNN tanh": (nn.RNN, {"nonlinearity": "tanh"}, {torch.tanh: 1}),
    "RNN relu": (nn.RNN, {"nonlinearity": "relu"}, {torch.relu: 1}),
    "LSTM": (nn.LSTM, {}, {torch.sigmoid: 3, torch.tanh: 2}),
    "LSTM, projected": (nn.LSTM, {"proj_size": 2}, {torch.sigmoid: 3, torch.tanh: 2}),
    "GRU": (nn.GRU, {}, {torch.sigmoid: 2, torch.tanh: 1}),
}
CELLS = {
    "RNN tanh": (nn.RNNCell, {"nonlinearity": "tanh"}, {torch.tanh: 1}),
    "RNN relu": (nn.RNNCell, {"nonlinearity": "relu"}, {torch.relu: 1}),
    "LSTM": (nn.LSTMCell, {}, {torch.sigmoid: 3, torch.tanh: 2}),
    "GRU": (nn.GRUCell, {}, {torch.sigmoid: 2, torch.tanh: 1}),
}


def build(kind, *sizes, **settings):
    torch.manual_seed(4)
    return kind(*sizes, dtype=F64, **settings)


@pytest.mark.parametrize(
    "row",
    covering(
        kind=list(KINDS),
        num_layers=[1, 2, 3],
        bidirectional=[True, False],
        batch_first=[True, False],
        bias=[True, False],
        batched=[True, False],
        given=[True, False],
        dropout=[0.0, 1.0],
        training=[True, False],
    ),
)
def test_sequences_equal_torch(row):
    """Dropout with p = 1 is no longer random: it sets all inputs of the layers above the first to 0."""
    kind, settings, gates = KINDS[row["kind"]]
    layers, bidirectional = row["num_layers"], row["bidirectional"]
    dropout = row["dropout"] if layers > 1 else 0.0  # torch warns of it in a single layer
    shared = {name: row[name] for name in ("num_layers", "bidirectional", "batch_first", "bias")}
    module = build(kind, 5, 3, dropout=dropout, **shared, **settings).train(row["training"])

    def make(samples):
        n = samples if row["batched"] else 1
        x = draw(0, n, STEPS, 5) if module.batch_first else draw(0, STEPS, n, 5)
        states = [draw(i + 1, layers * (1 + bidirectional), n, size) for i, size in enumerate((out, 3))]
        if not row["batched"]:
            x, states = x.squeeze(0 if module.batch_first else 1), [s.squeeze(1) for s in states]
        return [x, *(states[: 2 if kind is nn.LSTM else 1] if row["given"] else [])]

    out = module.proj_size or 3

    def call(own, x, *states):
        return own(x, states if len(states) == 2 else states[0]) if states else own(x)

    traced = assert_same(module, call, make)
    calls, places = targets(traced), STEPS * layers * (1 + bidirectional)
    assert {gate: calls[gate] for gate in gates} == {gate: number * places for gate, number in gates.items()}
    assert calls.get(F.dropout, 0) == (STEPS * (layers - 1) if dropout else 0)
    assert not any(node.op == "call_module" for node in traced.graph.nodes)


@pytest.mark.parametrize(
    "row", covering(kind=list(CELLS), bias=[True, False], batched=[True, False], given=[True, False])
)
def test_cells_equal_torch(row):
    kind, settings, gates = CELLS[row["kind"]]
    module = build(kind, 5, 3, bias=row["bias"], **settings)

    def make(samples):
        tensors = [draw(0, samples, 5), draw(1, samples, 3), draw(2, samples, 3)]
        tensors = tensors[: 1 + row["given"] * (2 if kind is nn.LSTMCell else 1)]
        return tensors if row["batched"] else [x[0] for x in tensors]

    def call(own, x, *states):
        return own(x, states if len(states) == 2 else states[0]) if states else own(x)

    calls = targets(assert_same(module, call, make))
    assert {gate: calls[gate] for gate in gates} == gates


def test_a_sequence_of_one_step_uses_every_parameter():
    """torch gives the recurrent weights derivative 0 then, not None: each parameter is part of the trace."""
    module = build(nn.GRU, 5, 3)
    traced = assert_same(module, lambda own, x: own(x), lambda samples: [draw(0, 1, samples, 5)])
    assert {id(p) for p in traced.parameters()} == {id(p) for p in module.parameters()}
    assert not list(traced.buffers())


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_packed_sequences_are_refused(kind):
    module = build(kind, 5, 3, batch_first=True)
    packed = pack_padded_sequence(draw(0, 2, STEPS, 5), torch.tensor([4, 2]), batch_first=True)
    with pytest.raises(UnsupportedModuleError, match=rf"{kind.__name__} was given a PackedSequence.*pad the sequences"):
        trace(module, lambda own, x: own(packed)[1], [draw(0, 2, 5)])
