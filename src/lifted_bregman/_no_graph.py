"""`no_graph`: a decorator for functions that record no autograd graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def no_graph(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.no_grad()` as a decorator that costs almost nothing where gradients are off already."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return wrapper
