"""Attention written out equals torch's, over masks, layouts and projections; its softmax is a call of its own."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lifted_bregman.errors import CompatibilityError, TensorError
from tests.graph.test_decompose import F64, assert_same, covering, draw, targets, trace

INF = float("inf")
HEADS = 2


def random_mask(kind, seed, *shape):
    """Roughly a third of the keys is left out, never the first one."""
    out = draw(seed, *shape) > 0.4
    out[..., 0] = False
    return out if kind == "bool" else draw(seed + 1, *shape).masked_fill(out, -INF)


def move_samples(x, batch_first):
    return x if batch_first else x.transpose(0, 1).contiguous()


def multihead(**settings):
    torch.manual_seed(3)
    module = nn.MultiheadAttention(6, HEADS, dtype=F64, **settings)
    with torch.no_grad():  # torch starts biases at 0, which would hide a bias in the wrong place
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module


@pytest.mark.parametrize(
    "row",
    covering(
        batch_first=[True, False],
        batched=[True, False],
        widths=["same", "other"],
        bias=[True, False],
        add_bias_kv=[True, False],
        add_zero_attn=[True, False],
        mask=["none", "bool2", "float2", "bool3", "float3", "causal"],
        padding=["none", "bool", "float"],
        weights=["none", "average", "each"],
        training=[True, False],
    ),
)
def test_multihead_attention_equals_torch(row):
    names = ("batch_first", "bias", "add_bias_kv", "add_zero_attn")
    widths = {"kdim": 5, "vdim": 7} if row["widths"] == "other" else {}
    module = multihead(**{name: row[name] for name in names}, **widths).train(row["training"])
    causal, length = row["mask"] == "causal", 4
    keys = length if causal else 5
    options = {"need_weights": row["weights"] != "none", "average_attn_weights": row["weights"] == "average"}
    options["is_causal"] = causal
    masked, padded = row["mask"] != "none", row["padding"] != "none"
    padding_kind = "float" if causal or "float" in row["mask"] else "bool" if masked else row["padding"]

    def make(samples):
        n = samples if row["batched"] else 1
        sizes = ((length, 6), (keys, module.kdim), (keys, module.vdim))
        tensors = [draw(i, n, *size) for i, size in enumerate(sizes)]
        tensors = [move_samples(x, module.batch_first) if row["batched"] else x[0] for x in tensors]
        if causal:
            tensors.append(nn.Transformer.generate_square_subsequent_mask(length, dtype=F64))
        elif masked:
            shape = (n * HEADS, length, keys) if row["mask"].endswith("3") else (length, keys)
            tensors.append(random_mask(row["mask"][:-1], 5, *shape))
        if padded:
            tensors.append(random_mask(padding_kind, 9, *((n, keys) if row["batched"] else (keys,))))
        return tensors

    def call(module, query, key, value, *masks):
        named = {"attn_mask": masks[0]} if masked else {}
        if padded:
            named["key_padding_mask"] = masks[-1]
        return module(query, key, value, **named, **options)

    traced = assert_same(module, call, make)
    assert targets(traced)[torch.softmax] == 1
    shown = next(node for node in traced.graph.nodes if node.target is torch.softmax).meta["example"]
    assert shown.shape[:3] == (2 if row["batched"] else 1, HEADS, length)


@pytest.mark.parametrize("batch_first", [True, False])
def test_self_attention_with_a_mask_that_is_a_buffer(batch_first):
    module = multihead(batch_first=batch_first)
    module.register_buffer("block", random_mask("bool", 5, 4, 4))
    assert_same(
        module,
        lambda own, x: own(x, x, x, attn_mask=own.block),
        lambda samples: [move_samples(draw(0, samples, 4, 6), batch_first)],
    )


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_queries_that_may_attend_to_nothing_have_torchs_output(kind, padded, need_weights):
    module = multihead(batch_first=True)
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1] = True
    mask[2, 2:] = True  # and with the padding below nothing is left of row 2
    padding = torch.tensor([True, True, False, False])
    if kind == "float":
        mask, padding = (torch.zeros(m.shape, dtype=F64).masked_fill(m, -INF) for m in (mask, padding))

    def call(own, x, mask, padding):
        return own(x, x, x, attn_mask=mask, key_padding_mask=padding if padded else None, need_weights=need_weights)

    def make(samples):
        return [draw(0, samples, 4, 6), mask, padding.expand(samples, -1)]

    output = call(module, *make(1))[0]
    assert bool(output.isnan().any()) is need_weights  # the two ways torch has
    if need_weights:
        torch.testing.assert_close(trace(module, call, make(1))(make(1))[0], output, equal_nan=True, rtol=0, atol=1e-12)
    else:
        assert_same(module, call, make)


@pytest.mark.parametrize(
    "row",
    covering(
        heads=[(3, 3), (4, 2), None],
        mask=["none", "bool", "float", "per sample", "per head", "causal", "empty row"],
        scale=[None, 0.3],
        longer=["queries", "keys"],
        by_name=[True, False],
    ),
)
def test_scaled_dot_product_attention_equals_torch(row):
    length, keys = (5, 4) if row["longer"] == "queries" else (4, 5)
    heads = row["heads"] or (1, 1)
    grouped = heads[0] != heads[1]
    options = {"is_causal": row["mask"] == "causal", "scale": row["scale"], "enable_gqa": grouped}

    def make(samples):
        shapes = ((heads[0], length, 6), (heads[1], keys, 6), (heads[1], keys, 7))
        tensors = [draw(i, samples, *shape) for i, shape in enumerate(shapes)]
        if row["heads"] is None:
            tensors = [x.squeeze(1) for x in tensors]  # (samples, L, D), without heads
        lead = {"per sample": (samples, 1), "per head": (samples, heads[0])}.get(row["mask"], ())
        lead = lead if row["heads"] else lead[:1]
        if row["mask"] in ("bool", "empty row"):
            takes_part = ~random_mask("bool", 5, length, keys)
            if row["mask"] == "empty row":
                takes_part[1] = False
            tensors.append(takes_part)
        elif row["mask"] not in ("none", "causal"):
            tensors.append(random_mask("float", 5, *lead, length, keys))
        return tensors

    def call(own, query, key, value, *mask):
        if row["by_name"]:
            named = {"attn_mask": mask[0]} if mask else {}
            return F.scaled_dot_product_attention(query=query, key=key, value=value, **named, **options)
        causal = options["is_causal"]
        rest = {name: options[name] for name in ("scale", "enable_gqa")}
        return F.scaled_dot_product_attention(query, key, value, mask[0] if mask else None, 0.0, causal, **rest)

    traced = assert_same(nn.Identity(), call, make)
    assert targets(traced)[torch.softmax] == 1


def test_dropout_of_all_weights_is_where_torch_has_it():
    """With p = 1 dropout is no longer random: every weight is 0."""
    module = multihead(batch_first=True, dropout=1.0)

    def make(samples):
        return [draw(0, samples, 4, 6)]

    for training, need_weights in ((True, True), (True, False), (False, True)):
        module.train(training)
        traced = assert_same(module, lambda own, x, need=need_weights: own(x, x, x, need_weights=need), make)
        assert targets(traced)[F.dropout] == 1

    def call(own, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=1.0)

    assert targets(assert_same(nn.Identity(), call, make))[F.dropout] == 1


def test_every_number_of_the_projections_stays_the_module_s_own():
    module = multihead(batch_first=True)
    traced = trace(module, lambda own, x: own(x, x, x), [draw(0, 2, 4, 6)])
    assert {id(p) for p in traced.parameters()} == {id(p) for p in module.parameters()}
    assert not list(traced.buffers())


def test_masks_that_are_neither_bool_nor_numbers_to_add_are_refused():
    module, x = multihead(batch_first=True), draw(0, 2, 4, 6)
    whole = torch.zeros(4, 4, dtype=torch.uint8)
    with pytest.raises(TensorError, match=r"attn_mask of torch\.uint8"):
        trace(module, lambda own, x: own(x, x, x, attn_mask=whole), [x])
    with pytest.raises(TensorError, match="key_padding_mask"):
        trace(module, lambda own, x: own(x, x, x, key_padding_mask=whole[:2]), [x])
    with pytest.raises(TensorError, match="attn_mask"):
        trace(module, lambda own, x: F.scaled_dot_product_attention(x, x, x, whole), [x])


def test_causal_attention_needs_the_masks_that_torch_needs():
    module, x = multihead(batch_first=True), draw(0, 2, 4, 6)
    with pytest.raises(CompatibilityError, match="without attn_mask"):
        trace(module, lambda own, x: own(x, x, x, is_causal=True), [x])
    mask = torch.ones(4, 4, dtype=torch.bool)
    with pytest.raises(CompatibilityError, match="one of them"):
        trace(module, lambda own, x: F.scaled_dot_product_attention(x, x, x, mask, is_causal=True), [x])
