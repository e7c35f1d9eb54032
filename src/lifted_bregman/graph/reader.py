"""Reads a model into terms; errors for models that cannot be lifted name path, reason and remedy."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from lifted_bregman.activations import Activation, Identity
from lifted_bregman.errors import SettingError, TensorError, UnsupportedModuleError
from lifted_bregman.graph.build import build_layer, mark_channels
from lifted_bregman.graph.cut import Streams, Term, activate_last, cut, find_facts, parameter_names
from lifted_bregman.graph.gates import Gate
from lifted_bregman.graph.match import VIEWS, name_of
from lifted_bregman.graph.prepare import rewrite
from lifted_bregman.graph.refusals import require_unwrapped
from lifted_bregman.graph.terms import Network
from lifted_bregman.graph.trace import inputs_of, trace
from lifted_bregman.graph.verify import require_same_function
from lifted_bregman.maps.base import Map
from lifted_bregman.maps.determinism import refuse


def read_network(
    model: nn.Module,
    example: Tensor | tuple[Tensor, ...] | None = None,
    streams: Streams = Streams.VARIABLES,
) -> Network:
    """The terms of `model` in topological order.

    model    any `nn.Module` whose forward method takes tensors, returns one, and can be traced: its control flow may
      depend on settings and shapes, and not on the numbers in tensors
    example  a few samples, (samples, ...), or a tuple of those where the model takes several tensors.  With it, forward
      may read any shape.  Without it, only the number of samples, x.size(0).
    streams  whether sums that several terms read are variables, or are added up in each of these terms

    An activation's output is a variable.  A value that two terms read is one too, with the identity as activation.
    Maps without parameters fold into the next map with parameters, or into the one before when an activation or the
    end comes first.  Dropout and noise that are the identity now are left out; `network.skipped` has them.

    Example:
        >>> from lifted_bregman.graph import read_network
        >>> network = read_network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        >>> [layer.path for layer in network.layers]
        ['model.0 (Linear)', 'model.2 (Linear)']
    """
    # Check the arguments
    _require_module(model)
    if not isinstance(streams, Streams):
        raise SettingError(f"streams is {streams!r}; it must be Streams.VARIABLES or Streams.DERIVED of lb.graph.")
    given = _as_tuple(example, model)
    _require_parameters(model)
    # Trace: a graph of calls
    graph, constants, same_in_both_modes = trace(model, given)
    everything = model.named_modules(remove_duplicate=False)
    modules: dict[str, nn.Module] = {f"model.{name}" if name else "model": module for name, module in everything}
    _require_one_tensor(graph, model)
    # Rewrite and match: in-place calls, dropout and noise; which calls are activations
    skipped = rewrite(graph, modules)
    facts = find_facts(graph, modules)
    activate_last(graph, facts)
    mark_channels(graph, modules)
    last = next(node for node in graph.nodes if node.op == "output").args[0]
    if not facts.from_parameter or last not in facts.from_input:
        raise UnsupportedModuleError(
            "the model has no map with parameters, so there is nothing to train: add a layer such as nn.Linear."
        )
    # Cut into terms, and build the map of each
    terms = cut(graph, facts, streams)
    numbers = {node: -place for place, node in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    numbers |= {term.node: number for number, term in enumerate(terms, 1)}
    owners = _owners(model)
    layers = [build_layer(term, numbers, modules, owners, constants) for term in terms]
    # The final activation belongs to the loss
    final = _final_activation(terms[-1])
    layers[-1] = replace(layers[-1], activation=Identity())
    shared, unused = _parameter_uses(model, graph, terms, modules)
    modes = None if same_in_both_modes else tuple(module.training for module in model.modules())
    gate = _final_gate(last, modules)
    network = Network(model, tuple(layers), final, shared, unused, skipped, inputs_of(model, given), modes, gate)
    if given is not None:
        require_same_function(network, given, same_in_both_modes)
    return network


def _final_activation(term: Term) -> Activation | None:
    return None if term.end is term.node else term.activation


def _final_gate(last: fx.Node, modules: dict[str, nn.Module]) -> Gate | None:
    """The gate whose product is the output, up to the order of its numbers; None if there is none."""
    while "gate" not in last.meta and len(last.all_input_nodes) == 1:
        module = modules[str(last.target)] if last.op == "call_module" else None
        if not isinstance(module, nn.Flatten | nn.Unflatten) and (module is not None or name_of(last) not in VIEWS):
            return None
        last = last.all_input_nodes[0]
    return last.meta.get("gate")


def _as_tuple(example: Tensor | tuple[Tensor, ...] | None, model: nn.Module) -> tuple[Tensor, ...] | None:
    if example is None:
        return None
    given = example if isinstance(example, tuple) else (example,)
    for x in given:
        if not isinstance(x, Tensor) or x.ndim == 0 or len(x) == 0:
            what = f"a tensor {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise TensorError(
                f"the example holds {what}; expected tensors (samples, ...) with at least one sample, such as X[:2]."
            )
    if len({len(x) for x in given}) > 1:
        raise TensorError(f"the example's tensors have {[len(x) for x in given]} samples; expected the same number.")
    like = next((p for p in model.parameters()), None)
    return given if like is None else tuple(x.detach().to(like.device) for x in given)


def _require_module(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise UnsupportedModuleError(
            f"lift was given a {type(model).__name__}; it reads nn.Module: write the model as nn.Sequential(...), or "
            "as a class with a forward method."
        )
    require_unwrapped("model", model)


def _require_parameters(model: nn.Module) -> None:
    """Raises for parameters without numbers, and for two parameters that share memory."""
    # Parameters hold numbers
    places: dict[int, str] = {}
    for where, module in model.named_modules():
        path = f"model.{where}" if where else "model"
        require_unwrapped(path, module)
        for name, parameter in module.named_parameters(recurse=False):
            if is_lazy(parameter):
                _refuse_lazy(model, where, name)
            if parameter.numel() == 0:
                refuse(
                    path,
                    module,
                    f"its parameter {name} has shape {tuple(parameter.shape)}, which holds no numbers: give the layer "
                    "at least one input and one output, or leave it out",
                )
    # No two of them share memory
    for full, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.is_meta:
            continue
        other = places.setdefault(parameter.data_ptr(), full)
        if other != full:
            where, _, name = full.rpartition(".")
            refuse(
                f"model.{where}",
                model.get_submodule(where),
                f"its parameter {name} is shared with model.{other} through its memory, but is another nn.Parameter: "
                "assign the same nn.Parameter to both, or use copy.deepcopy(module) for one of them",
            )


def _refuse_lazy(model: nn.Module, where: str, name: str) -> None:
    """Names the `lb.Map` around a lazy module, or the module itself."""
    parts = where.split(".")
    for count in range(1, len(parts) + 1):
        module = model.get_submodule(".".join(parts[:count]))
        if isinstance(module, Map) or count == len(parts):
            refuse(
                f"model.{'.'.join(parts[:count])}",
                module,
                f"the size of {name} is not known yet: run the model once on a sample before lifting",
            )


def _require_one_tensor(graph: fx.Graph, model: nn.Module) -> None:
    output = next(node for node in graph.nodes if node.op == "output")
    value = output.args[0]
    kind = None
    if isinstance(value, fx.Node):
        inner = value.meta.get("value")
        if isinstance(inner, tuple | list):
            kind = f"a {type(inner).__name__}"
    elif isinstance(value, dict | tuple | list):
        kind = f"a {type(value).__name__.removeprefix('immutable_')}"
    else:
        kind = "None" if value is None else f"a {type(value).__name__}"
    if kind is not None:
        refuse(
            "model",
            model,
            f"its forward returns {kind} and not one tensor: return the tensor that the loss takes",
        )


def _owners(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """{"model." + name of a parameter or buffer: (the module that holds it, its name there)}."""
    found: dict[str, tuple[nn.Module, str]] = {}
    for where, module in model.named_modules(remove_duplicate=False):
        prefix = f"model.{where}." if where else "model."
        for name in (*module._parameters, *module._buffers):
            found[prefix + name] = (module, name)
    return found


def _parameter_uses(
    model: nn.Module, graph: fx.Graph, terms: list[Term], modules: dict[str, nn.Module]
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Parameters that several terms use, and parameters that no term uses; raises if a use belongs to no term."""
    uses: dict[int, list[int]] = {}
    for number, term in enumerate(terms, 1):
        for key in parameter_names(term.calls, modules):
            uses.setdefault(key, []).append(number)
    live = parameter_names(graph.nodes, modules)
    missing = [name for key, name in live.items() if key not in uses]
    if missing:
        raise UnsupportedModuleError(
            f"the model uses {missing[0]} in a way that belongs to no term; write that part as modules or torch "
            "functions, or wrap it in lb.Map(module)."
        )
    names = {id(p): name for name, p in model.named_parameters()}
    shared = {names[key]: tuple(numbers) for key, numbers in uses.items() if len(numbers) > 1}
    unused = tuple(name for key, name in names.items() if key not in uses)
    return shared, unused
