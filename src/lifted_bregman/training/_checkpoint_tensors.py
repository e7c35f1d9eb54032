"""The safetensors format, written from and read into the memory of the tensors themselves.

A file is the length of the header (8 bytes, little-endian), the header (JSON: name -> dtype, shape, place) and the
numbers, one tensor after the other.  The safetensors library reads and writes the same files, but copies the numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from lifted_bregman.errors import CheckpointError
from lifted_bregman.training._checkpoint_json import JSON_LIMIT, parsed

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_STORED_AS = {torch.complex128: torch.float64, torch.complex32: torch.float16}  # for which the format has no name
_MOST_DIMENSIONS = 64


def require_storable(tensor: Tensor, where: str) -> None:
    """Refuses a tensor that the format cannot keep, or that holds NaN or infinity."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise CheckpointError(
            f"{where} is a {str(tensor.layout).removeprefix('torch.')} tensor on {tensor.device} of {tensor.dtype}; "
            "a checkpoint keeps dense tensors with memory of their own. Convert it first."
        )
    if tensor.ndim > _MOST_DIMENSIONS:
        raise CheckpointError(
            f"{where} has {tensor.ndim} dimensions; {_MOST_DIMENSIONS} are allowed. Join some of them."
        )
    if tensor.dtype not in _NAMES and tensor.dtype not in _STORED_AS:
        raise CheckpointError(f"{where} is of {tensor.dtype}, which the format has no name for. Convert it first.")
    if not _is_finite(tensor):
        raise CheckpointError(
            f"{where} holds NaN or infinity, so no checkpoint was written and earlier ones are untouched: go back to "
            "the last one, with a smaller step size or after a look at the data."
        )


def as_stored(tensor: Tensor) -> Tensor:
    """The tensor as the format has it: on the CPU, and a complex one of unknown width as pairs of numbers."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.dtype in _STORED_AS else tensor


def as_given(stored: Tensor, dtype: str) -> Tensor:
    """The inverse of `as_stored`, for the dtype that the tensor had."""
    given = getattr(torch, dtype, None) if dtype.isidentifier() else None
    if stored.dtype is given:
        return stored
    if given in _STORED_AS and stored.dtype is _STORED_AS[given] and stored.shape[-1:] == (2,):
        return stored.view(given).squeeze(-1)
    raise CheckpointError(f"it wants a tensor of {dtype[:100]!r} and the file has one of {stored.dtype}")


def pieces(tensors: Mapping[str, Tensor], what: str) -> Iterator[bytes | memoryview]:
    """The bytes of a file that holds the tensors, each of which is as `as_stored` gives it."""
    header: dict[str, Any] = {}
    place = 0
    # The widest numbers first, so that each begins at a multiple of its width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in names:
        tensor, begin = tensors[name], place
        place += tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, place]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    if len(text) > JSON_LIMIT:
        raise CheckpointError(f"{what} has {len(tensors)} tensors, too many for one part: join them into larger ones.")
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        if tensors[name].numel():
            yield _memory(tensors[name].contiguous())


def read(file_size: int, take: Callable[[int], bytes], fill: Callable[[memoryview], None]) -> dict[str, Tensor]:
    """The tensors of a file that may be hostile.

    Args:
        file_size: how many bytes the file has.
        take: gives the next bytes.
        fill: puts the next bytes into memory.
    """
    tensors = {}
    for name, dtype, shape in _entries(file_size, take):
        try:
            tensor = torch.empty(shape, dtype=dtype)
        except RuntimeError as error:
            raise CheckpointError(f"its tensor {name[:100]!r} cannot be made: {str(error)[:200]}") from error
        if tensor.numel():
            fill(_memory(tensor))
        if dtype is torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
            raise CheckpointError(f"its tensor {name[:100]!r} holds booleans that are neither true nor false")
        tensors[name] = tensor
    return tensors


def check(file_size: int, take: Callable[[int], bytes]) -> set[str]:
    """The names of the tensors of a file whose header is sound; the numbers are not read."""
    return {name for name, _, _ in _entries(file_size, take)}


def _entries(file_size: int, take: Callable[[int], bytes]) -> list[tuple[str, torch.dtype, list[int]]]:
    """(name, dtype, shape) in the order of the numbers, which follow each other without gaps up to the file's end."""
    if file_size < 8:
        raise CheckpointError(f"its {file_size} bytes are too few for a safetensors file")
    length = int.from_bytes(take(8), "little")
    if length > min(file_size - 8, JSON_LIMIT):
        raise CheckpointError(
            f"its header would be {length} bytes long; the file has {file_size} and {JSON_LIMIT} are allowed"
        )
    header = parsed(take(length))
    if not isinstance(header, dict):
        raise CheckpointError("its header is no table of tensors")
    header.pop("__metadata__", None)
    entries = sorted(((name, *_entry(name, value)) for name, value in header.items()), key=lambda entry: entry[3:])
    place = 0
    for name, dtype, shape, begin, end in entries:
        if begin != place or end - begin != math.prod(shape) * dtype.itemsize:
            raise CheckpointError(f"the place of its tensor {name[:100]!r} does not fit the shape or the other tensors")
        place = end
    if 8 + length + place != file_size:
        raise CheckpointError(f"its header describes {8 + length + place} bytes and the file has {file_size}")
    return [(name, dtype, shape) for name, dtype, shape, _, _ in entries]


def _entry(name: str, value: Any) -> tuple[torch.dtype, list[int], int, int]:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
            dtype in _DTYPES
            and len(shape) <= _MOST_DIMENSIONS
            and all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, begin, end))
        ):
            return _DTYPES[dtype], shape, begin, end
    raise CheckpointError(f"its tensor {name[:100]!r} is described in a way that is not understood")


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not copied."""
    return memoryview(cast(Any, tensor.view(-1).view(torch.uint8).numpy()))


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    tensor = tensor.detach().resolve_conj()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.element_size() == 1:  # the 8-bit kinds have no arithmetic of their own
        tensor = tensor.to(torch.float32)
    low, high = torch.aminmax(tensor)  # one pass without memory; both are NaN if any entry is
    return math.isfinite(low.item()) and math.isfinite(high.item())
