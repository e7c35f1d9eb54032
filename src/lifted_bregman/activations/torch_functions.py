"""The activations among torch's functions and methods: each is read as the module that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from math import isinf
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman import activations as act
from lifted_bregman.activations.torch_modules import NotLiftableError, read_activation

Read = tuple[act.Activation, int | None]
"""An activation and the dimension along which it acts, None for a separable one."""


def read_function(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Read | None:
    """The activation that torch's function or method `name` computes; None if it is no activation.

    args, kwargs  the arguments of the call after the tensor

    Raises `NotLiftableError` for activations that are no proximal maps.
    """
    given = {key: value for key, value in kwargs.items() if key not in ("inplace", "_stacklevel")}
    if name == "clamp_max":
        args, given = (), {"max": args[0] if args else given["max"]}
    if name in _CLIPPING:
        return _clip(*args, **given)
    if name in _OWN:
        return _OWN[name](), None
    module = _MODULES.get(name)
    if module is None:
        return None
    found = read_activation(module(*args, **given))
    assert found is not None
    return found


def is_activation_function(name: str) -> bool:
    """Whether torch's function or method `name` is an activation, a proximal map or not."""
    return name in _MODULES or name in _CLIPPING or name in _OWN


def _clip(min: Any = None, max: Any = None) -> Read:
    """min(max(z, min), max): the projection onto an interval."""
    if any(isinstance(bound, Tensor) or not isinstance(bound, int | float | None) for bound in (min, max)):
        raise NotLiftableError("its bounds are tensors, but a potential is fixed: clip with numbers")
    low = float("-inf") if min is None else float(min)
    high = float("inf") if max is None else float(max)
    if low == 0.0 and high == float("inf"):
        return act.ReLU(), None
    if not low < high:
        raise NotLiftableError(f"it clips to [{low:g}, {high:g}], which is no interval: use min below max")
    if isinf(low) and isinf(high):
        return act.Identity(), None
    return (_one_sided(low, high) if isinf(low) or isinf(high) else act.Box(low, high)), None


@cache
def _one_sided(low: float, high: float) -> act.Activation:
    bounds = f"min={low:g}" if isinf(high) else f"max={high:g}"
    return act.FromScalar(partial(torch.clamp, min=low, max=high), name=f"clamp, {bounds}")


def _softmax(dim: int | None = None, dtype: object = None) -> nn.Module:
    if dtype is not None:
        raise NotLiftableError("it changes the dtype of its input: leave dtype out, and use model.to(dtype)")
    return nn.Softmax(dim)


def _log_softmax(dim: int | None = None, dtype: object = None) -> nn.Module:
    return nn.LogSoftmax(dim)


def _elu(alpha: float = 1.0, inplace: bool = False) -> nn.Module:
    return nn.ELU(alpha)


def _hardtanh(min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> nn.Module:
    return nn.Hardtanh(min_val, max_val)


def _plain(kind: type[nn.Module]) -> Callable[..., nn.Module]:
    """A module without settings; further arguments of the function, such as `inplace`, are ignored."""

    def make(*args: Any) -> nn.Module:
        return kind()

    return make


_MODULES: dict[str, Callable[..., nn.Module]] = {
    "relu": _plain(nn.ReLU),
    "relu6": _plain(nn.ReLU6),
    "tanh": _plain(nn.Tanh),
    "sigmoid": _plain(nn.Sigmoid),
    "expit": _plain(nn.Sigmoid),
    "logsigmoid": _plain(nn.LogSigmoid),
    "log_sigmoid": _plain(nn.LogSigmoid),
    "softsign": _plain(nn.Softsign),
    "tanhshrink": _plain(nn.Tanhshrink),
    "hardsigmoid": _plain(nn.Hardsigmoid),
    "selu": _plain(nn.SELU),
    "silu": _plain(nn.SiLU),
    "gelu": lambda approximate="none": nn.GELU(approximate),
    "mish": _plain(nn.Mish),
    "hardswish": _plain(nn.Hardswish),
    "glu": lambda dim=-1: nn.GLU(dim),
    "softmax": _softmax,
    "softmin": lambda dim=None, dtype=None: nn.Softmin(dim),
    "log_softmax": _log_softmax,
    "leaky_relu": lambda negative_slope=0.01, inplace=False: nn.LeakyReLU(negative_slope),
    "elu": _elu,
    "celu": lambda alpha=1.0, inplace=False: nn.CELU(alpha),
    "hardtanh": _hardtanh,
    "softplus": lambda beta=1.0, threshold=20.0: nn.Softplus(beta, threshold),
    "softshrink": lambda lambd=0.5: nn.Softshrink(lambd),
    "hardshrink": lambda lambd=0.5: nn.Hardshrink(lambd),
    "threshold": lambda threshold, value, inplace=False: nn.Threshold(threshold, value),
    "prelu": lambda weight: nn.PReLU(),
    "rrelu": lambda *args, **kwargs: nn.RReLU(),
}
_CLIPPING = frozenset({"clamp", "clip", "clamp_min", "clamp_max"})
_OWN: dict[str, Callable[[], act.Activation]] = {
    "atan": act.Arctan,
    "arctan": act.Arctan,
    "asinh": act.Asinh,
    "arcsinh": act.Asinh,
}
