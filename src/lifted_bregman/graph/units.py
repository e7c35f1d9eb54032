"""Classes of units that can only be removed together, because a sum adds them up.

A unit is an output channel of a convolution or an output feature of a linear layer.  Its label is passed on through
calls that act on each unit alone.  Calls that mix units, and unknown ones, hold their units: these must stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx, nn

from lifted_bregman.activations.torch_functions import is_activation_function, read_function
from lifted_bregman.activations.torch_modules import NotLiftableError, is_activation, read_activation
from lifted_bregman.graph.match import name_of
from lifted_bregman.maps.determinism import BATCH_NORM, RANDOM

OUTPUT = "the model's output"
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_POOLING = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.Upsample,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
_POOLING_NAMES = frozenset(
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d interpolate".split()
)
_ALONE = frozenset("contiguous clone dropout normal_cdf float double neg detach".split())
_TOGETHER = frozenset("add sub mul iadd isub imul".split())


@dataclass(frozen=True)
class Labels:
    """The unit of each entry along one dimension of a value."""

    axis: int
    units: tuple[int, ...]


@dataclass
class Units:
    """The units of a model, and where they occur, by the paths of modules."""

    made: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The output units of each convolution or linear layer, in order."""
    read: dict[str, Labels] = field(default_factory=dict)
    """The units that each layer reads."""
    normalised: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The units on which each batch normalisation acts."""
    held: dict[int, str] = field(default_factory=dict)
    """{class of units that must stay: the reason}."""
    _parent: dict[int, int] = field(default_factory=dict)

    def new(self, count: int) -> tuple[int, ...]:
        """The numbers of `count` new units, each alone in its class."""
        start = len(self._parent)
        self._parent |= {unit: unit for unit in range(start, start + count)}
        return tuple(range(start, start + count))

    def class_of(self, unit: int) -> int:
        """The class of a unit: its smallest one."""
        while self._parent[unit] != unit:
            unit = self._parent[unit]
        return unit

    def join(self, one: Labels, other: Labels) -> None:
        """Merges the classes of units in equal places: from now on they are removed together or not at all."""
        for a, b in zip(one.units, other.units, strict=True):
            low, high = sorted((self.class_of(a), self.class_of(b)))
            self._parent[high] = low
            if high in self.held:
                self.held.setdefault(low, self.held[high])

    def hold(self, labels: Labels | None, reason: str) -> None:
        """Marks the classes of the units as held, for a reason that `prune` reports."""
        for unit in labels.units if labels is not None else ():
            self.held.setdefault(self.class_of(unit), reason)


def find_units(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> Units:
    """The units of a model traced with an example, so that values in the graph have shapes."""
    found = Units()
    labels: dict[fx.Node, Labels | None] = {}
    usable = _usable(graph, modules)
    for node in graph.nodes:
        labels[node] = _labels(node, modules, labels, found, usable)
    return found


def _usable(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> set[str]:
    """Modules that are called once and share no parameter: those whose sizes may change."""
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    attributes = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    holders: dict[int, set[int]] = {}
    for module in modules.values():
        for parameter in module._parameters.values():
            holders.setdefault(id(parameter), set()).add(id(module))
    return {
        path
        for path in calls
        if calls.count(path) == 1
        and not any(name.startswith(f"{path}.") for name in attributes)
        and all(p is None or len(holders[id(p)]) == 1 for p in modules[path]._parameters.values())
    }


def _labels(
    node: fx.Node,
    modules: Mapping[str, nn.Module],
    labels: dict[fx.Node, Labels | None],
    found: Units,
    usable: set[str],
) -> Labels | None:
    """The labels of a value; None where it has none."""
    given = [labels[n] for n in node.all_input_nodes]
    shape = getattr(node.meta.get("value"), "shape", None)
    if node.op in ("placeholder", "get_attr"):
        return None
    result: Labels | None = None
    if node.op == "call_module":
        path = str(node.target)
        result, handled = _module(path, modules[path], shape, given, found, path in usable)
        reason = f"{path} ({type(modules[path]).__name__})"
    elif node.op == "output":
        handled, reason = False, OUTPUT
    else:
        result, handled = _function(node, shape, given, found)
        reason = f"{name_of(node)} in {node.meta.get('path', 'model')}"
    if not handled:
        for own in given:
            found.hold(own, reason)
    return result


def _module(
    path: str, module: Any, shape: Any, given: list[Labels | None], found: Units, usable: bool
) -> tuple[Labels | None, bool]:
    own = given[0] if len(given) == 1 else None
    convolution = type(module) in CONVOLUTIONS and module.groups == 1
    if usable and shape is not None and (convolution or type(module) is nn.Linear):
        axis = 1 if convolution else len(shape) - 1
        if own is not None and own.axis == axis:
            found.read[path] = own
        else:
            found.hold(own, f"{path} ({type(module).__name__})")
        found.made[path] = found.new(shape[axis])
        return Labels(axis, found.made[path]), True
    if own is None:
        return None, False
    if usable and isinstance(module, BATCH_NORM) and own.axis == 1:
        found.normalised[path] = own.units
        return own, True
    if isinstance(module, _POOLING) and own.axis == 1 and shape is not None and len(shape) > 2:
        return own, shape[1] == len(own.units)
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return _flattened(own, shape)
    if isinstance(module, (*RANDOM, nn.Identity)) or _acts_alone(module):
        return own, True
    return None, False


def _function(node: fx.Node, shape: Any, given: list[Labels | None], found: Units) -> tuple[Labels | None, bool]:
    name = name_of(node)
    if name in ("cat", "concat", "concatenate"):
        return _concatenated(node, dict(zip(node.all_input_nodes, given, strict=True)), found)
    if shape is None or not given or any(own is None for own in given):
        return None, False
    labelled = [own for own in given if own is not None]
    own = labelled[0]
    pairs = zip(labelled, node.all_input_nodes, strict=True)
    if name in _TOGETHER and all(_fits(other, node, n) and other.axis == own.axis for other, n in pairs):
        for other in labelled[1:]:
            found.join(own, other)
        return own, True
    if len(labelled) != 1:
        return None, False
    if name in _ALONE or (is_activation_function(name) and _function_alone(node, name)):
        return own, True
    if name in _POOLING_NAMES and own.axis == 1 and len(shape) > 2:
        return own, shape[1] == len(own.units)
    if name == "flatten" and node.kwargs.get("start_dim", (*node.args[1:], 0)[0]) == 1:
        return _flattened(own, shape)
    if name == "mean" and own.axis == 1 and len(shape) >= 2 and shape[1] == len(own.units) and _spatial(node):
        return own, True
    return None, False


def _concatenated(node: fx.Node, given: Mapping[fx.Node, Labels | None], found: Units) -> tuple[Labels | None, bool]:
    """The units of all parts in order; units of a part without labels, such as the model's input, are held."""
    whole, parts = node.meta.get("value"), node.args[0] if node.args else None
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    if not isinstance(whole, Tensor) or not isinstance(parts, tuple | list) or not isinstance(dim, int):
        return None, False
    axis = dim % whole.ndim
    if any(own is not None and own.axis != axis for own in given.values()):
        return None, False
    units: list[int] = []
    for part in parts:
        own = given[part]
        if own is None:
            own = Labels(axis, found.new(part.meta["value"].shape[axis]))
            found.hold(own, f"a part of {name_of(node)} that is not made by a layer")
        units += own.units
    return Labels(axis, tuple(units)), True


