"""Builds the layer of each term: its calls become a map on the user's modules and parameters."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, fx, nn
from torch.nn import functional as F

from lifted_bregman.errors import UnsupportedModuleError
from lifted_bregman.graph.agree import BatchSize
from lifted_bregman.graph.cut import Term, _own_parameters
from lifted_bregman.graph.match import (
    AFFINE_MODULES,
    CONVOLUTIONS,
    POOLING,
    SUMS,
    VIEWS,
    name_of,
)
from lifted_bregman.graph.proxies import value_of
from lifted_bregman.graph.refusals import refuse_call
from lifted_bregman.graph.terms import Layer
from lifted_bregman.maps.base import LayerMap, Map
from lifted_bregman.maps.convolution import Convolution
from lifted_bregman.maps.dense import Dense
from lifted_bregman.maps.determinism import BATCH_NORM, INSTANCE_NORM
from lifted_bregman.maps.embedding import EmbeddingMap
from lifted_bregman.maps.sites import Fetch, NormSite, Site
from lifted_bregman.maps.traced import TracedMap, samples_back, samples_first

_UNITS_LAST = frozenset("linear embedding matmul bmm flatten einsum layer_norm reshape view permute transpose".split())


def build_layer(
    term: Term,
    numbers: Mapping[fx.Node, int],
    modules: Mapping[str, nn.Module],
    owners: Mapping[str, tuple[nn.Module, str]],
    constants: Mapping[str, Tensor],
) -> Layer:
    """The layer of a term.

    numbers    the number of each variable: 0, -1, -2, ... for the model's inputs, 1, 2, ... for terms
    owners     for every parameter and buffer, the module that holds it and its name there
    """
    inputs = term.inputs
    layout = _layout(term.node)
    channels = _channels_first(term)
    layer_map = _known_map(term, modules)
    if layer_map is None:
        layer_map = _traced_map(term, modules, owners, constants, channels)
        layer_map.core = _core(term, modules, owners, constants)
    dim = term.dim
    if dim is None:
        dim = 1 if layer_map.channels_first else -1
    elif layout is not None:
        dim = _moved(dim, len(term.node.meta["shape"]), *layout)
    return Layer(
        layer_map,
        term.activation,
        _path(term, modules),
        dim,
        tuple(numbers[n] for n in inputs),
        _names(term, modules),
    )


def _known_map(term: Term, modules: Mapping[str, nn.Module]) -> LayerMap | None:
    """The map of a term that is one `nn.Linear`, convolution or embedding; None for any other term."""
    if len(term.inputs) != 1 or not term.calls or _layout(term.node) is not None or _layout(term.inputs[0]) is not None:
        return None
    module: Any = _last_module(term, modules)
    calls = _calls_before(term, module) + term.calls[-1:]
    if type(module) is nn.Linear and len(calls) <= 2 and all(_flattens_samples(c, modules) for c in calls[:-1]):
        return Dense(module, flatten=len(calls) == 2)
    if len(calls) == 1 and type(module) in CONVOLUTIONS:
        return Convolution(module)
    if len(calls) == 1 and type(module) is nn.Embedding:
        try:
            return EmbeddingMap(module)
        except UnsupportedModuleError as error:
            raise UnsupportedModuleError(f"{calls[0].target} (Embedding) cannot be lifted: {error}") from error
    return None


def _core(
    term: Term,
    modules: Mapping[str, nn.Module],
    owners: Mapping[str, tuple[nn.Module, str]],
    constants: Mapping[str, Tensor],
) -> tuple[TracedMap, Dense | Convolution] | None:
    """(h, g) with z = g(h(x)), if the last call is a dense or convolution map g, and h has no parameters; else None."""
    last = term.calls[-1] if term.calls else None
    if last is None or last is not term.end or _layout(last) is not None:
        return None
    module: Any = _last_module(term, modules)
    known = type(module) is nn.Linear or type(module) in CONVOLUTIONS
    before = last.args[0] if last.args and not (last.op == "call_module" and len(last.args) > 1) else None
    if not known or not isinstance(before, fx.Node) or before not in term.calls or _layout(before) is not None:
        return None
    head = replace(term, node=before, end=before, calls=_calls_before(term, module))
    if any(_own_parameters(node, modules) for node in head.calls):
        return None
    main = Dense(module) if type(module) is nn.Linear else Convolution(module)
    return _traced_map(head, modules, owners, constants, channels=False), main


def _last_module(term: Term, modules: Mapping[str, nn.Module]) -> nn.Module | None:
    """The module that a term calls last; for F.linear with parameters of the model, an `nn.Linear` that holds them."""
    last = term.calls[-1]
    if last.op == "call_module":
        return None if last.kwargs else modules[str(last.target)]
    if last.target is not F.linear:
        return None
    given = dict(zip(("input", "weight", "bias"), last.args, strict=False)) | dict(last.kwargs)
    weight, bias = (_parameter(given.get(name)) for name in ("weight", "bias"))
    if weight is None or (bias is None and given.get("bias") is not None):
        return None
    module = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    module.weight = weight
    if bias is not None:
        module.bias = bias
    return module


def _calls_before(term: Term, module: nn.Module | None) -> list[fx.Node]:
    """The calls before the last one, without the parameters of `module` that are fetched for it."""
    held = [] if module is None else list(module.parameters())
    return [node for node in term.calls[:-1] if not any(_parameter(node) is p for p in held)]


def _parameter(node: Any) -> nn.Parameter | None:
    """The parameter of the model that a node fetches, None for any other node."""
    value = value_of(node) if isinstance(node, fx.Node) and node.op == "get_attr" else None
    return value if isinstance(value, nn.Parameter) else None


def _flattens_samples(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_module":
        module: Any = modules[str(node.target)]
        return type(module) is nn.Flatten and bool((module.start_dim, module.end_dim) == (1, -1))
    if node.op not in ("call_function", "call_method"):
        return False
    rest = node.args[1:]
    if name_of(node) == "flatten":
        given = dict(zip(("start_dim", "end_dim"), rest, strict=False)) | dict(node.kwargs)
        return bool(given.get("start_dim", 0) == 1 and given.get("end_dim", -1) == -1)
    if name_of(node) in ("view", "reshape"):
        size = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
        return tuple(size) == (BatchSize(1), -1)
    return False


def _traced_map(
    term: Term,
    modules: Mapping[str, nn.Module],
    owners: Mapping[str, tuple[nn.Module, str]],
    constants: Mapping[str, Tensor],
    channels: bool,
) -> TracedMap:
    """The map of any term: a graph of its calls on the user's modules, with the term's inputs as placeholders."""
    graph = fx.Graph()
    root: dict[str, Any] = {}
    held: dict[str, nn.Module] = {}
    copies: dict[fx.Node, fx.Node] = {}
    placed = [graph.placeholder(f"x{i}") for i in range(len(term.inputs))]
    sizes: dict[int, fx.Node] = {}

    def size(mark: BatchSize) -> fx.Node:
        """A node for the number of samples, or a multiple of it."""
        if 1 not in sizes:
            if not placed:
                raise UnsupportedModuleError(
                    f"{_path(term, modules)} cannot be lifted: it reads no variable, but makes a tensor of the batch's "
                    "size: let it read one."
                )
            sizes[1] = graph.call_method("size", (placed[0], 0))
        if mark.multiple not in sizes:
            sizes[mark.multiple] = graph.call_function(operator.mul, (sizes[1], mark.multiple))
        return sizes[mark.multiple]

    # Inputs, with their samples back in the dimension where the model has them
    for node, place in zip(term.inputs, placed, strict=True):
        layout = _layout(node) if node.op != "placeholder" else None
        copies[node] = place if layout is None else graph.call_function(samples_back, (place, *layout))
    # Calls, with parameters, buffers and modules of the user's model
    for node in term.calls:
        args, kwargs = _replaced((node.args, dict(node.kwargs)), copies, size)
        target: Any = node.target
        if node.op == "get_attr":
            target = str(target).replace(".", "__")
            if str(node.target) in constants:
                root[target] = constants[str(node.target)]
            elif isinstance(value_of(node), nn.Parameter):
                root[target] = value_of(node)
            else:  # a buffer, which model.to(device) replaces
                root[target] = Fetch(*owners[str(node.target)])
                copies[node] = graph.call_module(target, ())
                continue
            copies[node] = graph.get_attr(target)
            continue
        if node.op == "call_module":
            module = modules[str(target)]
            name = str(target).replace(".", "__")
            if isinstance(module, BATCH_NORM + INSTANCE_NORM) and not isinstance(module, nn.SyncBatchNorm):
                copies[node] = _norm(graph, root, module, name, args)
            else:
                root[name] = module
                held[name] = module
                copies[node] = graph.call_module(name, args, kwargs)
            continue
        copies[node] = graph.create_node(node.op, target, args, kwargs)
    # Output, with its samples in dimension 0
    z = copies[term.end]
    layout = _layout(term.node)
    if layout is not None:
        z = graph.call_function(samples_first, (z, *layout, size(BatchSize(1))))
    graph.output(z)
    names, holder = _parameter_names(term, modules)
    paths = {name: str(name).replace("__", ".") for name in held}
    built = fx.GraphModule(root, graph)
    return TracedMap(built, names, affine=_affine(term, modules), channels_first=channels, holder=holder, paths=paths)


def _norm(graph: fx.Graph, root: dict[str, Any], module: Any, name: str, args: Any) -> fx.Node:
    """A call of batch or instance normalisation by a `NormSite`, with the module's parameters as arguments."""
    root[f"{name}__site"] = NormSite(module)
    parameters: list[fx.Node | None] = []
    for key in ("weight", "bias"):
        parameter = getattr(module, key)
        if parameter is not None:
            root[f"{name}__{key}"] = parameter
        parameters.append(graph.get_attr(f"{name}__{key}") if parameter is not None else None)
    return graph.call_module(f"{name}__site", (*args, *parameters))


