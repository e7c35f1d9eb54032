"""A device that is not there: tensors that say they are elsewhere and compute on the CPU.

torch's own rules hold between the two devices: an operation takes tensors of one of them, numbers (tensors without
dimensions) and indices in brackets aside, and random numbers come from a generator of the tensor's own device.  So a
run can be tried for mistakes that only an accelerator shows, with the numbers of the CPU.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

ELSEWHERE = torch.device("meta")
READS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount")
"""Operations for which the host waits for numbers of the device: their values, or the shape of what they return."""
_MOVES = ("_to_copy", "copy_", "_local_scalar_dense")
_IN_BRACKETS = ("index", "index_put", "index_put_", "_index_put_impl_")


class _Away(Tensor):
    """A tensor on the device that is not there; `inner` holds its numbers."""

    inner: Tensor
    is_meta = False  # unlike tensors of torch's device of that name, these have numbers
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> _Away:
        away: Any = Tensor._make_wrapper_subclass(
            cls, inner.size(), inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=ELSEWHERE
        )
        away.inner = inner
        return away

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(function, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        _note("tolist")
        return self.inner.tolist()


class PretendDevice(TorchDispatchMode):
    """While it is entered, `tensor.to(ELSEWHERE)` and `torch.zeros(n, device=ELSEWHERE)` make tensors elsewhere."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(function, args, kwargs or {})


class HostReads:
    """While it is entered, `found` lists what makes the host wait for the device: reads, and copies between the two."""

    entered: ClassVar[list[HostReads]] = []

    def __init__(self) -> None:
        self.found: list[str] = []

    def __enter__(self) -> HostReads:
        self.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.entered.remove(self)


def _note(operation: str) -> None:
    """Adds an operation and the line of the library that asks for it."""
    for reads in HostReads.entered:
        frames = [frame for frame in traceback.extract_stack() if "lifted_bregman" in Path(frame.filename).parts]
        reads.found.append(f"{operation} in {frames[-1].name}, line {frames[-1].lineno}" if frames else operation)


def _waits(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation on tensors elsewhere makes the host wait."""
    if name in READS:
        return True
    if name in _IN_BRACKETS:  # a mask is searched for what is True
        return any(isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1]))
    if name == "_to_copy":
        return kwargs.get("device") is not None and (torch.device(kwargs["device"]) == ELSEWHERE) != _is_away(args[0])
    return name == "copy_" and _is_away(args[0]) != _is_away(args[1])


def _is_away(tensor: Tensor) -> bool:
    return isinstance(tensor, _Away)


def _call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = function._schema.name.removeprefix("aten::")
    leaves = tree_leaves((args, kwargs))
    away = [leaf for leaf in leaves if isinstance(leaf, _Away)]
    if HostReads.entered and (away or name == "_to_copy") and _waits(name, args, kwargs):
        _note(name)
    here = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, _Away) and leaf.ndim]
    if away and here and name not in _MOVES and not (name in _IN_BRACKETS and isinstance(args[0], _Away)):
        raise RuntimeError(f"{name} was given tensors on two devices")
    result_away = isinstance(args[0], _Away) if name == "copy_" else bool(away) and name != "_local_scalar_dense"
    if kwargs.get("device") is not None:
        result_away = torch.device(kwargs["device"]) == ELSEWHERE
        kwargs = kwargs | {"device": torch.device("cpu")}
    if result_away and any(isinstance(leaf, torch.Generator) for leaf in leaves):
        raise RuntimeError(f"{name} was given a generator of the CPU for a tensor elsewhere")
    known = {id(tensor.inner): tensor for tensor in away}
    args, kwargs = tree_map_only(_Away, lambda tensor: tensor.inner, (args, kwargs))
    result = function(*args, **kwargs)
    if not result_away:
        return result
    return tree_map_only(Tensor, lambda t: known[id(t)] if id(t) in known else _Away(t), result)


def elsewhere(tensor: Tensor) -> Tensor:
    """The tensor on the device that is not there."""
    return _Away(tensor)


def move_model(model: nn.Module) -> None:
    """What model.to(device) does."""
    moved: dict[int, nn.Parameter] = {}  # of those that several modules share, one
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                new = moved.setdefault(id(p), nn.Parameter(p.detach().to(ELSEWHERE), p.requires_grad))
                module._parameters[name] = new
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(ELSEWHERE)
