"""`nn.Transformer` and its parts, as calls of their submodules in the published order; never torch's fast path.

The submodules are called as modules, so that a tracer decomposes the attention inside in turn.  The fast path, which
torch takes in evaluation mode without gradients, sets the outputs at padded positions to 0; this does not.

A mask is used as given, also where torch finds out that it is causal and uses a faster kernel for the same numbers.
Only derivatives with respect to the mask itself differ: torch has none in that case.
"""

from __future__ import annotations

from torch import Tensor, nn


def encoder_layer(
    module: nn.TransformerEncoderLayer,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """`nn.TransformerEncoderLayer`: self-attention, then feed-forward, each added to the stream x.

    norm_first   x ← x + block(norm(x))
    otherwise    x ← norm(x + block(x))
    """

    def attend(x: Tensor) -> Tensor:
        return _call(module.dropout1, _attend(module.self_attn, x, x, src_mask, src_key_padding_mask, is_causal))

    def feed_forward(x: Tensor) -> Tensor:
        return _call(module.dropout2, _feed_forward(module, x))

    x = src
    if module.norm_first:
        x = x + attend(module.norm1(x))
        return x + feed_forward(module.norm2(x))
    x = module.norm1(x + attend(x))
    return _call(module.norm2, x + feed_forward(x))


def decoder_layer(
    module: nn.TransformerDecoderLayer,
    tgt: Tensor,
    memory: Tensor,
    tgt_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    tgt_key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    tgt_is_causal: bool = False,
    memory_is_causal: bool = False,
) -> Tensor:
    """`nn.TransformerDecoderLayer`: as the encoder's, with attention to `memory` between the two."""

    def attend(x: Tensor) -> Tensor:
        return _call(module.dropout1, _attend(module.self_attn, x, x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))

    def attend_to_memory(x: Tensor) -> Tensor:
        own = _attend(module.multihead_attn, x, memory, memory_mask, memory_key_padding_mask, memory_is_causal)
        return _call(module.dropout2, own)

    def feed_forward(x: Tensor) -> Tensor:
        return _call(module.dropout3, _feed_forward(module, x))

    x = tgt
    if module.norm_first:
        x = x + attend(module.norm1(x))
        x = x + attend_to_memory(module.norm2(x))
        return x + feed_forward(module.norm3(x))
    x = module.norm1(x + attend(x))
    x = module.norm2(x + attend_to_memory(x))
    return _call(module.norm3, x + feed_forward(x))


def encoder(
    module: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    """`nn.TransformerEncoder`: the layers in turn, then `norm` if there is one."""
    x = src
    for layer in module.layers:
        x = layer(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=is_causal is True)
    return x if module.norm is None else module.norm(x)


def decoder(
    module: nn.TransformerDecoder,
    tgt: Tensor,
    memory: Tensor,
    tgt_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    tgt_key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Tensor:
    """`nn.TransformerDecoder`: the layers in turn, each with the same `memory`, then `norm` if there is one."""
    x = tgt
    for layer in module.layers:
        x = layer(
            x,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal is True,
            memory_is_causal=memory_is_causal,
        )
    return x if module.norm is None else module.norm(x)


def transformer(
    module: nn.Transformer,
    src: Tensor,
    tgt: Tensor,
    src_mask: Tensor | None = None,
    tgt_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    tgt_key_padding_mask: Tensor | None = None,
    memory_key_padding_mask: Tensor | None = None,
    src_is_causal: bool | None = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Tensor:
    """`nn.Transformer`: decoder(tgt, encoder(src))."""
    memory = module.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
    return _call(
        module.decoder,
        tgt,
        memory,
        tgt_mask=tgt_mask,
        memory_mask=memory_mask,
        tgt_key_padding_mask=tgt_key_padding_mask,
        memory_key_padding_mask=memory_key_padding_mask,
        tgt_is_causal=tgt_is_causal,
        memory_is_causal=memory_is_causal,
    )


def _attend(
    attention: nn.Module, x: Tensor, to: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool
) -> Tensor:
    output: Tensor = attention(
        x, to, to, attn_mask=mask, key_padding_mask=padding, need_weights=False, is_causal=causal
    )[0]
    return output


def _feed_forward(module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, x: Tensor) -> Tensor:
    return _call(module.linear2, module.dropout(module.activation(module.linear1(x))))


def _call(module: nn.Module, *args: Tensor, **options: object) -> Tensor:
    """module(...), of known type."""
    result: Tensor = module(*args, **options)
    return result
