"""The summary of a network: a table of its terms, and notes on shared parameters, randomness and the like."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from lifted_bregman.activations import Identity
from lifted_bregman.activations.torch_modules import is_activation
from lifted_bregman.graph.terms import Layer, Network
from lifted_bregman.maps import Borrowing, Dense, LayerMap, Map, TracedMap
from lifted_bregman.maps.determinism import submodules
from lifted_bregman.maps.sites import DropoutSite, Fetch, NoiseSite, RandomSite, Site

_WORDS = {
    "add": "sum", "iadd": "sum", "sub": "difference", "mul": "product", "truediv": "quotient", "div": "quotient",
    "cat": "concatenate", "getitem": "slice", "masked_fill": "mask", "samples_first": "", "samples_back": "",
    "size": "", "bmm": "matmul", "flatten": "flatten", "view": "reshape", "neg": "minus", "pow": "power",
}  # fmt: skip
_SHORT = {
    nn.LayerNorm: "layer norm", nn.RMSNorm: "RMS norm", nn.GroupNorm: "group norm", nn.Flatten: "flatten",
    nn.Unflatten: "reshape",
}  # fmt: skip


def summarise(network: Network) -> str:
    """The summary of a network as text: one line for each term, and notes below the table.

    Example:
        >>> from lifted_bregman.graph import read_network, summarise
        >>> network = read_network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        >>> print(summarise(network).splitlines()[2])
        1  1     linear 3->4  ReLU()      input  16
    """
    names = {0: "input"}
    if len(network.inputs) > 1:
        names = {-place: given.name for place, given in enumerate(network.inputs)}
    for number, layer in enumerate(network, 1):
        names[number] = layer.label(number)
    rows = [("", "name", "map", "activation", "reads", "parameters")]
    for number, layer in enumerate(network, 1):
        last = number == len(network)
        activation = network.final_activation if last and network.final_activation else layer.activation
        shown = "identity" if isinstance(activation, Identity) else repr(activation)
        shown += " (the loss's)" if last and network.final_activation else ""
        count = sum(p.numel() for p in layer.map.parameters.values())
        reads = ", ".join(names[v] for v in layer.inputs)
        rows.append((str(number), names[number], describe(layer.map), shown, reads, f"{count:,}" if count else "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([table[0], "-" * max(map(len, table)), *table[1:], "", *_notes(network)])


def describe(layer_map: LayerMap) -> str:
    """A map in a few words, such as "conv 3->16, 3x3" or "matmul, product, mask"."""
    f = layer_map.base if isinstance(layer_map, Borrowing) else layer_map
    if not isinstance(f, TracedMap):
        words = _module_words(f.module) if hasattr(f, "module") else type(f).__name__
        return f"flatten, {words}" if isinstance(f, Dense) and f.flatten else words
    found = [_words(node, f.graph) for node in f.graph.graph.nodes if node.op.startswith("call")]
    kept = [word for word in found if word]
    once = [word for place, word in enumerate(kept) if place == 0 or kept[place - 1] != word]
    return ", ".join(once) or "identity"


def _words(node: fx.Node, root: nn.Module) -> str:
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        if isinstance(module, Fetch):
            return ""
        if isinstance(module, DropoutSite):
            return f"dropout {module.p:g}"
        if isinstance(module, NoiseSite):
            return f"noise {module.std:g}"
        return _module_words(module.of if isinstance(module, Site) else module)
    name = str(getattr(node.target, "__name__", node.target)).strip("_")
    if name == "mul" and any(n.target == "size" for n in node.all_input_nodes):  # a multiple of the batch size
        return ""
    return _WORDS.get(name, name.replace("_", " "))


def _module_words(module: Any) -> str:
    if isinstance(module, nn.Linear):
        return f"linear {module.in_features}->{module.out_features}"
    if isinstance(module, nn.modules.conv._ConvNd):
        kind = "transposed conv" if module.transposed else "conv"
        return f"{kind} {module.in_channels}->{module.out_channels}, {'x'.join(map(str, module.kernel_size))}"
    if isinstance(module, nn.Embedding):
        return f"embedding {module.num_embeddings}->{module.embedding_dim}"
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return f"batch norm {module.num_features}"
    if isinstance(module, Map):
        return f"lb.Map({type(module.module).__name__})"
    return _SHORT.get(type(module), type(module).__name__)


def _notes(network: Network) -> list[str]:
    hidden = network.layers[:-1]
    lifted = [layer for layer in hidden if not isinstance(layer.activation, Identity)]
    identities = len(hidden) - len(lifted)
    notes = [
        f"Lifted: {len(lifted)} activations are variables; {identities} further variables have the identity.",
        f"Maps: {sum(not layer.map.affine for layer in network)} of {len(network)} are not known to be affine.",
    ]
    inside = [where for layer in network for where in _activations_inside(layer)]
    notes.append(f"Activations differentiated inside a map: {', '.join(inside) or 'none'}.")
    if network.shared:
        notes.append(f"Shared parameters: {', '.join(_shared(network))}.")
    if network.unused:
        notes.append(f"Parameters that the output does not depend on: {', '.join(network.unused)}.")
    for what, terms in (
        ("Samples are coupled (batch normalisation in training mode)", _which(network, "couples_samples")),
        (f"Random ({_kinds(network)} in training mode)", _which(network, "random")),
    ):
        if terms:
            notes.append(f"{what}: {', '.join(terms)}.")
    for kind in sorted({left.kind for left in network.skipped}):
        left_out = ", ".join(left.path for left in network.skipped if left.kind == kind)
        notes.append(f"Left out, because it was the identity when the model was read: {kind} of {left_out}.")
    return notes


def _kinds(network: Network) -> str:
    """What is random now, such as "dropout and noise"."""
    sites = [site for layer in network for site in layer.map.sites if isinstance(site, RandomSite) and site.random]
    return " and ".join(sorted({site.kind for site in sites}))


def _activations_inside(layer: Layer) -> list[str]:
    f = layer.map.base if isinstance(layer.map, Borrowing) else layer.map
    if not isinstance(f, TracedMap):
        return []
    return [
        f"{where} ({type(m).__name__})"
        for path, module in f.maps
        for where, m in submodules(module, path)
        if is_activation(m)
    ]


def _shared(network: Network) -> list[str]:
    return [f"{name} (terms {', '.join(map(str, terms))})" for name, terms in network.shared.items()]


def _which(network: Network, fact: str) -> list[str]:
    return [layer.path for layer in network if getattr(layer.map, fact)]
