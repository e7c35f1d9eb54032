"""The terms of the lifted energy, each a `Layer`: a map, an activation, and the variables that the map reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from lifted_bregman.activations import Activation
from lifted_bregman.errors import SettingError
from lifted_bregman.graph.gates import Gate
from lifted_bregman.graph.inputs import Input, ModelInput, variable
from lifted_bregman.maps import Borrowing, LayerMap
from lifted_bregman.maps.base import Inputs
from lifted_bregman.maps.sites import Site


@dataclass(frozen=True)
class Layer:
    """One term: x_v = σ(f(x_u, x_w, ...; Θ)) (eq. 1), with the sums per sample that occur in the lifted energy.

    x and z are (samples, ...).  Separable activations act on any feature shape; joint ones act along `dim`: the last
    dimension of dense features, dimension 1 (the channels) of convolutional ones.  Sums run over all features.

    Example:
        >>> from lifted_bregman.graph import read_network
        >>> layer = read_network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))[1]
        >>> layer.activation, layer.path, layer.inputs
        (ReLU(), 'model.0 (Linear)', (0,))
    """

    map: LayerMap
    activation: Activation
    path: str
    """The place of the map in the user's model, e.g. "model.2.1 (Linear)"."""
    dim: int = -1
    inputs: tuple[int, ...] = ()
    """The terms whose variables f reads, 0 for the model's input; a chain has the term before.

    Of a model that takes several tensors, 0 is the first, -1 the second, -2 the third, and so on.
    """
    names: tuple[str, ...] = ()
    """Names of the term for users: paths of its modules in the model, and the name of its value."""

    def label(self, number: int) -> str:
        """The name of the term in the summary; `number`, its position, if it has no name."""
        return self.names[-1] if self.names else str(number)

    def activate(self, z: Tensor) -> Tensor:
        """σ(z) (eq. 9)."""
        return self._undo(self.activation(self._view(z)))

    def prox(self, v: Tensor, scale: float) -> Tensor:
        """prox_{scale·Ψ}(v)."""
        return self._undo(self.activation.prox(self._view(v), scale))

    def psi(self, x: Tensor) -> Tensor:
        """Ψ(x) of each sample; infinity outside the domain."""
        return sum_features(self.activation.potential(self._view(x)))

    def phi(self, x: Tensor) -> Tensor:
        """φ(x) = ½‖x‖² + Ψ(x) of each sample."""
        return half_square(x) + self.psi(x)

    def phi_star(self, z: Tensor) -> Tensor:
        """φ*(z) of each sample (eq. 15)."""
        return sum_features(self.activation.conjugate(self._view(z)))

    def bregman(self, x: Tensor, z: Tensor) -> Tensor:
        """B_Ψ(x, z) = φ(x) + φ*(z) - <x, z> of each sample (eq. 12)."""
        return sum_features(self.activation.bregman(self._view(x), self._view(z)))

    def bregman_units(self, x: Tensor, z: Tensor) -> Tensor:
        """B_Ψ(x, z) by unit, (samples, units), whose sum is `bregman`; a joint activation's group is one unit."""
        if self.activation.joint:
            return self.activation.bregman(self._view(x), self._view(z)).reshape(len(x), -1)
        return self.activation.bregman(x.flatten(1).unsqueeze(-1), z.flatten(1).unsqueeze(-1))

    def contains(self, x: Tensor) -> Tensor:
        """Whether Ψ(x) is finite, for each sample."""
        inside = self.activation.contains(self._view(x))
        return inside if inside.ndim == 1 else inside.flatten(1).all(1)

    def arrange(self, t: Tensor) -> Tensor:
        """A view of t with `dim` as last dimension, as joint activations and penalties need it."""
        if t.ndim == 2 or self.dim == -1:
            return t
        return t.movedim(self.dim, -1)

    def restore(self, t: Tensor) -> Tensor:
        """Undoes `arrange`."""
        if t.ndim == 2 or self.dim == -1:
            return t
        return t.movedim(-1, self.dim)

    # A separable activation needs no rearrangement.

    def _view(self, t: Tensor) -> Tensor:
        return self.arrange(t) if self.activation.joint else t

    def _undo(self, t: Tensor) -> Tensor:
        return self.restore(t) if self.activation.joint else t


