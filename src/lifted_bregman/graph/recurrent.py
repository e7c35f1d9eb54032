"""Recurrent networks written out in time, with one call of sigmoid or tanh for each gate and time step.

    RNN    h ← tanh(W x + b + U h + c), or relu
    LSTM   i, f, o = sigmoid(...),  g = tanh(...),  c ← f c + i g,  h ← o tanh(c), times W_hr with `proj_size`
    GRU    r, z = sigmoid(...),  n = tanh(W_n x + b_n + r (U_n h + c_n)),  h ← (1 - z) n + z h

Every gate multiplies with its own rows of the module's parameters, so that no value before an activation is read by
two.  States have shape (samples, features) at each time step, whatever `batch_first` says.  The length of the sequence
is fixed by the trace, the number of samples is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from lifted_bregman.errors import UnsupportedModuleError

State = tuple[Tensor, ...]
"""(h,), or (h, c) of an LSTM."""


@dataclass(frozen=True)
class _Cell:
    """The parameters of one layer and direction, and what they compute."""

    module: nn.Module
    suffix: str
    """Ends the names of the parameters: "_l0", "_l0_reverse", ..., or nothing in a cell module."""
    gates: int

    def parameter(self, name: str, gate: int) -> Tensor:
        own: Tensor = getattr(self.module, name + self.suffix)
        if self.gates == 1:
            return own
        size = int(self.module.hidden_size)  # type: ignore[arg-type]
        return own[gate * size : (gate + 1) * size]

    def linear(self, which: str, gate: int, x: Tensor) -> Tensor:
        """W x + b of one gate: `which` is "ih" for inputs and "hh" for hidden states."""
        bias = self.parameter(f"bias_{which}", gate) if self.module.bias else None
        return F.linear(x, self.parameter(f"weight_{which}", gate), bias)

    def sum(self, gate: int, x: Tensor, h: Tensor) -> Tensor:
        return self.linear("ih", gate, x) + self.linear("hh", gate, h)


Step = Callable[[_Cell, Tensor, State], State]


def _rnn_step(cell: _Cell, x: Tensor, state: State) -> State:
    z = cell.sum(0, x, state[0])
    return (torch.tanh(z) if cell.module.nonlinearity == "tanh" else torch.relu(z),)


def _lstm_step(cell: _Cell, x: Tensor, state: State) -> State:
    h, c = state
    i, f = torch.sigmoid(cell.sum(0, x, h)), torch.sigmoid(cell.sum(1, x, h))
    g, o = torch.tanh(cell.sum(2, x, h)), torch.sigmoid(cell.sum(3, x, h))
    c = f * c + i * g
    h = o * torch.tanh(c)
    if getattr(cell.module, "proj_size", 0) > 0:
        h = F.linear(h, getattr(cell.module, "weight_hr" + cell.suffix))
    return h, c


def _gru_step(cell: _Cell, x: Tensor, state: State) -> State:
    (h,) = state
    r, z = torch.sigmoid(cell.sum(0, x, h)), torch.sigmoid(cell.sum(1, x, h))
    n = torch.tanh(cell.linear("ih", 2, x) + r * cell.linear("hh", 2, h))
    return ((1.0 - z) * n + z * h,)


def rnn(module: nn.RNN, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`nn.RNN`: (outputs, last h)."""
    output, (h,) = _unroll(module, input, None if hx is None else (hx,), _rnn_step, gates=1)
    return output, h


def lstm(
    module: nn.LSTM, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`nn.LSTM`: (outputs, (last h, last c))."""
    output, (h, c) = _unroll(module, input, None if hx is None else (hx[0], hx[1]), _lstm_step, gates=4)
    return output, (h, c)


def gru(module: nn.GRU, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`nn.GRU`: (outputs, last h)."""
    output, (h,) = _unroll(module, input, None if hx is None else (hx,), _gru_step, gates=3)
    return output, h


def rnn_cell(module: nn.RNNCell, input: Tensor, hx: Tensor | None = None) -> Tensor:
    """`nn.RNNCell`: the next h."""
    return _one_step(module, input, None if hx is None else (hx,), _rnn_step, gates=1)[0]


def lstm_cell(module: nn.LSTMCell, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """`nn.LSTMCell`: the next (h, c)."""
    h, c = _one_step(module, input, None if hx is None else (hx[0], hx[1]), _lstm_step, gates=4)
    return h, c


def gru_cell(module: nn.GRUCell, input: Tensor, hx: Tensor | None = None) -> Tensor:
    """`nn.GRUCell`: the next h."""
    return _one_step(module, input, None if hx is None else (hx,), _gru_step, gates=3)[0]


def _unroll(module: nn.RNNBase, input: Tensor, given: State | None, step: Step, *, gates: int) -> tuple[Tensor, State]:
    """The outputs of the last layer and the last states, stacked over layers and directions, as torch returns them."""
    if isinstance(input, PackedSequence):
        raise UnsupportedModuleError(
            f"{type(module).__name__} was given a PackedSequence, whose number of samples changes from step to step; "
            "lifted training needs one length: pad the sequences, and mask the loss where they are padded."
        )
    # The input as a list over time of (samples, features)
    time, samples = (1, 0) if module.batch_first else (0, 1)
    batched = input.dim() == 3
    if not batched:
        input = input.unsqueeze(samples)
        given = None if given is None else tuple(s.unsqueeze(1) for s in given)
    sequence = [input.select(time, t) for t in range(input.size(time))]

    # Layers one after another, each in one or two directions
    last: list[State] = []
    for layer in range(module.num_layers):
        outputs: list[list[Tensor]] = []
        for direction in ("", "_reverse") if module.bidirectional else ("",):
            cell = _Cell(module, f"_l{layer}{direction}", gates)
            state = _zeros(module, sequence[0], gates) if given is None else tuple(s[len(last)] for s in given)
            hidden = []
            for x in reversed(sequence) if direction else sequence:
                state = step(cell, x, state)
                hidden.append(state[0])
            outputs.append(hidden[::-1] if direction else hidden)
            last.append(state)
        sequence = [torch.cat(both, dim=-1) if len(both) == 2 else both[0] for both in zip(*outputs, strict=True)]
        if module.dropout > 0.0 and layer < module.num_layers - 1:
            sequence = [F.dropout(x, p=module.dropout, training=module.training) for x in sequence]

    # Outputs and last states as torch stacks them
    output = torch.stack(sequence, dim=time)
    states = tuple(torch.stack(parts, dim=0) for parts in zip(*last, strict=True))
    if not batched:
        return output.squeeze(samples), tuple(s.squeeze(1) for s in states)
    return output, states


def _one_step(module: nn.RNNCellBase, input: Tensor, given: State | None, step: Step, *, gates: int) -> State:
    batched = input.dim() == 2
    x = input if batched else input.unsqueeze(0)
    if given is None:
        state = _zeros(module, x, gates)
    else:
        state = given if batched else tuple(s.unsqueeze(0) for s in given)
    state = step(_Cell(module, "", gates), x, state)
    return state if batched else tuple(s.squeeze(0) for s in state)


def _zeros(module: nn.Module, x: Tensor, gates: int) -> State:
    """The state before the first step; its number of samples is that of x, in a trace too."""
    hidden = int(module.hidden_size)  # type: ignore[arg-type]
    sizes = [getattr(module, "proj_size", 0) or hidden, hidden]
    zero = torch.zeros_like(x[:, :1])
    return tuple(zero.expand(-1, size) for size in sizes[: 2 if gates == 4 else 1])