def _replaced(argument: Any, copies: Mapping[fx.Node, fx.Node], size: Any) -> Any:
    """Arguments with the nodes of the term's own graph."""
    if isinstance(argument, fx.Node):
        return copies[argument]
    if isinstance(argument, BatchSize):
        return size(argument)
    if isinstance(argument, tuple | list):
        return type(argument)(_replaced(a, copies, size) for a in argument)
    if isinstance(argument, dict):
        return {key: _replaced(a, copies, size) for key, a in argument.items()}
    if isinstance(argument, slice):
        return slice(*(_replaced(a, copies, size) for a in (argument.start, argument.stop, argument.step)))
    return argument


def _parameter_names(term: Term, modules: Mapping[str, nn.Module]) -> tuple[dict[str, str], nn.Module | None]:
    """{name in the map: name within its graph} of each parameter, and the module that holds them if it is only one.

    Names in the map are those within that module, or those within the model if there are several modules.
    """
    # Parameters of one module that is called
    sources = [node for node in term.calls if _own_parameters(node, modules)]
    if len({str(node.target) for node in sources}) == 1 and sources[0].op == "call_module":
        target, module = str(sources[0].target), modules[str(sources[0].target)]
        inner = module.module if isinstance(module, Map) else module
        prefix = target.replace(".", "__") + ("__" if _is_norm(module) else ".")
        prefix += "module." if isinstance(module, Map) else ""
        return {name: prefix + name for name, _ in inner.named_parameters()}, inner
    # Parameters of the F.linear with which the term ends
    if (last := _last_module(term, modules) if term.calls else None) is not None:
        held = {id(p): name for name, p in last.named_parameters()}
        if all(id(_parameter(node)) in held for node in sources):
            return {held[id(_parameter(node))]: str(node.target).replace(".", "__") for node in sources}, last
    # Parameters from several places
    names: dict[str, str] = {}
    seen: set[int] = set()
    for node in sources:
        target = str(node.target)
        for full, parameter in _own_parameters(node, modules).items():
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            within = target.replace(".", "__")
            if node.op == "call_module":
                within += ("__" if _is_norm(modules[target]) else ".") + full.removeprefix(f"{target}.")
            names[full.removeprefix("model.")] = within
    return names, None


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, BATCH_NORM + INSTANCE_NORM) and not isinstance(module, nn.SyncBatchNorm)


