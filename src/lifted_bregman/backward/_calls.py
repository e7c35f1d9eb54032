"""Which calls of torch's functions are activations, seen while a model's forward method runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman.activations import Activation, ActivationModule
from lifted_bregman.activations.torch_functions import is_activation_function, read_function
from lifted_bregman.activations.torch_modules import NotLiftableError, from_function
from lifted_bregman.graph.decompose import FUNCTIONS, normal_cdf

_FUSED = frozenset(
    "multi_head_attention_forward lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell".split()
)
"""Functions with activations inside that no caller can see."""
Found = tuple[Activation, int | None] | str
"""An activation and its dimension, or why a call is none."""
GATES = (nn.SiLU, nn.GELU, nn.Mish, nn.Hardswish, nn.GLU)
"""Activations of the form x σ(x), in which σ is a proximal map and the product is not."""
_GATES = frozenset("silu gelu mish hardswish glu".split())


def activate(z: Tensor, module: ActivationModule) -> Tensor:
    """The output of a module of one of this library's activations."""
    result: Tensor = ActivationModule.forward(module, z)
    return result


def name_of(function: Callable[..., Any]) -> str:
    """The plain name of a torch function or method: "relu" for `F.relu`, `torch.relu_` and `Tensor.relu`."""
    return str(getattr(function, "__name__", "")).removeprefix("special_").strip("_")


def is_written_out(function: Callable[..., Any], gates: bool) -> bool:
    """Whether `write_out` replaces this function; a gate is replaced only if `gates` is true."""
    return function in FUNCTIONS and name_of(function) not in _FUSED and (gates or not is_gate(function))


def is_gate(function: Callable[..., Any]) -> bool:
    """Whether a function is one of `GATES`."""
    return name_of(function) in _GATES


def write_out(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Computes a function of torch by separate calls of its activations and maps, with the same result."""
    return FUNCTIONS[function](*args, **kwargs)


def is_candidate(function: Callable[..., Any]) -> bool:
    """Whether a function of torch is an activation, or computes one inside."""
    name = name_of(function)
    return is_activation_function(name) or name in _FUSED


def read(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Found:
    """The activation of a call and its dimension, or the reason why it is none.

    args, kwargs  the arguments after the tensor
    """
    if function is activate:
        return args[0].activation, args[0].dim
    if function is normal_cdf:
        return from_function(normal_cdf), None
    name = name_of(function)
    if name in _FUSED:
        return "its activations are inside one function of torch: use the module of torch that calls it"
    if name == "softmax":  # in another precision it is the same map
        kwargs = {key: value for key, value in kwargs.items() if key != "dtype"}
    try:
        found = read_function(name, args, kwargs)
    except NotLiftableError as error:
        return str(error)
    except TypeError as error:
        return f"its arguments are not understood ({error})"
    assert found is not None
    return found


def is_in_place(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an activation overwrites its tensor; `args` are the arguments after the tensor."""
    name = str(getattr(function, "__name__", ""))
    return name.endswith("_") or kwargs.get("inplace", False) is True or (bool(args) and args[-1] is True)


def out_of_place(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[[Tensor], Tensor]:
    """The same activation as a function of the tensor alone that returns a new one."""
    name = str(getattr(function, "__name__", ""))
    if name.endswith("_"):
        function = getattr(torch.Tensor, name[:-1], None) or getattr(torch.nn.functional, name[:-1])
    args = (*args[:-1], False) if args and args[-1] is True else args
    return _Applied(function, args, {**kwargs, "inplace": False} if kwargs.get("inplace") else dict(kwargs))


class _Applied:
    """function(t, *args, **kwargs) as a function of t."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def __call__(self, t: Tensor) -> Tensor:
        result: Tensor = self.function(t, *self.args, **self.kwargs)
        return result
