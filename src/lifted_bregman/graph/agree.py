"""Compares two traces of one model, of different batch sizes and modes, to find what depends on either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from lifted_bregman.graph.proxies import UNKNOWN, value_of

Difference = tuple[fx.Node, str]
"""(node, reason): where two traces differ, and a sentence that says how."""
_MODES = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})
"""Functions with a switch `training` that may follow a module's mode."""


@dataclass(frozen=True)
class BatchSize:
    """Stands in a node's arguments for `multiple` times the number of samples."""

    multiple: int


@dataclass(frozen=True)
class Mode:
    """Stands in a node's arguments for the attribute `training` of the module whose forward method makes the call."""


def agree(
    few: fx.Graph, many: fx.Graph, few_constants: dict[str, Tensor], many_constants: dict[str, Tensor]
) -> Difference | None:
    """Marks the arguments in `few` that follow the batch size or the mode; returns the first other difference, or None.

    few, many  traces of 2 and 3 samples
    """
    first, second = list(few.nodes), list(many.nodes)
    pairs: dict[fx.Node, fx.Node] = {}
    for a, b in zip(first, second, strict=False):
        if a.op != b.op or (a.target != b.target and a.op != "placeholder"):
            return a, "its steps change with the batch size, or with the mode of its modules"
        pairs[a] = b
        if a.op == "get_attr" and a.target in few_constants:
            x, y = few_constants[str(a.target)], many_constants[str(b.target)]
            if x.shape != y.shape or not torch.equal(x, y):
                return a, "it uses a tensor made in Python whose numbers change with the batch size"
            continue
        marked, why = _merge((a.args, dict(a.kwargs)), (b.args, dict(b.kwargs)), pairs, _name(a))
        if why is not None:
            return a, why
        a.args, a.kwargs = marked
        a.meta["shape"], a.meta["batch"] = _layout(value_of(a), value_of(b))
    if len(first) != len(second):
        return first[-1], "its steps change with the batch size, or with the mode of its modules"
    return None


def _merge(a: Any, b: Any, pairs: dict[fx.Node, fx.Node], call: str) -> tuple[Any, str | None]:
    """Argument a, with `BatchSize` and `Mode` where b differs by these, and the reason of any other difference."""
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        same = isinstance(a, fx.Node) and pairs.get(a) is b
        return a, None if same else "its steps change with the batch size, or with the mode of its modules"
    # Containers, part by part
    if isinstance(a, tuple | list) and isinstance(b, tuple | list) and len(a) == len(b):
        parts = [_merge(x, y, pairs, call) for x, y in zip(a, b, strict=True)]
        why = next((reason for _, reason in parts if reason is not None), None)
        return type(a)([part for part, _ in parts]), why
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        found = {key: _merge(a[key], b[key], pairs, call) for key in a}
        why = next((reason for _, reason in found.values() if reason is not None), None)
        return {key: part for key, (part, _) in found.items()}, why
    if isinstance(a, slice) and isinstance(b, slice):
        part, why = _merge((a.start, a.stop, a.step), (b.start, b.stop, b.step), pairs, call)
        return slice(*part), why
    # Values: a different bool is a mode, a different int a multiple of the batch size
    if type(a) is not type(b):
        return a, f"an argument of {call} changes with the batch size or the mode, from {a!r} to {b!r}"
    if isinstance(a, bool) and a != b:
        if call in _MODES:
            return Mode(), None
        return a, f"an argument of {call} changes with the mode of its modules"
    if isinstance(a, int) and a != b:
        multiple, rest = divmod(a, 2)
        if rest == 0 and b == 3 * multiple:
            return BatchSize(multiple), None
        return a, f"an argument of {call} is {a} for 2 samples and {b} for 3, which is no multiple of the batch size"
    if isinstance(a, float) and a != b and not (a != a and b != b):
        return a, f"an argument of {call} is {a:g} for 2 samples and {b:g} for 3; a map must treat each sample alone"
    return a, None


def _layout(a: Any, b: Any) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The shape for two samples, and the dimensions whose size follows the number of samples; None where unknown."""
    if a is UNKNOWN or b is UNKNOWN or not isinstance(a, Tensor):
        return None, None
    if a.ndim != b.ndim:
        return tuple(a.shape), ()
    return tuple(a.shape), tuple(i for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n)


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).strip("_")