def _affine(term: Term, modules: Mapping[str, nn.Module]) -> bool:
    """Whether the map is affine in inputs and parameters, with matrices whose entries have the signs of the weights."""
    for node in term.calls:
        if node.op == "get_attr":
            continue
        if node.op == "call_module":
            if type(modules[str(node.target)]) not in AFFINE_MODULES:
                return False
        elif name_of(node) not in VIEWS | SUMS:
            return False
    return True


def _layout(node: fx.Node) -> tuple[int, int] | None:
    """(dimension of the samples, rows of each sample) of a value; None for one row per sample in dimension 0."""
    shape, batch = node.meta.get("shape"), node.meta.get("batch")
    if shape is None or batch is None or node.op == "placeholder":
        return None
    if len(batch) != 1:
        what = "no dimension that holds the samples" if not batch else "more than one dimension with the samples"
        refuse_call(
            node.meta["path"], node.meta["owner"], node.meta.get("line"),
            f"the value of {name_of(node)} has {what}, but a variable has the samples in one",
            "keep samples apart, in dimension 0",
        )  # fmt: skip
    dim, multiple = batch[0], shape[batch[0]] // 2
    return None if (dim, multiple) == (0, 1) else (dim, multiple)


def _moved(dim: int, ndim: int, at: int, multiple: int) -> int:
    """Where dimension `dim` is after `samples_first`."""
    dim %= ndim
    if dim > at:
        return dim + (multiple > 1)
    return dim + 1


