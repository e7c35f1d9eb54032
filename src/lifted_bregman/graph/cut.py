"""Cut: decides which values of a traced model are variables, and which calls form the map of each variable.

Every activation's output is a variable.  A value that two terms would compute becomes a variable with the identity as
activation, so that every use of a parameter belongs to one term.  Calls that only arrange numbers, and what depends on
no input of the model, are repeated in each term that needs them.  A call with parameters gets a variable at its output
when another call with parameters follows, or when its output meets another value, before the activation: parameter
blocks stay convex, and a sum of two branches reads two variables.  `Streams` chooses how residual streams are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch import fx, nn

from lifted_bregman.activations import Activation, Identity
from lifted_bregman.graph.match import VIEWS, Matched, match, name_of
from lifted_bregman.graph.proxies import UNKNOWN, value_of
from lifted_bregman.graph.refusals import refuse_call
from lifted_bregman.maps.determinism import refuse

_IDENTITY = Identity()
_ADDITIONS = frozenset("add iadd radd sub isub rsub subtract".split())


class Streams(Enum):
    """How to cut a sum that several terms read, such as the stream h_k = h_{k-1} + u_k of a residual network.

    Function, objective, energy at the forward state, and gradients in Θ as all λ → ∞ do not depend on it.  DERIVED has
    one variable less for each sum, and no term that ties the sum to its summands: after the same sweeps of
    `ProximalGradient` and `ImplicitSGD` the objective is about half (`benchmarks/residual_cuts.py`, 4 and 8 blocks).
    But term k then reads k variables, a sweep computes of the order of k² maps, and W(h + u_1 + .. + u_k) is no dense
    map any more: its norms come from autograd, which makes sweeps 2 and 3 to 4 times as long, and `GramSweep` moves it
    along the gradient instead of in the metric of its inputs.  So VARIABLES is the default, and DERIVED is for solvers
    that iterate, where sweeps count.

    Example:
        >>> from lifted_bregman.graph import Streams
        >>> class Residual(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.first, self.second, self.last = (nn.Linear(4, 4) for _ in range(3))
        ...     def forward(self, x):
        ...         h = x + self.first(x).relu()
        ...         h = h + self.second(h).relu()
        ...         return self.last(h)
        >>> [len(lb.lift(Residual(), loss=lb.SquaredError(), streams=streams).network.layers) for streams in Streams]
        [4, 3]
    """

    VARIABLES = "a variable with the identity as activation, tied to its summands by ½‖h_k - h_{k-1} - u_k‖²"
    DERIVED = "no variable: each term that reads h_k adds up the variables u_1, .., u_k itself"


@dataclass
class Term:
    """One variable of the graph, and the calls of its map."""

    node: fx.Node
    """The node whose value is the variable."""
    end: fx.Node
    """The node whose value is z: the activation's input, or `node` itself."""
    activation: Activation
    dim: int | None
    calls: list[fx.Node] = field(default_factory=list)
    """The calls of the map, in order, constants and parameters among them."""
    inputs: list[fx.Node] = field(default_factory=list)
    """The variables that the map reads, in the order of the graph."""


@dataclass
class Facts:
    """What the cut needs to know about each node."""

    from_input: set[fx.Node] = field(default_factory=set)
    """Nodes that depend on an input of the model."""
    from_parameter: set[fx.Node] = field(default_factory=set)
    """Nodes that depend on a parameter."""
    parametric: set[fx.Node] = field(default_factory=set)
    """Nodes that depend on an input and use a parameter themselves."""
    matched: dict[fx.Node, Matched] = field(default_factory=dict)
    """What each call is: an activation or a map."""


def find_facts(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> Facts:
    """What every node is and depends on; raises for calls that cannot be lifted."""
    facts = Facts()
    lifted: set[fx.Node] = set()  # nodes that depend on a parameter or an activation
    for node in graph.nodes:
        if node.op == "placeholder":
            facts.from_input.add(node)
        if node.op in ("placeholder", "output"):
            continue
        # What the node depends on
        used = node.all_input_nodes
        own = _own_parameters(node, modules)
        if any(n in facts.from_input for n in used):
            facts.from_input.add(node)
            if own or any(n in facts.from_parameter and n not in facts.from_input for n in used):
                facts.parametric.add(node)
        if own or any(n in facts.from_parameter for n in used):
            facts.from_parameter.add(node)
        if node.op == "get_attr":
            continue
        # What the call is; an activation needs a variable as its argument and a map before it
        depends = node in facts.from_input or node in facts.from_parameter
        differentiable = any((n in facts.from_input or n in facts.from_parameter) and _real(n) for n in used)
        node.meta["data_only"] = not own and not any(n in lifted for n in used)
        found = match(node, modules, depends, differentiable)
        if found.activation is not None:
            if node not in facts.from_input:
                if depends:
                    refuse_call(
                        node.meta["path"], node.meta["owner"], node.meta.get("line"),
                        f"{name_of(node)} is applied to parameters and not to a variable, so that training would "
                        "differentiate it",
                        "wrap the module in lb.Map(module), or train the parameter after the activation",
                    )  # fmt: skip
                found = Matched(None)
            else:
                _require_map_before(node, facts)
        if found.activation is not None or own or any(n in lifted for n in used):
            lifted.add(node)
        facts.matched[node] = found
    return facts


def cut(graph: fx.Graph, facts: Facts, streams: Streams = Streams.VARIABLES) -> list[Term]:
    """The terms of a traced model, in topological order; the last one gives the output."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    output = next(node for node in graph.nodes if node.op == "output")
    last = output.args[0]
    assert isinstance(last, fx.Node)
    variables = {node for node in facts.from_input if _activation(node, facts) is not None} | {last}
    owners: dict[fx.Node, set[fx.Node]] = {}
    # Whether a call with parameters, or with another value, follows the node before the end of its term
    followed: dict[fx.Node, bool] = {}

    # From the output up: a node belongs to the term of its readers, if that is one.
    for node in reversed(list(graph.nodes)):
        if node not in facts.from_input or node.op == "placeholder":
            continue
        if node in variables:
            owners[node], followed[node] = {node}, False
            continue
        readers = {owner for user in node.users for owner in owners.get(user, ())}
        followed[node] = any(_mixes(user, facts) or followed[user] for user in node.users if not _ends(user, facts))
        several = len(readers) > 1 and not _is_repeated(node, facts, streams)
        if several or (node in facts.parametric and followed[node] and not _is_tuple(node)):
            variables.add(node)
            owners[node], followed[node] = {node}, False
        else:
            owners[node] = readers

    terms = []
    for node in sorted(variables, key=order.__getitem__):
        found = _activation(node, facts)
        end = node if found is None else node.all_input_nodes[0]
        activation, dim = (_IDENTITY, None) if found is None else (found.activation, found.dim)
        assert activation is not None
        term = Term(node, end, activation, dim)
        _collect(term, variables, order)
        terms.append(term)
    return terms


def activate_last(graph: fx.Graph, facts: Facts) -> None:
    """Moves a final activation behind the views that follow it, as in sigmoid(f(x)).squeeze(-1).

    A separable activation commutes with calls that only arrange numbers.
    """
    output = next(node for node in graph.nodes if node.op == "output")
    views: list[fx.Node] = []
    node: Any = output.args[0]
    while node.op in ("call_function", "call_method") and name_of(node) in VIEWS and len(node.all_input_nodes) == 1:
        views.append(node)
        node = node.all_input_nodes[0]
    found = _activation(node, facts)
    if not views or found is None or found.activation is None or found.activation.joint:
        return
    if any(len(n.users) > 1 for n in (node, *views)) or any(_is_tuple(n) for n in views):
        return
    first, last = views[-1], views[0]
    first.replace_input_with(node, node.all_input_nodes[0])
    output.replace_input_with(last, node)
    node.replace_input_with(node.all_input_nodes[0], last)
    last.append(node)
    node.meta.update({key: last.meta.get(key) for key in ("value", "shape", "batch", "leads")})


def _collect(term: Term, variables: set[fx.Node], order: Mapping[fx.Node, int]) -> None:
    """The calls between the term's end and the variables that it reads."""
    calls, inputs, todo = set(), set(), [term.end]
    while todo:
        node = todo.pop()
        if node in calls or node in inputs:
            continue
        if node.op == "placeholder" or (node in variables and (node is not term.end or node is not term.node)):
            inputs.add(node)
            continue
        calls.add(node)
        todo += node.all_input_nodes
    term.calls = sorted(calls, key=order.__getitem__)
    term.inputs = sorted(inputs, key=order.__getitem__)


def parameter_names(nodes: Iterable[fx.Node], modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """{id: name within the model} of the parameters that the calls use."""
    found: dict[int, str] = {}
    for node in nodes:
        for name, parameter in _own_parameters(node, modules).items():
            found.setdefault(id(parameter), name.removeprefix("model."))
    return found


def _own_parameters(node: fx.Node, modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters that a node fetches, or those of the module that it calls, by name."""
    target = str(node.target)
    if node.op == "get_attr":
        value = value_of(node)
        return {target: value} if isinstance(value, nn.Parameter) else {}
    if node.op == "call_module":
        return {f"{target}.{name}": p for name, p in modules[target].named_parameters()}
    return {}


def _activation(node: fx.Node, facts: Facts) -> Matched | None:
    found = facts.matched.get(node)
    return found if found is not None and found.activation is not None else None


def _ends(user: fx.Node, facts: Facts) -> bool:
    return user.op == "output" or _activation(user, facts) is not None


def _is_repeated(node: fx.Node, facts: Facts, streams: Streams) -> bool:
    """Whether a call is repeated in each term that needs it: it only arranges numbers, or adds up a derived stream."""
    if node.op not in ("call_function", "call_method"):
        return _is_tuple(node)
    adds = streams is Streams.DERIVED and name_of(node) in _ADDITIONS and node not in facts.parametric
    return adds or name_of(node) in VIEWS or _is_tuple(node)


def _mixes(node: fx.Node, facts: Facts) -> bool:
    """Whether a call uses parameters, or combines several values that depend on an input."""
    return node in facts.parametric or sum(n in facts.from_input for n in node.all_input_nodes) > 1


def _is_tuple(node: fx.Node) -> bool:
    return isinstance(value_of(node), tuple | list)


def _real(node: fx.Node) -> bool:
    """Whether a value may be a floating-point tensor, which carries derivatives."""
    value = value_of(node)
    return value is UNKNOWN or not hasattr(value, "is_floating_point") or value.is_floating_point()


def _named(node: fx.Node) -> str:
    """The name of a call for messages."""
    return str(node.target) if node.op == "call_module" else name_of(node)


def _require_map_before(node: fx.Node, facts: Facts) -> None:
    """Raises for an activation of an activation or of the model's input; decomposed gates may have both."""
    before = node.all_input_nodes[0]
    if node.meta.get("decomposed"):
        return
    path, module = node.meta["path"], node.meta["owner"]
    if _activation(before, facts) is not None:
        called = node.op != "call_module"
        reason = f"{name_of(node) if called else 'it'} follows another activation, {_named(before)}"
        both = "lb.activations.FromScalar(...).as_module()"
        remedy = f"put a map between them, or make one activation of both with {both}"
        refuse_call(path, module, node.meta.get("line") if called else None, reason, remedy)
    if before.op == "placeholder":
        refuse(path, module, "no map comes before it: apply it to the data instead, or start with a map")
