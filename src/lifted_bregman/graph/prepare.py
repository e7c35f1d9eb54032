"""Rewrites a trace before the cut: in-place calls become calls that return new tensors, dropout and noise sites."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from lifted_bregman.graph.agree import Mode
from lifted_bregman.graph.match import VIEWS, name_of
from lifted_bregman.graph.refusals import refuse_call
from lifted_bregman.maps.determinism import RANDOM, is_drawing, obstacle, refuse
from lifted_bregman.maps.noise import GaussianNoise
from lifted_bregman.maps.sites import DROPOUT_FUNCTIONS, DropoutSite, NoiseSite, RandomSite

_OPERATORS = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ipow: operator.pow, operator.imatmul: operator.matmul,
}  # fmt: skip
_DROPOUT_NAMES = {"dropout": F.dropout, "dropout1d": F.dropout1d, "dropout2d": F.dropout2d, "dropout3d": F.dropout3d}


@dataclass(frozen=True)
class Skipped:
    """Dropout or noise that was the identity when the model was read, and is left out of the terms."""

    path: str
    owner: nn.Module

    @property
    def active(self) -> bool:
        """Whether it would be random now."""
        return is_drawing(self.owner) if isinstance(self.owner, RANDOM) else self.owner.training

    @property
    def kind(self) -> str:
        """ "dropout" or "noise"."""
        return (NoiseSite if isinstance(self.owner, GaussianNoise) else DropoutSite).kind


def rewrite(graph: fx.Graph, modules: dict[str, nn.Module]) -> tuple[Skipped, ...]:
    """Rewrites the graph in place; removes and returns dropout and noise that are the identity now."""
    _out_of_place(graph, modules)
    skipped = _place_random(graph, modules)
    for node in list(graph.nodes):
        if node.op == "call_module" and type(modules[str(node.target)]) is nn.Identity:
            _drop(graph, node)
    # Remove unread nodes, from the last on, so that their inputs become unread too
    for node in reversed(list(graph.nodes)):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)
    return tuple(skipped)


def _out_of_place(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Replaces in-place calls by calls that return a new tensor; raises if the old tensor is read later."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if not _changes(node, modules):
            continue
        changed = node.args[0] if node.args else node.kwargs.get("input")
        if not isinstance(changed, fx.Node):
            continue
        # All views of the changed tensor: none may be a parameter or buffer, and none may be read later
        same = _aliases(changed)
        kept = next((m for m in same if m.op == "get_attr"), None)
        if kept is not None:
            refuse_call(
                node.meta["path"], node.meta["owner"], node.meta.get("line"),
                f"it changes {str(kept.target).removeprefix('model.')} in place",
                "a map must keep no state: compute a new tensor",
            )  # fmt: skip
        later = [user for m in same for user in m.users if order[user] > order[node]]
        if later:
            module = modules.get(str(node.target)) if node.op == "call_module" else None
            path, owner = (str(node.target), module) if module is not None else (node.meta["path"], node.meta["owner"])
            refuse_call(
                path,
                owner,
                node.meta.get("line"),
                f"it changes a tensor in place that {_described(later[0])} reads afterwards, so that both would share "
                "one variable",
                "use inplace=False, or the function that returns a new tensor",
            )
        # The call that returns a new tensor
        if node.op == "call_function":
            node.target = _OPERATORS.get(node.target) or _plain_function(node)
        elif node.op == "call_method":
            node.target = str(node.target).removesuffix("_")
        if node.op != "call_module":
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != "inplace"}


def _changes(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a call changes its first argument in place."""
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    if node.target in _OPERATORS or node.kwargs.get("inplace") is True:
        return True
    if name in ("relu", "relu6", "elu", "celu", "leaky_relu", "dropout", "hardtanh", "threshold", "selu"):
        places = {"relu": 1, "relu6": 1, "selu": 1, "elu": 2, "celu": 2, "leaky_relu": 2, "dropout": 3}
        place = places.get(name, 3)
        return len(node.args) > place and node.args[place] is True
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_", "not_")


def _aliases(node: fx.Node) -> set[fx.Node]:
    """The nodes that may share memory with `node`: views of it, and what it is a view of."""
    found, todo = set(), [node]
    while todo:
        n = todo.pop()
        if n in found:
            continue
        found.add(n)
        todo += [user for user in n.users if _is_view(user) and user.args and user.args[0] is n]
        if _is_view(n) and n.args and isinstance(n.args[0], fx.Node):
            todo.append(n.args[0])
    return found


def _is_view(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and name_of(node) in VIEWS - {"clone"}


def _plain_function(node: fx.Node) -> Any:
    name = str(getattr(node.target, "__name__", node.target))
    if not name.endswith("_"):
        return node.target
    plain = name.rstrip("_")
    return getattr(torch, plain, None) or getattr(F, plain, None) or node.target


def _place_random(graph: fx.Graph, modules: dict[str, nn.Module]) -> list[Skipped]:
    """Dropout and noise of modules, and dropout of functions that follow a module's mode, become `RandomSite`s."""
    skipped: list[Skipped] = []
    for node in list(graph.nodes):
        # Modules
        if node.op == "call_module" and isinstance(modules[str(node.target)], RANDOM):
            module: Any = modules[str(node.target)]
            if not is_drawing(module):
                skipped.append(Skipped(str(node.target), module))
                _drop(graph, node)
            elif isinstance(module, GaussianNoise):
                _put(node, modules, NoiseSite(module))
            elif type(module) in DROPOUT_FUNCTIONS:
                _put(node, modules, DropoutSite(DROPOUT_FUNCTIONS[type(module)], module, None))
            else:
                refuse(str(node.target), module, obstacle(module) or "it is random: use nn.Dropout")
        elif node.op in ("call_function", "call_method") and name_of(node) in _DROPOUT_NAMES:
            # Functions, whose `training` may follow the module
            given = dict(zip(("input", "p", "training"), node.args, strict=False)) | dict(node.kwargs)
            given.setdefault("training", given.get("train", True))
            p, owner = given.get("p", 0.5), node.meta["owner"]
            if not isinstance(p, int | float):
                refuse_call(node.meta["path"], owner, node.meta.get("line"), "the p of its dropout is a tensor",
                            "give a number")  # fmt: skip
            follows = isinstance(given["training"], Mode)
            if p == 0.0 or given["training"] is False or (follows and not owner.training):
                if p > 0.0 and follows:
                    skipped.append(Skipped(node.meta["path"], owner))
                _drop(graph, node)
            else:
                node.args = (given["input"],)
                node.kwargs = {}
                _put(node, modules, DropoutSite(_DROPOUT_NAMES[name_of(node)], owner, float(p), always=not follows))
    return skipped


def _put(node: fx.Node, modules: dict[str, nn.Module], site: RandomSite) -> None:
    target = f"{node.meta['path']}.{site.kind}{len(modules)}"
    modules[target] = site
    node.op, node.target = "call_module", target
    node.meta["site"] = site


def _drop(graph: fx.Graph, node: fx.Node) -> None:
    node.replace_all_uses_with(node.all_input_nodes[0])
    graph.erase_node(node)


def _described(node: fx.Node) -> str:
    if node.op == "output":
        return "the output"
    if node.op == "call_module":
        return str(node.target)
    return f"{node.meta['path']} ({type(node.meta['owner']).__name__}), {name_of(node)}"
