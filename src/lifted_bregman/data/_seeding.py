"""Seeds for the random draws of a user's code: global generators, and generators that are attributes of objects."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lifted_bregman._generators import named_generator

_DEPTH = 6  # of attributes of attributes that are searched
_OBJECTS = 10_000  # searched at most
_MANY = 64  # a container with more entries holds data and is not searched
_LEAVES = (Tensor, np.ndarray, nn.Module, ModuleType, type, str, bytes, int, float, BuiltinFunctionType)


@contextmanager
def seeded(seed: int, name: str, counter: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python for the block, and restore their states after it."""
    drawn = named_generator(seed, name, counter).initial_seed()
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.default_generator.manual_seed(
                drawn
            )  # torch.manual_seed asks every kind of device, which takes longer
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(drawn)
            np.random.seed(drawn % 2**32)
            random.seed(drawn)
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def seed_all(generators: Iterable[Any], seed: int, name: str, counter: int) -> None:
    """Seed each generator by its index."""
    for place, generator in enumerate(generators):
        drawn = named_generator(seed, f"{name} {place}", counter).initial_seed()
        if isinstance(generator, torch.Generator):
            generator.manual_seed(drawn)
        elif isinstance(generator, random.Random):
            generator.seed(drawn)
        elif isinstance(generator, np.random.RandomState):
            generator.seed(drawn % 2**32)
        else:
            bits: Any = generator.bit_generator
            bits.state = type(bits)(drawn).state


def kept_generators(objects: Iterable[Any]) -> list[Any]:
    """Return the generators among the attributes of objects, of their attributes, in containers and closures, in order.

    Variables of modules and local variables of running functions are not searched.
    """
    found: list[Any] = []
    seen: set[int] = set()
    waiting = [(value, 0) for value in objects]
    while waiting and len(seen) < _OBJECTS:
        value, depth = waiting.pop(0)
        if isinstance(value, _LEAVES) or value is None or id(value) in seen or depth > _DEPTH:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Generator | random.Random | np.random.Generator | np.random.RandomState):
            if value is not torch.default_generator:
                found.append(value)
            continue
        waiting += [(entry, depth + 1) for entry in _entries(value)]
    return found


def _entries(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values()) if len(value) <= _MANY else []
    if isinstance(value, list | tuple):
        return list(value) if len(value) <= _MANY else []
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    attributes = getattr(value, "__dict__", None)
    return list(attributes.values()) if isinstance(attributes, dict) else []
