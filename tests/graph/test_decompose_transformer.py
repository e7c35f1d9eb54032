"""Transformers written out equal torch's without its fast path, and show each activation."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lifted_bregman.graph.decompose import FUNCTIONS, MODULES, normal_cdf
from tests.graph.test_decompose import F64, assert_same, covering, draw, targets, trace
from tests.graph.test_decompose_attention import move_samples, random_mask

WIDTH, HEADS, SOURCE, TARGET = 6, 2, 5, 4


def leaky(x):
    return F.leaky_relu(x, 0.3)


ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "callable": leaky, "module": nn.SiLU()}
SEEN = {"relu": F.relu, "gelu": normal_cdf, "callable": F.leaky_relu, "module": torch.sigmoid}
SETTINGS = {
    "activation": list(ACTIVATIONS),
    "norm_first": [True, False],
    "batch_first": [True, False],
    "bias": [True, False],
    "training": [True, False],
    "batched": [True, False],
    "dropout": [0.0, 1.0],
}
MASKS = {"mask": ["none", "bool", "float", "causal", "causal, said"], "padding": [True, False]}


def settings(row):
    names = ("norm_first", "batch_first", "bias", "dropout")
    return {"dim_feedforward": 7, "activation": ACTIVATIONS[row["activation"]], "dtype": F64} | {
        name: row[name] for name in names
    }


def drawn(module, row):
    """All parameters at random, so that no bias is 0 and no scale 1."""
    torch.manual_seed(6)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module.train(row["training"])


def masks(row, n, length):
    """The mask of self-attention and the padding, of one dtype; None for none of it."""
    mask = None
    if row["mask"] in ("bool", "float"):
        mask = random_mask(row["mask"], 5, length, length)
    elif row["mask"] == "causal":  # torch finds it out; bool has no derivative, which torch would drop with the mask
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    elif row["mask"] == "causal, said":
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=F64)
    kind = padding_kind(row)
    padding = random_mask(kind, 8, *((n, length) if row["batched"] else (length,))) if row["padding"] else None
    return mask, padding


def padding_kind(row):
    return "float" if row["mask"] in ("float", "causal, said") else "bool"


def sequence(seed, samples, length, row):
    x = draw(seed, samples, length, WIDTH)
    return move_samples(x, row["batch_first"]) if row["batched"] else x[0]


def assert_written_out(traced, activation, softmaxes, activations):
    calls = targets(traced)
    assert (calls[torch.softmax], calls[SEEN[activation]]) == (softmaxes, activations)
    assert not calls.keys() & FUNCTIONS.keys()
    modules = dict(traced.named_modules())
    kinds = {type(modules[node.target]) for node in traced.graph.nodes if node.op == "call_module"}
    assert kinds <= {nn.Linear, nn.LayerNorm, nn.Dropout} and not kinds & MODULES.keys()


@pytest.mark.parametrize("row", covering(**SETTINGS, **MASKS, layers=[None, 1, 2], norm=[True, False]))
def test_encoders_equal_torch(row):
    module = nn.TransformerEncoderLayer(WIDTH, HEADS, **settings(row))
    if row["layers"]:
        norm = nn.LayerNorm(WIDTH, dtype=F64) if row["norm"] else None
        module = nn.TransformerEncoder(module, row["layers"], norm, enable_nested_tensor=False)
    module = drawn(module, row)
    mask_name = "mask" if row["layers"] else "src_mask"
    names = [
        name for name, used in ((mask_name, row["mask"] != "none"), ("src_key_padding_mask", row["padding"])) if used
    ]
    said = {"is_causal": True} if row["mask"] == "causal, said" else {}

    def make(samples):
        extra = [mask for mask in masks(row, samples, SOURCE) if mask is not None]
        return [sequence(0, samples, SOURCE, row), *extra]

    traced = assert_same(module, lambda own, x, *m: own(x, **dict(zip(names, m, strict=True)), **said), make)
    assert_written_out(traced, row["activation"], row["layers"] or 1, row["layers"] or 1)


@pytest.mark.parametrize("row", covering(**SETTINGS, **MASKS, layers=[None, 1, 2], norm=[True, False]))
def test_decoders_equal_torch(row):
    module = nn.TransformerDecoderLayer(WIDTH, HEADS, **settings(row))
    if row["layers"]:
        module = nn.TransformerDecoder(module, row["layers"], nn.LayerNorm(WIDTH, dtype=F64) if row["norm"] else None)
    module = drawn(module, row)
    options = ("tgt_mask", "tgt_key_padding_mask", "memory_mask", "memory_key_padding_mask")
    used = (row["mask"] != "none", row["padding"], row["mask"] != "none", row["padding"])
    names = [name for name, is_used in zip(options, used, strict=True) if is_used]
    said = {"tgt_is_causal": True} if row["mask"] == "causal, said" else {}

    def make(samples):
        own, padding = masks(row, samples, TARGET)
        kind = padding_kind(row)
        to_memory = None if own is None else random_mask(kind, 20, TARGET, SOURCE)
        shape = (samples, SOURCE) if row["batched"] else (SOURCE,)
        memory_padding = None if padding is None else random_mask(kind, 30, *shape)
        extra = [m for m in (own, padding, to_memory, memory_padding) if m is not None]
        return [sequence(0, samples, TARGET, row), sequence(1, samples, SOURCE, row), *extra]

    traced = assert_same(module, lambda own, x, y, *m: own(x, y, **dict(zip(names, m, strict=True)), **said), make)
    # In the copies that a TransformerDecoder makes of its layer, torch has relu in place of a module.
    copied = row["layers"] and row["activation"] == "module"
    assert_written_out(traced, "relu" if copied else row["activation"], 2 * (row["layers"] or 1), row["layers"] or 1)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    "row", covering(**SETTINGS | {"activation": ["relu", "gelu", "callable"]}, **MASKS, layers=[(1, 2), (2, 1)])
)
def test_transformers_equal_torch(row):
    before, after = row["layers"]
    module = drawn(nn.Transformer(WIDTH, HEADS, before, after, **settings(row)), row)
    masked, padded, said = row["mask"] != "none", row["padding"], row["mask"] == "causal, said"
    options = ("src_mask", "src_key_padding_mask", "tgt_mask", "tgt_key_padding_mask", "memory_key_padding_mask")
    names = [name for name in options if (padded if "padding" in name else masked)]
    causal = {"src_is_causal": True, "tgt_is_causal": True} if said else {}

    def make(samples):
        source, target = masks(row, samples, SOURCE), masks(row, samples, TARGET)
        extra = [m for m in (*source, *target, source[1]) if m is not None]
        return [sequence(0, samples, SOURCE, row), sequence(1, samples, TARGET, row), *extra]

    traced = assert_same(module, lambda own, x, y, *m: own(x, y, **dict(zip(names, m, strict=True)), **causal), make)
    assert_written_out(traced, row["activation"], before + 2 * after, before + after)


PLACES = ("dropout", "dropout1", "dropout2", "self_attn")


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(
    ("kind", "place"),
    [(nn.TransformerEncoderLayer, place) for place in PLACES]
    + [(nn.TransformerDecoderLayer, place) for place in (*PLACES, "dropout3", "multihead_attn")],
)
def test_each_dropout_is_where_torch_has_it(kind, place, norm_first):
    """One of them at a time has p = 1, which sets all of its input to 0 and is not random."""
    row = {"training": True, "batched": True, "batch_first": True}
    module = drawn(kind(WIDTH, HEADS, 7, 0.0, batch_first=True, norm_first=norm_first, dtype=F64), row)
    dropping = getattr(module, place)
    setattr(dropping, "p" if isinstance(dropping, nn.Dropout) else "dropout", 1.0)
    memory = kind is nn.TransformerDecoderLayer

    def make(samples):
        return [sequence(0, samples, TARGET, row), *([sequence(1, samples, SOURCE, row)] if memory else [])]

    assert_same(module, lambda own, *x: own(*x), make)


def test_the_fast_path_gives_the_same_without_padding():
    """torch takes it in evaluation mode without gradients; there the two differ by rounding only."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 7, batch_first=True, dtype=F64)
    module = nn.TransformerEncoder(layer, 2).eval()
    x = draw(0, 3, SOURCE, WIDTH)
    traced = trace(module, lambda own, x: own(x), [x[:2]])
    with torch.no_grad():
        torch.testing.assert_close(traced((x,)), module(x), rtol=0, atol=1e-12)
