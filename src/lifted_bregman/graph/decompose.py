"""Decompositions: modules and functions of torch with activations inside, as calls of single activations and maps.

The tracer looks here before it records a call.  An entry takes the arguments of the call that it replaces, for a module
the module first, and returns the same result, by calls of torch on tensors or on proxies for them.  Entries read the
settings and parameters of the module, and shapes and dtypes of tensors, never their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn import functional as F

from lifted_bregman.graph import attention, gates, recurrent, transformer
from lifted_bregman.graph.gates import normal_cdf

__all__ = ["FUNCTIONS", "MODULES", "normal_cdf"]

MODULES: dict[type[nn.Module], Callable[..., Any]] = {
    nn.MultiheadAttention: attention.multihead_attention,
    nn.TransformerEncoderLayer: transformer.encoder_layer,
    nn.TransformerEncoder: transformer.encoder,
    nn.TransformerDecoderLayer: transformer.decoder_layer,
    nn.TransformerDecoder: transformer.decoder,
    nn.Transformer: transformer.transformer,
    nn.RNN: recurrent.rnn,
    nn.LSTM: recurrent.lstm,
    nn.GRU: recurrent.gru,
    nn.RNNCell: recurrent.rnn_cell,
    nn.LSTMCell: recurrent.lstm_cell,
    nn.GRUCell: recurrent.gru_cell,
    nn.SiLU: gates.silu_module,
    nn.GELU: gates.gelu_module,
    nn.Mish: gates.mish_module,
    nn.Hardswish: gates.hardswish_module,
    nn.GLU: gates.glu_module,
    nn.Softmin: gates.softmin_module,
}
"""Called as MODULES[type(module)](module, *args, **kwargs); subclasses may compute something else and are not in it."""

FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: attention.scaled_dot_product_attention,
    F.multi_head_attention_forward: attention.multi_head_attention_forward,
    F.silu: gates.silu,
    F.gelu: gates.gelu,
    F.mish: gates.mish,
    F.hardswish: gates.hardswish,
    F.glu: gates.glu,
    F.softmin: gates.softmin,
}
"""Called as FUNCTIONS[function](*args, **kwargs)."""
