"""Any differentiable map: calls of the user's traced model, with Jacobians by autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn.functional import embedding

from lifted_bregman._autocast import widened
from lifted_bregman._linalg import PowerIteration, certified_bound, positive_bound
from lifted_bregman._no_graph import no_graph
from lifted_bregman.activations.torch_modules import is_activation
from lifted_bregman.errors import ActivationDerivativeError, CompatibilityError
from lifted_bregman.maps._jacobians import (
    as_tuple,
    autograd_pull_back,
    leaves_of,
    normal_in_input,
    normal_in_parameters,
    of_one_input,
)
from lifted_bregman.maps.base import Inputs, LayerMap, Map, PullBack
from lifted_bregman.maps.convolution import Convolution
from lifted_bregman.maps.dense import Dense
from lifted_bregman.maps.determinism import changes_with_mode, require_one_answer, require_pure, submodules
from lifted_bregman.maps.sites import Fetch, Site

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_MATRIX_ENTRIES = 2**22  # a map with at most this many is written out as a matrix for a tight bound


class TracedMap(LayerMap):
    """f(x, Θ) as a `GraphModule` over the user's own modules and parameters.

    graph           takes the variables that f reads, in order, and returns z
    names           parameters of f: the name here, and the name within `graph`
    affine          whether f is affine in x and in Θ, with matrices whose entries have the signs of the weights
    channels_first  whether the features of z are (channels, ...)
    holder          the module with parameters, if there is exactly one; else None
    paths           where the modules stand in the user's model, by their names within `graph`

    Batch normalisation, dropout and noise follow the modes of the user's modules.  `apply` and `linearise` draw new
    random numbers and update running statistics once, as a call of the model does.  Within `frozen()`, and in every
    other method, random numbers and statistics are those of the last such call, so that f is one function.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        names: Mapping[str, str],
        *,
        affine: bool,
        channels_first: bool = False,
        holder: nn.Module | None = None,
        paths: Mapping[str, str] | None = None,
    ) -> None:
        self.graph = graph
        self.core: tuple[TracedMap, Dense | Convolution] | None = None
        """f = g ∘ h with a map h without parameters and one dense or convolution map g: (h, g), if f is such a map."""
        self.affine = affine
        self.channels_first = channels_first
        self._placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.inputs = len(self._placeholders)
        self._holder = holder
        self._names = dict(names)
        self._homes = {name: _home(graph, within) for name, within in self._names.items()}
        self._sites = [module for module in graph.modules() if isinstance(module, Site)]
        paths = paths or {}
        self.maps = tuple(
            (paths.get(name, name), module) for name, module in graph.named_modules() if isinstance(module, Map)
        )
        """Each `lb.Map` in it, with its path."""
        self._changing = [
            (where, inner)
            for path, module in self.maps
            for where, inner in submodules(module, path)
            if changes_with_mode(inner)
        ]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        found = {name: home._parameters[last] for name, (home, last) in self._homes.items()}
        return {name: p for name, p in found.items() if p is not None and p.requires_grad}

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The user's modules that the map calls, in order."""
        called = (self.graph.get_submodule(str(n.target)) for n in self.graph.graph.nodes if n.op == "call_module")
        found = (module.of if isinstance(module, Site) else module for module in called)
        return tuple(module for module in found if not isinstance(module, Fetch))

    @property
    def first_module(self) -> nn.Module | None:
        """The user's module that is given the first input; None if it is given to a function, or to several calls.

        Batch normalisation, dropout and noise keep the shape, and count as the input itself.
        """
        node = self._placeholders[0]
        while len(node.users) == 1:
            node = next(iter(node.users))
            module = self.graph.get_submodule(str(node.target)) if node.op == "call_module" else None
            if not isinstance(module, Site):
                return module
        return None

    @property
    def couples_samples(self) -> bool:  # type: ignore[override]
        """Whether batch normalisation in it is in training mode now."""
        return any(site.couples_samples for site in self._sites)

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Whether dropout or noise in it is in training mode now."""
        return any(site.random for site in self._sites)

    @property
    def sites(self) -> Sequence[Site]:
        return self._sites if self.core is None else [*self._sites, *self.core[0].sites]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """A context in which masks, noise and batch statistics of the last call are used, and nothing is updated."""
        before = [site.frozen for site in self._sites]
        for site in self._sites:
            site.frozen = True
        try:
            yield
        finally:
            for site, old in zip(self._sites, before, strict=True):
                site.frozen = old

    def index_limit(self, which: int = 0) -> int | None:
        """The number of entries of the table, of nn.Embedding or F.embedding, that this input indexes; else None."""
        place = self._placeholders[which]
        found = [entries for node in place.users if (entries := self._entries(node, place)) is not None]
        return min(found, default=None)

    def _entries(self, node: fx.Node, place: fx.Node) -> int | None:
        if node.op == "call_module":
            module = self.graph.get_submodule(str(node.target))
            return module.num_embeddings if isinstance(module, nn.Embedding) else None
        table: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
        if node.target is not embedding or node.args[:1] != (place,) or table.op != "get_attr":
            return None
        return len(getattr(self.graph, str(table.target)))

    def unit_rows(self, weight: Tensor) -> Tensor:
        if not isinstance(self._holder, _TRANSPOSED):
            return super().unit_rows(weight)
        groups = self._holder.groups  # the weight is (groups·inputs, units of a group, ...)
        split: Tensor = weight.unflatten(0, (groups, -1))
        return split.transpose(1, 2).flatten(0, 1).flatten(1)

    def from_unit_rows(self, matrix: Tensor, weight: Tensor) -> Tensor:
        if not isinstance(self._holder, _TRANSPOSED):
            return super().from_unit_rows(matrix, weight)
        inputs = len(weight) // self._holder.groups
        split: Tensor = matrix.unflatten(0, (self._holder.groups, -1)).unflatten(2, (inputs, *weight.shape[2:]))
        return split.transpose(1, 2).flatten(0, 1)

    def require_pure(self) -> None:
        """Raises an error that names a module in an `lb.Map` which is random or couples samples in its present mode."""
        for path, module in self._changing:
            require_pure(module, path)

    def require_one_answer(self, x: Inputs) -> Tensor:
        """z; raises unless each `lb.Map`, tried on its inputs, is a deterministic function of each sample alone."""
        paths = {id(module): path for path, module in self.maps}

        class Trying(fx.Interpreter):
            def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
                module = self.fetch_attr(target)
                if id(module) in paths:
                    require_one_answer(module, paths[id(module)], *args)
                return super().call_module(target, args, kwargs)

        with torch.no_grad(), self.frozen():
            z: Tensor = Trying(self.graph).run(*as_tuple(x))
        return z

    def evaluate(self, x: Inputs) -> Tensor:
        self.require_pure()
        z: Tensor = self.graph(*as_tuple(x))
        return widened(z)

    @no_graph
    def apply(self, x: Inputs) -> Tensor:
        self.require_pure()
        z: Tensor = self.graph(*as_tuple(x))
        return widened(z)

    def linearise(self, x: Inputs) -> tuple[Tensor, PullBack]:
        """z and its pull-back from one forward pass; the pull-back keeps its autograd graph."""
        leaves = leaves_of(x)
        trained = self.parameters
        with torch.enable_grad(), self._differentiating():
            z = widened(self.graph(*leaves))

        def pull(d: Tensor, scale: float = 1.0, inputs: bool = True) -> tuple[Any, dict[str, Tensor]]:
            with self._differentiating(check=False):
                return autograd_pull_back(
                    z, leaves if inputs else (), trained, d, scale, isinstance(x, tuple), keep=True
                )

        return z.detach(), pull

    def pull_back_input(self, x: Inputs, d: Tensor) -> Inputs:
        leaves = leaves_of(x)
        with self._still(), torch.enable_grad(), self._differentiating():
            z = widened(self.graph(*leaves))
            return autograd_pull_back(z, leaves, {}, d, 1.0, isinstance(x, tuple))[0]

    def pull_back_parameters(self, x: Inputs, d: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        if not self._names:
            return {}
        with self._still(), torch.enable_grad(), self._differentiating():
            z = widened(self.graph(*(t.detach() for t in as_tuple(x))))
            return autograd_pull_back(z, (), self.parameters, d, scale, False)[1]

    @no_graph
    def input_curvature(
        self, x: Inputs, power: PowerIteration | None = None, upper: bool = False, which: int = 0
    ) -> float:
        """‖J_x‖₂².  Upper bound: N = |J|ᵀ|J| dominates JᵀJ entry by entry and has no negative entry (`positive_bound`).

        |J| is the map with the absolute values of its weights.  Small maps are also written out as a matrix, whose
        `certified_bound` is tighter; the smaller of the two is returned.
        """
        given = tuple(t[:1].detach() if self.affine else t.detach() for t in as_tuple(x))
        if not upper:
            self._prime(given)
            with self._still(), self._differentiating():
                function, base = of_one_input(self.graph, given, which)
                return (power or PowerIteration()).estimate(normal_in_input(function, base), (base,))
        self._require_affine()
        given = tuple(t.double() for t in given)
        function, base = of_one_input(self._with(lambda p: p.detach().double().abs()), given, which)
        bound = positive_bound(normal_in_input(function, base), (base,))
        exact, _ = of_one_input(self._with(lambda p: p.detach().double()), given, which)
        offset = exact(torch.zeros_like(base))
        if base.numel() * offset.numel() <= _MATRIX_ENTRIES:
            units = torch.eye(base.numel(), dtype=base.dtype, device=base.device).view(-1, *base.shape[1:])
            matrix = (exact(units) - offset).flatten(1)
            estimate = PowerIteration().estimate(lambda v: (matrix @ (matrix.t() @ v[0]),), (matrix[:, 0],))
            bound = min(bound, certified_bound(matrix, estimate))
        return bound

    @no_graph
    def parameter_curvature(self, x: Inputs, power: PowerIteration | None = None, upper: bool = False) -> float:
        """‖J_Θ‖₂².  Upper bound: |x| in place of x makes J_Θ larger and non-negative (`positive_bound`).

        It is tight for inputs that are not negative, such as images and the outputs of ReLU layers.
        """
        values = {name: p.detach() for name, p in self.parameters.items()}
        if not values:
            return 0.0
        given = tuple(t.detach() for t in as_tuple(x))
        if upper:
            self._require_affine()
            given = tuple(t.double().abs() for t in given)
            values = {name: p.double() for name, p in values.items()}
        self._prime(given)
        with self._still(), self._differentiating():
            normal = normal_in_parameters(self._as_function_of_parameters(given), values)
            if upper:
                return positive_bound(normal, tuple(values.values()))
            return (power or PowerIteration()).estimate(normal, tuple(values.values()))

    def _still(self) -> AbstractContextManager[None]:
        return self.frozen() if self._sites else nullcontext()

    def _prime(self, given: tuple[Tensor, ...]) -> None:
        """Draws masks and measures statistics if there are none yet: within `torch.func` that is not possible."""
        if self._sites:
            with self.frozen():
                self.graph(*given)

    @contextmanager
    def _differentiating(self, check: bool = True) -> Iterator[None]:
        """A context for Jacobians: it checks modules, and makes an `ActivationDerivativeError` name the `lb.Map`."""
        if check:
            self.require_pure()
        try:
            yield
        except ActivationDerivativeError as error:
            found = {
                path: [f"{where} ({type(m).__name__})" for where, m in submodules(module, path) if is_activation(m)]
                for path, module in self.maps
            }
            if not found:
                raise
            path = next((path for path, inside in found.items() if inside), self.maps[0][0])
            raise ActivationDerivativeError(
                f"{path} (Map) holds {' and '.join(found[path]) or 'an activation'}, which its Jacobian "
                "differentiates, within forbid_activation_derivatives(): take the activation out of the Map, so that "
                "it stands in the model itself and is lifted; or leave the context."
            ) from error

    def _as_function_of_parameters(self, given: tuple[Tensor, ...]) -> Callable[[dict[str, Tensor]], Tensor]:
        dtype = next((t.dtype for t in given if t.is_floating_point()), None)
        frozen = self._values(lambda p: p.detach() if dtype is None else p.detach().to(dtype))

        def function(values: dict[str, Tensor]) -> Tensor:
            named = frozen | {self._names[name]: value for name, value in values.items()}
            z: Tensor = functional_call(self.graph, named, given)
            return z

        return function

    def _with(self, change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        """f with `change` applied to every parameter."""
        values = self._values(change)

        def function(*given: Tensor) -> Tensor:
            z: Tensor = functional_call(self.graph, values, given)
            return z

        return function

    def _values(self, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        return {name: change(p) for name, p in self.graph.named_parameters()}

    def _require_affine(self) -> None:
        if not self.affine:
            what = type(self._holder).__name__ if self._holder is not None else "this map"
            raise CompatibilityError(
                f"no guaranteed bound on the curvature of {what} is known, because it is any differentiable map: ask "
                "for an estimate (upper=False) and use a step-size rule that checks its own descent, such as "
                "backtracking."
            )


def core_of(f: LayerMap) -> tuple[TracedMap | None, LayerMap]:
    """(h, g) of f = g ∘ h with a map h without parameters; (None, f) if f has no such form."""
    return f.core if isinstance(f, TracedMap) and f.core is not None else (None, f)


def trace_chain(*modules: nn.Module, affine: bool = False, channels_first: bool = False) -> TracedMap:
    """The composition of modules as a map; at most one of them may have parameters."""
    graph, root = fx.Graph(), {}
    node = graph.placeholder("x")
    holders = [(str(i), m) for i, m in enumerate(modules) if any(True for _ in m.parameters())]
    for index, module in enumerate(modules):
        root[f"m{index}"] = module
        node = graph.call_module(f"m{index}", (node,))
    graph.output(node)
    name, holder = holders[0] if holders else ("", None)
    prefix = f"m{name}."
    if isinstance(holder, Map):
        holder, prefix = holder.module, f"{prefix}module."
    own = {} if holder is None else {key: prefix + key for key, _ in holder.named_parameters()}
    return TracedMap(fx.GraphModule(root, graph), own, affine=affine, channels_first=channels_first, holder=holder)


def samples_first(z: Tensor, dim: int, multiple: int, samples: int) -> Tensor:
    """Moves the samples of z from dimension `dim` to dimension 0.

    Dimension `dim` has the size samples·multiple, with the `multiple` rows of one sample next to each other.  If
    `multiple` > 1, these rows become a dimension: with dim=1, z (a, samples·multiple, b) gives a tensor
    (samples, a, multiple, b).
    """
    if multiple > 1:
        z = z.unflatten(dim, (samples, multiple))
    return z.movedim(dim, 0)


def samples_back(x: Tensor, dim: int, multiple: int) -> Tensor:
    """The inverse of `samples_first`: moves the samples of x from dimension 0 back to dimension `dim`."""
    x = x.movedim(0, dim)
    return x.flatten(dim, dim + 1) if multiple > 1 else x


def _home(graph: nn.Module, within: str) -> tuple[nn.Module, str]:
    path, _, last = within.rpartition(".")
    return graph.get_submodule(path), last
