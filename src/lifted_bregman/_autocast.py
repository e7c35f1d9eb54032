"""Autocast: maps compute in half precision, all other operations in the precision of the parameters.

z = f(x, Θ) and J_xᵀ d     products in bfloat16 or float16 by torch.autocast; their results are cast to float32
all other operations       proximal maps, energies, differences σ(z) - x⁺, linear systems, parameters: float32
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_HALF = (torch.bfloat16, torch.float16)


def autocast_dtype(like: Tensor) -> torch.dtype | None:
    """The dtype to which autocast rounds `like` in a product; None if it does not round, as for float64."""
    kind = like.device.type
    if like.dtype == torch.float64 or not torch.amp.is_autocast_available(kind):
        return None
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def widened(z: Tensor) -> Tensor:
    """The result of a map in float32 if autocast computed it in half precision; z itself otherwise."""
    return z.float() if z.dtype in _HALF else z


def lowered(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The operands of a product rounded as autocast rounds them, for operations that autocast does not cover."""
    if not torch._C._is_any_autocast_enabled():
        return tensors
    first = next(t for t in tensors if t is not None)
    dtype = autocast_dtype(first)
    return tensors if dtype is None else tuple(None if t is None else t.to(dtype) for t in tensors)


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: runs the function with autocast off."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch._C._is_any_autocast_enabled():
            return function(*args, **kwargs)
        with ExitStack() as stack:
            for kind in ("cpu", "cuda", "xpu", "mps"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return wrapper