def _flattened(own: Labels, shape: Any) -> tuple[Labels | None, bool]:
    """(samples, units, ...) as (samples, units · places): each unit has a run of columns."""
    if own.axis != 1 or shape is None or len(shape) != 2 or shape[1] % len(own.units):
        return None, False
    each = shape[1] // len(own.units)
    return Labels(1, tuple(u for u in own.units for _ in range(each))), True


def _fits(own: Labels, node: fx.Node, read: fx.Node) -> bool:
    """Whether a summand has the shape of the sum, so that nothing is broadcast."""
    value, whole = read.meta.get("value"), node.meta["value"]
    return isinstance(value, Tensor) and value.shape == whole.shape and len(own.units) == whole.shape[own.axis]


def _spatial(node: fx.Node) -> bool:
    """Whether a mean runs over dimensions from 2 on."""
    read: Any = node.args[0]
    dims: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    dims = (dims,) if isinstance(dims, int) else dims
    ndim = read.meta["value"].ndim
    return bool(dims) and all(isinstance(d, int) and d % ndim >= 2 for d in dims)


def _acts_alone(module: nn.Module) -> bool:
    """Whether a module is an activation of each number alone."""
    if not is_activation(module):
        return False
    try:
        read = read_activation(module)
    except NotLiftableError:  # GELU and others are no proximal maps, and act on each number
        return isinstance(module, nn.GELU | nn.SiLU | nn.Mish | nn.Hardswish | nn.SELU)
    return read is not None and not read[0].joint


def _function_alone(node: fx.Node, name: str) -> bool:
    try:
        read = read_function(name, tuple(node.args[1:]), {k: v for k, v in node.kwargs.items() if k != "input"})
    except (NotLiftableError, TypeError):
        return False
    return read is not None and not read[0].joint
