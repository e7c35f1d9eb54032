"""Attention written out, so that its softmax is a call like any other.

    weights = softmax(scale · Q Kᵀ + mask),   output = dropout(weights) V

`weights` has shape (samples, heads, L, S), for L queries and S keys: samples are the first dimension whatever
`batch_first` says.  No number of samples enters, so that a trace serves batches of any size.
"""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifted_bregman.errors import CompatibilityError, TensorError, UnsupportedModuleError

_MASKED = float("-inf")


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention`.

    query       (..., heads, L, D)
    key, value  (..., heads, S, D) and (..., heads, S, Dv); with `enable_gqa` a divisor of the query's heads
    attn_mask   broadcasts to (..., L, S): bool, where True takes part, or numbers that are added to the scores
    dropout_p   in [0, 1], applied in every mode, as torch does
    scale       1/√D by default

    The output is 0 for a query that may attend to no key.
    """
    if is_causal and attn_mask is not None:
        raise CompatibilityError(
            "scaled_dot_product_attention was given attn_mask and is_causal=True; it takes one of them: put the causal "
            "mask into attn_mask."
        )
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    masks = [] if attn_mask is None else [~attn_mask if _is_bool(attn_mask, "attn_mask") else attn_mask]
    weights = _weights(query, key, masks, causal=is_causal, scale=scale, zero_rows=True)
    return _dropout(weights, dropout_p, training=True) @ value


def multihead_attention(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention`: the output, and the weights or None.

    query             (samples, L, E) if `module.batch_first`, else (L, samples, E), or (L, E) for one sample
    key, value        the same with S keys of kdim and vdim features
    key_padding_mask  (samples, S), or (S) for one sample: bool, where True is left out, or numbers to add
    attn_mask         (L, S) or (samples · heads, L, S), likewise
    is_causal         a hint that attn_mask is causal; attn_mask is ignored where torch ignores it

    For a query that may attend to no key the weights are 0 without `need_weights` and NaN with it, as in torch.
    """
    if is_causal and attn_mask is None:
        raise CompatibilityError(
            "MultiheadAttention was given is_causal=True without attn_mask; it is a hint about attn_mask: pass the "
            "mask too, nn.Transformer.generate_square_subsequent_mask(length)."
        )
    packed = query is key and key is value and module.in_proj_weight is not None
    batched = query.dim() == 3
    if not batched:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    elif not module.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))

    # Q, K and V, and keys that belong to no position: bias_k and zeros
    if packed:  # one linear map for all three
        q, k, v = F.linear(query, module.in_proj_weight, module.in_proj_bias).chunk(3, dim=-1)
    else:
        q, k, v = (_project(module, index, x) for index, x in enumerate((query, key, value)))
    further = 0
    if module.bias_k is not None and module.bias_v is not None:
        k = torch.cat([k, torch.zeros_like(k[:, :1]) + module.bias_k], dim=1)
        v = torch.cat([v, torch.zeros_like(v[:, :1]) + module.bias_v], dim=1)
        further += 1
    if module.add_zero_attn:
        k = torch.cat([k, torch.zeros_like(k[:, :1])], dim=1)
        v = torch.cat([v, torch.zeros_like(v[:, :1])], dim=1)
        further += 1
    q, k, v = (torch.unflatten(x, -1, (module.num_heads, module.head_dim)).transpose(1, 2) for x in (q, k, v))

    # Masks that broadcast to (samples, heads, L, S); the further keys are never masked
    masks = []
    causal = is_causal and key_padding_mask is None and not need_weights
    if attn_mask is not None and not causal:
        _is_bool(attn_mask, "attn_mask")
        three = attn_mask.dim() == 3
        masks.append(torch.unflatten(attn_mask, 0, (-1, module.num_heads)) if three else attn_mask)
    if key_padding_mask is not None:
        _is_bool(key_padding_mask, "key_padding_mask")
        masks.append(key_padding_mask.unsqueeze(1).unsqueeze(1))
    if further:
        masks = [F.pad(mask, (0, further)) for mask in masks]

    # softmax, dropout, and the output projection of all heads together
    weights = _weights(q, k, masks, causal=causal, scale=None, zero_rows=not need_weights)
    weights = _dropout(weights, module.dropout, module.training)
    output = (weights @ v).transpose(1, 2).flatten(2)
    output = F.linear(output, module.out_proj.weight, module.out_proj.bias)
    shown = None
    if need_weights:
        shown = weights.mean(dim=1) if average_attn_weights else weights
    if not batched:
        return output.squeeze(0), None if shown is None else shown.squeeze(0)
    return output if module.batch_first else output.transpose(0, 1), shown


def multi_head_attention_forward(*args: object, **kwargs: object) -> NoReturn:
    """Refuses `F.multi_head_attention_forward`, which takes parameters that belong to no module."""
    raise UnsupportedModuleError(
        "the model calls F.multi_head_attention_forward, which the reader does not write out: use "
        "nn.MultiheadAttention, or F.scaled_dot_product_attention between linear layers."
    )


def _project(module: nn.MultiheadAttention, index: int, x: Tensor) -> Tensor:
    """Q, K or V, for index 0, 1 or 2: x times its rows of the module's own parameters."""
    rows = slice(index * module.embed_dim, (index + 1) * module.embed_dim)
    if module.in_proj_weight is not None:
        weight = module.in_proj_weight[rows]
    else:
        weight = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)[index]
    return F.linear(x, weight, None if module.in_proj_bias is None else module.in_proj_bias[rows])


def _weights(
    q: Tensor, k: Tensor, masks: list[Tensor], *, causal: bool, scale: float | None, zero_rows: bool
) -> Tensor:
    """softmax(scale · Q Kᵀ + masks); with `zero_rows`, rows in which every key is masked are 0.

    A mask is bool, where True is left out, or numbers to add.  Rows that are masked entirely are set to 0 before the
    softmax too, which would turn them and their derivatives into NaN.
    """
    scores = (q * (1.0 / math.sqrt(q.size(-1)) if scale is None else scale)) @ k.transpose(-2, -1)
    if causal:  # query i attends to keys 0, ..., i, so that no row is masked entirely
        later = scores.new_ones((q.size(-2), k.size(-2)), dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, _MASKED)
    if not masks:
        return torch.softmax(scores, dim=-1)

    for mask in masks:
        scores = scores.masked_fill(mask, _MASKED) if mask.dtype == torch.bool else scores + mask
    if not zero_rows:
        return torch.softmax(scores, dim=-1)
    blocked = [mask if mask.dtype == torch.bool else mask == _MASKED for mask in masks]
    nothing = (blocked[0] if len(blocked) == 1 else blocked[0] | blocked[1]).all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(nothing, 0.0), dim=-1).masked_fill(nothing, 0.0)


def _dropout(weights: Tensor, p: float, training: bool) -> Tensor:
    return F.dropout(weights, p=p, training=training) if p > 0.0 else weights


def _is_bool(mask: Tensor, name: str) -> bool:
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise TensorError(
            f"attention was given {name} of {mask.dtype}; it takes bool, or numbers to add to the scores: convert the "
            f"mask with {name}.bool()."
        )
    return mask.dtype == torch.bool
