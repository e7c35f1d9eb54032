"""Proxies: stand-ins for tensors while a model is traced.  They know their shape; their numbers are never read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from lifted_bregman.errors import UnsupportedModuleError

if TYPE_CHECKING:
    from lifted_bregman.graph.tracer import ModelTracer

UNKNOWN = object()
"""The value of a node whose value is not known, because no example was given."""
_FACTS = frozenset("shape dtype device ndim layout is_cuda is_sparse is_quantized is_nested itemsize".split())
_READINGS = frozenset(
    "size dim ndimension numel nelement is_floating_point is_complex is_contiguous element_size get_device stride "
    "has_names is_same_size".split()
)
"""Methods that give shapes and kinds, as Python values."""
_NUMBERS = frozenset("item tolist numpy __bool__ __int__ __float__ __index__ __contains__ cpu_numpy".split())
"""Methods that give a tensor's numbers, as Python values."""
_ALIASES: dict[str, tuple[str, tuple[Any, ...]]] = {"mT": ("transpose", (-2, -1)), "data": ("detach", ())}

_PAIRS = frozenset("max min sort topk kthvalue median mode cummax cummin".split())
"""Calls that may give a pair of values and indices."""
_PARTS = {"values": 0, "indices": 1}


class Proxy(fx.Proxy):
    """A tensor of the traced model; `value` is its value for the example, or `UNKNOWN`."""

    tracer: ModelTracer

    @property
    def value(self) -> Any:
        return self.node.meta.get("value", UNKNOWN)

    @property
    def __class__(self) -> type:
        """Makes `isinstance(x, Tensor)` true for tensors of the model."""
        return Tensor if isinstance(self.value, Tensor) else Proxy

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError("the class of a traced tensor is fixed.")

    def __getattr__(self, name: str) -> Any:
        if name in _FACTS:
            if self.value is not UNKNOWN:
                return getattr(self.value, name)
            if name == "shape":
                return UnknownShape(self)
            return self.tracer.ask_for_example(f"it reads .{name} of a tensor")
        if name == "T":
            return self.transpose(0, 1) if self.ndim == 2 else self.permute(*reversed(range(self.ndim)))
        if name == "H":
            return self.mT
        if name in _ALIASES:
            method, arguments = _ALIASES[name]
            return getattr(self, method)(*arguments)
        if name in _PARTS and (isinstance(self.value, tuple) or name_of_target(self.node) in _PAIRS):
            return self._part(_PARTS[name])
        if name in ("requires_grad", "is_leaf", "grad", "grad_fn", "real", "imag", "names"):
            return self.tracer.refuse_here(f"it reads .{name} of a tensor, which tracing cannot follow")
        if not callable(getattr(Tensor, name, None)) and isinstance(self.value, Tensor):
            raise AttributeError(f"a tensor has no attribute {name!r}")
        return _Method(self, name)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.value, Tensor | tuple | list):
            return (self._part(i) for i in range(len(self.value)))
        unpacked = self.tracer.unpacked_length()
        if unpacked is None:
            self.tracer.ask_for_example("it goes through a tensor in a loop")
        return (self._part(i) for i in range(unpacked))

    def _part(self, index: int) -> Any:
        return self.tracer.create_proxy("call_function", operator.getitem, (self, index), {})

    def __len__(self) -> int:
        if self.value is not UNKNOWN:
            return len(self.value)
        return self.tracer.batch_size_of(self, "len(...)")

    def __bool__(self) -> bool:
        return bool(self.tracer.number_of(self, "bool"))

    def __int__(self) -> int:
        return int(self.tracer.number_of(self, "int"))

    def __float__(self) -> float:
        return float(self.tracer.number_of(self, "float"))

    def __index__(self) -> int:
        return int(self.tracer.number_of(self, "index"))

    def __contains__(self, item: object) -> bool:
        return bool(self.tracer.number_of(self, "in"))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.refuse_here(
            "it writes into a part of a tensor, x[...] = y, which changes a variable in place",
            "build the tensor with torch.cat, torch.stack or torch.where",
        )

    def __hash__(self) -> int:
        return id(self)


def _in_place(name: str) -> Callable[[Proxy, Any], Any]:
    function = getattr(operator, name)

    def method(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in ("iadd", "isub", "imul", "itruediv", "ipow", "imatmul"):
    setattr(Proxy, f"__{_name}__", _in_place(_name))


class _Method:
    """A method of a traced tensor, to be called."""

    def __init__(self, proxy: Proxy, name: str) -> None:
        self.proxy, self.name = proxy, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracer, proxy, name = self.proxy.tracer, self.proxy, self.name
        if name in _NUMBERS:
            return getattr(tracer.number_of(proxy, f".{name}()", whole=True), name)(*args, **kwargs)
        if name in _READINGS:
            if proxy.value is not UNKNOWN:
                return getattr(proxy.value, name)(*args, **kwargs)
            if name == "size":
                shape = UnknownShape(proxy)
                return shape[args[0] if args else kwargs["dim"]] if args or kwargs else shape
            return tracer.ask_for_example(f"it calls .{name}() of a tensor")
        return tracer.create_proxy("call_method", name, (proxy, *args), kwargs)


class UnknownShape:
    """The shape of a tensor when no example was given: dimension 0 is the number of samples, no other is known."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            return self.proxy.tracer.batch_size_of(self.proxy, ".shape[0]")
        return self.proxy.tracer.ask_for_example(f"it reads .shape[{index}] of a tensor")

    def __getattr__(self, name: str) -> Any:
        return self.proxy.tracer.ask_for_example("it reads the shape of a tensor")

    def __iter__(self) -> Iterator[Any]:
        self.proxy.tracer.ask_for_example("it reads the shape of a tensor")
        raise UnsupportedModuleError("unreachable")

    def __len__(self) -> int:
        return int(self.proxy.tracer.ask_for_example("it reads the number of dimensions of a tensor"))

    def __eq__(self, other: object) -> bool:
        return bool(self.proxy.tracer.ask_for_example("it compares the shape of a tensor"))

    __hash__ = None  # type: ignore[assignment]


def name_of_target(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    return str(getattr(node.target, "__name__", node.target))


def value_of(node: fx.Node) -> Any:
    """The value of `node` for the example, or `UNKNOWN`."""
    return node.meta.get("value", UNKNOWN)


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a value, which is a tensor or a tuple or list of those."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in tensors(part)] if isinstance(value, tuple | list) else []
