"""The tracer: it runs a model's forward method on proxies and records each call as a node of a graph."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from lifted_bregman.activations import ActivationModule
from lifted_bregman.errors import LiftedBregmanError
from lifted_bregman.graph.decompose import FUNCTIONS, MODULES
from lifted_bregman.graph.proxies import UNKNOWN, Proxy, tensors, value_of
from lifted_bregman.graph.refusals import (
    current_line,
    is_user_code,
    line_of,
    refuse_call,
    require_no_hooks,
    require_unwrapped,
)
from lifted_bregman.maps.base import Map
from lifted_bregman.maps.determinism import refuse
from lifted_bregman.maps.noise import GaussianNoise

FACTORIES = frozenset(
    {torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.eye, torch.linspace, torch.tril_indices}
)
"""Functions that make a tensor from sizes, among which the number of samples may be."""
_RANDOM = frozenset(
    {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial,
     torch.rand_like, torch.randn_like, torch.randint_like, torch.poisson}
)  # fmt: skip
WRAP = "wrap it in lb.Map(module) if it is a differentiable map without activation"
"""The remedy for a module that the tracer cannot follow, in messages."""


class _Root(nn.Module):
    """Holds the model under the name "model", with which paths in messages begin."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def _root(count: int) -> type[_Root]:
    """A root whose forward takes `count` tensors."""
    names = ", ".join(f"x{i}" for i in range(count))
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {names}):\n    return self.model({names})\n", scope)
    return type("_Root", (_Root,), {"forward": scope["forward"]})


class _RecordFactories(TorchFunctionMode):
    """Records calls that make tensors from sizes: without a proxy among their arguments fx does not see them."""

    def __init__(self, tracer: ModelTracer) -> None:
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.tracer.evaluating:
            if func in _RANDOM:
                self.tracer.refuse_random(func)
            if func in FACTORIES:
                return self.tracer.create_proxy("call_function", func, args, kwargs)
        return func(*args, **kwargs)