class Links:
    """The graph of terms: inputs[l], the variables that term l reads, and readers[v], the terms that read x_v.

    0 is the model's input.  Further inputs have the numbers -1, -2, .. in `inputs`, and no entry in `readers`.

    reads  the variables that each term reads, from term 1 on
    users  the terms in which each parameter block occurs, from block 1 on; by default block l occurs in term l alone

    Example:
        >>> from lifted_bregman.graph import Links
        >>> links = Links([(0,), (1,), (1, 2)])  # term 3 reads the variables 1 and 2, as after a skip connection
        >>> links.readers[1]
        (2, 3)
    """

    def __init__(self, reads: Sequence[tuple[int, ...]], users: Sequence[tuple[int, ...]] | None = None) -> None:
        self.depth = len(reads)
        """L, the number of terms."""
        self.inputs: tuple[tuple[int, ...], ...] = ((), *reads)
        self.users: tuple[tuple[int, ...], ...] = ((), *(users or ((l,) for l in range(1, self.depth + 1))))
        self.readers: tuple[tuple[int, ...], ...] = tuple(self._reading(v) for v in range(self.depth + 1))

    def _reading(self, v: int) -> tuple[int, ...]:
        return tuple(l for l, read in enumerate(self.inputs) if v in read)

    @classmethod
    def chain(cls, depth: int) -> Links:
        """The links of a chain, in which term l reads x_{l-1}."""
        return cls([(before,) for before in range(depth)])

    @property
    def is_chain(self) -> bool:
        """Whether every term reads the one before, and no parameters are shared."""
        return self == Links.chain(self.depth)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Links) and (self.inputs, self.users) == (other.inputs, other.users)

    def __hash__(self) -> int:
        return hash((self.inputs, self.users))

    @cached_property
    def longest_path(self) -> int:
        """The largest number of hidden variables on a path from the input to the output; L - 1 for a chain."""
        length = [0] * (self.depth + 1)
        for term in range(1, self.depth + 1):
            length[term] = 1 + max((length[v] for v in self.inputs[term] if v > 0), default=0)
        return length[-1] - 1

    @cached_property
    def colours(self) -> tuple[tuple[int, ...], ...]:
        """The hidden variables in groups, no two of which share a term; for a chain the odd and the even ones.

        Each variable, in order, takes the first colour that none of its neighbours has.
        """
        groups: list[list[int]] = [[], []]
        colour: dict[int, int] = {}
        for v in range(1, self.depth):
            occurs = (v, *self.readers[v])
            taken = {colour[u] for term in occurs for u in (*self.inputs[term], term) if u in colour}
            colour[v] = next(c for c in range(len(groups) + 1) if c not in taken)
            if colour[v] == len(groups):
                groups.append([])
            groups[colour[v]].append(v)
        return tuple(map(tuple, groups))