def _channels_first(term: Term) -> bool:
    return bool(term.end.meta.get("channels", False))


def mark_channels(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> None:
    """Sets node.meta["channels"]: whether features are (channels, ...); None if no layer before the node tells."""
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        known = [n.meta["channels"] for n in node.all_input_nodes if n.meta.get("channels") is not None]
        before = known[0] if known else None
        if node.op == "call_module":
            module = modules[str(node.target)]
            if isinstance(module, (*CONVOLUTIONS, nn.Unflatten)):
                before = True
            elif isinstance(module, POOLING) and before is None:
                before = True
            elif isinstance(module, (nn.Linear, nn.Flatten, nn.Embedding, nn.LayerNorm, Map)):
                before = False
        elif name_of(node) in ("conv1d", "conv2d", "conv3d"):
            before = True
        elif name_of(node) in _UNITS_LAST:
            before = False
        node.meta["channels"] = before


def _path(term: Term, modules: Mapping[str, nn.Module]) -> str:
    """The place of the map in the model, for messages: its module with parameters, else its first call."""
    calls = [node for node in term.calls if node.op in ("call_module", "call_function", "call_method")]
    chosen = next((n for n in calls if n.op == "call_module" and _own_parameters(n, modules)), None)
    chosen = chosen or next((n for n in calls if n.op == "call_module"), None) or (calls[0] if calls else term.node)
    if chosen.op == "call_module":
        module = modules[str(chosen.target)]
        if isinstance(module, Site):
            return f"{chosen.meta['path']} ({type(chosen.meta['owner']).__name__})"
        return f"{chosen.target} ({type(module).__name__})"
    return f"{chosen.meta['path']} ({type(chosen.meta['owner']).__name__}), {name_of(chosen)}"


def _names(term: Term, modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Paths of the term's modules within the model, and the name of its value."""
    nodes = [*term.calls, term.node]
    called = [str(n.target) for n in nodes if n.op == "call_module"]
    paths = [path.removeprefix("model.") for path in called if not isinstance(modules[path], Site)]
    return tuple(dict.fromkeys([*paths, term.node.name.removeprefix("model_")]))