class ModelTracer(fx.Tracer):
    """Records the calls of a model for a batch of `samples`; `inputs` are example tensors, None without an example."""

    proxy_buffer_attributes = True

    def __init__(self, model: nn.Module, inputs: Sequence[Tensor | None], samples: int) -> None:
        super().__init__()
        self.model, self.inputs, self.samples = model, list(inputs), samples
        self.evaluating = False
        self.decomposing = 0
        self.constants: dict[str, Tensor] = {}
        self._names = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
        self._within: list[tuple[str, nn.Module]] = [("model", model)]
        self._failed: tuple[str, nn.Module] | None = None
        self._placed = 0

    def run(self) -> fx.Graph:
        """The graph of the model's forward method."""
        root = _root(len(self.inputs))(self.model)
        try:
            with torch.no_grad(), _RecordFactories(self):
                return self.trace(root)
        except LiftedBregmanError:
            raise
        except Exception as error:
            self._explain(error)

    # Recording

    def proxy(self, node: fx.Node) -> Proxy:
        return Proxy(node, self)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        """A proxy for the result of a call; a Python value if the call only reads a shape."""
        if kind == "call_function" and target in FUNCTIONS:
            with self._decomposed():
                return FUNCTIONS[target](*args, **kwargs)
        if kind == "call_function" and target in _RANDOM:
            self.refuse_random(target)
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        node = proxy.node
        path, owner = self._within[-1]
        node.meta.update(path=path, owner=owner, line=current_line(), decomposed=self.decomposing > 0)
        if kind == "placeholder":
            example = self.inputs[self._placed]
            node.meta.update(value=UNKNOWN if example is None else example, leads=True)
            self._placed += 1
            return proxy
        node.meta["value"] = self._evaluate(node)
        value = node.meta["value"]
        if value is UNKNOWN or isinstance(value, Tensor) or tensors(value):
            return proxy
        self.graph.erase_node(node)
        if isinstance(value, bool) and str(getattr(target, "__name__", target)) in ("equal", "allclose", "is_nonzero"):
            self.refuse_here("its control flow depends on the numbers in a tensor")
        return value

    def create_arg(self, a: Any) -> Any:
        """An argument as fx stores it.  Tensors that are neither parameters nor buffers are kept in `constants`."""
        if isinstance(a, fx.Proxy):
            return a.node
        if isinstance(a, Tensor):
            name = self._names.get(id(a))
            if name is None and isinstance(a, nn.Parameter):
                self.refuse_here(
                    "it uses a parameter that model.parameters() does not list",
                    "assign it to an attribute of a module or to nn.ParameterList",
                )
            target = f"model.{name}" if name is not None else f"_constant{len(self.constants)}"
            if name is None:
                self.constants[target] = a.detach()
            node = self.create_node("get_attr", target, (), {})
            node.meta.update(
                path=self._within[-1][0], owner=self._within[-1][1], line=current_line(), value=a, decomposed=False
            )
            return node
        if isinstance(a, torch.Size):
            return tuple(a)
        return super().create_arg(a)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.evaluating else super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Torch's own modules, maps, noise and activations; not containers."""
        if isinstance(m, Map | GaussianNoise | ActivationModule):
            return True
        if isinstance(m, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            return False
        return type(m).__module__.startswith("torch.nn")

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.evaluating or isinstance(m, _Root):
            return forward(*args, **kwargs)
        path = self._path(m)
        require_unwrapped(path, m)
        if not isinstance(m, Map):
            require_no_hooks(path, m)
        self._within.append((path, m))
        try:
            if type(m) in MODULES:
                with self._decomposed():
                    return MODULES[type(m)](m, *args, **kwargs)
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self._failed = self._failed or (path, m)
            raise
        finally:
            self._within.pop()

    @contextmanager
    def _decomposed(self) -> Iterator[None]:
        self.decomposing += 1
        try:
            yield
        finally:
            self.decomposing -= 1

    def _path(self, module: nn.Module) -> str:
        try:
            return str(self.path_of_module(module))
        except NameError:
            path, owner = self._within[-1]
            refuse(
                path,
                owner,
                f"it calls a {type(module).__name__} that is no submodule of the model: assign it to an attribute in "
                "__init__, or to nn.ModuleList",
            )

    # Values for the example

    def _evaluate(self, node: fx.Node) -> Any:
        used = node.all_input_nodes
        node.meta["leads"] = _leads(node, self.samples)
        if any(value_of(n) is UNKNOWN for n in used):
            return UNKNOWN
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
        self.evaluating = True
        try:
            if node.op == "get_attr":
                return _attribute(self.root, str(node.target), self.constants)
            if node.op == "call_function":
                return node.target(*_cloned(node, args), **kwargs)  # type: ignore[operator]
            if node.op == "call_method":
                return getattr(_cloned(node, args)[0], str(node.target))(*args[1:], **kwargs)
            module = self.root.get_submodule(str(node.target))
            return module(*(a.clone() if isinstance(a, Tensor) else a for a in args), **kwargs)
        finally:
            self.evaluating = False

    def number_of(self, proxy: Proxy, what: str, whole: bool = False) -> Any:
        """The numbers of a constant tensor; raises for one that depends on inputs or parameters."""
        if proxy.value is UNKNOWN or _depends(proxy.node):
            self.refuse_here(
                f"its control flow depends on the numbers in a tensor ({what}), which the terms would not follow",
                "let settings or shapes decide",
            )
        return proxy.value

    def batch_size_of(self, proxy: Proxy, what: str) -> int:
        """The number of samples; raises, to ask for an example, unless dimension 0 certainly holds them."""
        if proxy.node.meta.get("leads"):
            return self.samples
        return int(self.ask_for_example(f"it reads {what} of a tensor whose dimension 0 may not be the samples"))

    def unpacked_length(self) -> int | None:
        """The number of names on the left of `a, b, c = tensor`, from the bytecode of the user's forward method."""
        frame = sys._getframe(2)
        while frame is not None and not is_user_code(frame.f_code.co_filename):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None:
            return None
        instructions = [i for i in dis.get_instructions(frame.f_code) if i.opname != "CACHE"]
        here = next((place for place, i in enumerate(instructions) if i.offset >= frame.f_lasti), len(instructions))
        for instruction in instructions[here : here + 2]:
            if instruction.opname == "UNPACK_SEQUENCE":
                return int(instruction.argval)
        return None

    # Refusals

    def refuse_here(self, reason: str, remedy: str | None = None) -> NoReturn:
        """Raises an error that names the module whose forward method runs now, and the line."""
        path, owner = self._within[-1]
        refuse_call(path, owner, current_line(), reason, WRAP if remedy is None else f"{remedy}, or {WRAP}")

    def refuse_random(self, function: Any) -> NoReturn:
        """Raises an error for random numbers in a forward method."""
        path, owner = self._within[-1]
        reason = f"it draws random numbers by torch.{function.__name__}"
        refuse_call(
            path,
            owner,
            current_line(),
            reason,
            "use nn.Dropout or lb.GaussianNoise, or give the numbers as an input of the model",
        )

    def ask_for_example(self, reason: str) -> NoReturn:
        """Raises an error that asks for a few samples."""
        path, owner = self._within[-1]
        refuse_call(
            path, owner, current_line(), f"{reason}, which depends on the data", "give a few samples, example=X[:2]"
        )

    def _explain(self, error: Exception) -> NoReturn:
        path, owner = self._failed or ("model", self.model)
        said = str(error).strip().splitlines()
        reason = f"its forward cannot be traced: {type(error).__name__}: {said[0] if said else ''}".rstrip(". :")
        remedy = f"write it with torch functions on tensors, or {WRAP}"
        if all(x is None for x in self.inputs):
            remedy = f"give a few samples, example=X[:2], or {WRAP}"
        if "'indices'" in reason or isinstance(owner, nn.Embedding):
            remedy = "give whole numbers as the example, example=X[:2].long(), and as data"
        refuse_call(path, owner, line_of(error.__traceback__), reason, remedy, error)


def _attribute(root: nn.Module, target: str, constants: dict[str, Tensor]) -> Any:
    if target in constants:
        return constants[target]
    *path, name = target.split(".")
    value: Any = getattr(root.get_submodule(".".join(path)), name)
    return value


def _depends(node: fx.Node) -> bool:
    """Whether a value changes with the inputs or the parameters."""
    if node.op == "placeholder" or isinstance(value_of(node), nn.Parameter):
        return True
    if node.op == "call_module" and node.meta.get("value") is not None and node.args:
        return True
    return any(_depends(n) for n in node.all_input_nodes)


_KEEP_FIRST = frozenset(
    "add sub mul div truediv neg pow exp log sqrt rsqrt relu relu_ tanh sigmoid softmax clamp contiguous dropout "
    "leaky_relu elu gelu silu softplus hardtanh relu6 layer_norm linear conv1d conv2d conv3d max_pool2d avg_pool2d "
    "max_pool1d avg_pool1d adaptive_avg_pool2d adaptive_avg_pool1d iadd isub imul itruediv interpolate pad clone "
    "normal_cdf logsigmoid softsign to float double detach batch_norm group_norm".split()
)


def _leads(node: fx.Node, samples: int) -> bool:
    """Whether dimension 0 of a value certainly holds the samples, decided without knowing its shape."""
    used = node.all_input_nodes
    if node.op == "call_module":
        return any(n.meta.get("leads") for n in used)
    name = getattr(node.target, "__name__", str(node.target)).strip("_")
    first = used[0].meta.get("leads") if used else False
    if name in _KEEP_FIRST:
        return any(n.meta.get("leads") for n in used)
    if name == "flatten" and first:
        start = node.kwargs.get("start_dim", node.args[1] if len(node.args) > 1 else 0)
        return isinstance(start, int) and start >= 1
    if name in ("view", "reshape", "expand") and first:
        size = node.args[1] if len(node.args) > 1 else ()
        lead = size[0] if isinstance(size, tuple | list) and size else size
        return bool(lead == samples and not isinstance(lead, bool))
    if name in ("cat", "concat", "mean", "sum", "transpose", "permute", "chunk", "split", "unsqueeze", "squeeze"):
        return False
    return False


def _cloned(node: fx.Node, args: Any) -> Any:
    """The arguments, with a copy of the tensor that the call changes in place."""
    name = getattr(node.target, "__name__", str(node.target))
    changes = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE or bool(node.kwargs.get("inplace"))
    inplace = changes or any(a is True for a in args[1:])
    return (args[0].clone(), *args[1:]) if inplace and args and isinstance(args[0], Tensor) else args


_IN_PLACE = frozenset({"iadd", "isub", "imul", "itruediv", "ipow", "imatmul"})