@dataclass(frozen=True)
class Network:
    """The terms of a model in topological order, counted from 1: network[1] .. network[L].  0 is the model's input.

    A chain is the case in which term l reads term l - 1, as the paper has it; layers without `inputs` are one.  The
    last term's activation is Identity when the model is read: its `final_activation`, if there is one, belongs to the
    loss.

    Example:
        >>> from lifted_bregman.graph import read_network
        >>> network = read_network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh()))
        >>> len(network.layers), network[1].activation, network.final_activation
        (2, ReLU(), Tanh())
    """

    model: nn.Module
    layers: tuple[Layer, ...]
    final_activation: Activation | None
    shared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Parameters, by their names in the model, that several terms use, and those terms."""
    unused: tuple[str, ...] = ()
    """Parameters of the model, by name, that its output does not depend on."""
    skipped: tuple[Any, ...] = ()
    """Dropout and noise that were the identity when the model was read, and are left out of the terms."""
    inputs: tuple[Input, ...] = (Input(),)
    """The tensors that the model takes: number 0, -1, -2, .. in `Layer.inputs`."""
    modes: tuple[bool, ...] | None = None
    """`training` of all modules when the model was read; None if its forward method is the same in both modes."""
    final_gate: Gate | None = None
    """The gate, such as GELU, whose product is the model's output; None if there is none."""

    def __post_init__(self) -> None:
        linked = tuple(
            layer if layer.inputs else replace(layer, inputs=(before,)) for before, layer in enumerate(self.layers)
        )
        object.__setattr__(self, "layers", _with_owners(linked))

    @property
    def couples_samples(self) -> bool:
        """Whether batch normalisation of a term is in training mode now."""
        return any(layer.map.couples_samples for layer in self.layers)

    @property
    def random(self) -> bool:
        """Whether dropout or noise of a term is in training mode now."""
        return any(layer.map.random for layer in self.layers)

    @property
    def skipped_active(self) -> str | None:
        """ "dropout" or "noise" if the reader left out one that is in training mode now; else None."""
        return next((left.kind for left in self.skipped if left.active), None)

    @property
    def in_other_mode(self) -> bool:
        """Whether the forward method depends on the mode, and the mode has changed since the model was read."""
        return self.modes is not None and self.modes != tuple(module.training for module in self.model.modules())

    @property
    def has_sites(self) -> bool:
        """Whether a term has batch normalisation, dropout or noise, in any mode."""
        return bool(self._sites)

    def takes_indices(self, place: int = 0) -> bool:
        """Whether an input, counted from 0, holds indices of embeddings."""
        return self.index_limit(place) is not None

    def index_limit(self, place: int = 0) -> int | None:
        """The number of entries of the smallest table that an input indexes; None if it indexes none."""
        readers = ((layer.map, which) for layer in self.layers for which, v in enumerate(layer.inputs) if v == -place)
        found = [f.index_limit(which) for f, which in readers]
        return min((limit for limit in found if limit is not None), default=None)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context in which batch normalisation, dropout and noise act as in evaluation mode, and update nothing."""
        with self._all_sites("evaluating"):
            yield

    @contextmanager
    def one_step(self) -> Iterator[None]:
        """A context for one step: masks, noise and batch statistics are found at first use, and kept until its end."""
        for site in self._sites:
            site.begin()
        with self._all_sites("once"):
            yield

    @contextmanager
    def _all_sites(self, flag: str) -> Iterator[None]:
        before = [getattr(site, flag) for site in self._sites]
        for site in self._sites:
            setattr(site, flag, True)
        try:
            yield
        finally:
            for site, old in zip(self._sites, before, strict=True):
                setattr(site, flag, old)

    @cached_property
    def _sites(self) -> tuple[Site, ...]:
        return tuple(site for layer in self.layers for site in layer.map.sites)

    @cached_property
    def links(self) -> Links:
        """Which term reads which variable."""
        users = [[number] for number in range(1, len(self.layers) + 1)]
        for number, layer in enumerate(self.layers, 1):
            lenders = layer.map.lenders.values() if isinstance(layer.map, Borrowing) else ()
            for owner in sorted({owner for owner, _ in lenders}):
                users[owner - 1].append(number)
        return Links([layer.inputs for layer in self.layers], list(map(tuple, users)))

    @property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """readers[v]: the terms whose maps read x_v, in order; (v + 1,) in a chain."""
        return self.links.readers

    def forward(self, X: ModelInput, terms: Iterable[int] | None = None) -> list[Tensor]:
        """x_l = σ_l(f_l(..)) of the terms 1 .. n, by default of all."""
        x: list[Any] = [X]
        for l in range(1, len(self.layers) + 1) if terms is None else terms:
            x.append(self[l].activate(self[l].map.apply(self.read(x, l))))
        return x[1:]

    def read(self, x: Sequence[ModelInput] | Mapping[int, ModelInput], term: int) -> Inputs:
        """The argument of the map of a term, from x_0, x_1, ..: a tensor, or a tuple if it reads several variables."""
        inputs = self.links.inputs[term]
        return variable(x, inputs[0]) if len(inputs) == 1 else tuple([variable(x, v) for v in inputs])

    def named(self, name: str) -> int | None:
        """The term in which a module or value has this name; None if there is none."""
        return next((number for number, layer in enumerate(self.layers, 1) if name in layer.names), None)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, layer: int) -> Layer:
        if not 1 <= layer <= len(self.layers):
            raise SettingError(f"there is no layer {layer}: layers count from 1 to {len(self.layers)}.")
        return self.layers[layer - 1]


def _with_owners(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The terms, where the first one that uses a shared parameter owns it and the others borrow it."""
    owners: dict[int, tuple[int, str]] = {}
    found = []
    for number, layer in enumerate(layers, 1):
        own = {name: p for name, p in layer.map.parameters.items() if p.requires_grad}
        lenders = {name: owners[id(p)] for name, p in own.items() if id(p) in owners}
        owners |= {id(p): (number, name) for name, p in own.items() if id(p) not in owners}
        found.append(replace(layer, map=Borrowing(layer.map, lenders)) if lenders else layer)
    return tuple(found)


def sum_features(t: Tensor) -> Tensor:
    """t of shape (samples, ...) summed to (samples,)."""
    return t if t.ndim == 1 else t.flatten(1).sum(1)


def half_square(x: Tensor) -> Tensor:
    """½‖x‖² of each sample."""
    return 0.5 * sum_features(x.square())
