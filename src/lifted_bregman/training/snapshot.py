"""Snapshot: the content of a checkpoint, and its conversion to files and back.

The tensors of each part are one safetensors file.  All other values are in state.json.  None, booleans, whole numbers,
strings, finite floats, lists and dicts with string keys are written as JSON; other values as a table of one entry:

    {"tuple": [...]}    {"dict": [[key, value], ...]}    {"tensor": [name, dtype]}    {"float": 16 hexadecimal digits}

A dict whose only key is one of these four words is written in the second form.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.training.files import open_file, reading
from lifted_bregman.training.manifest import JSON_LIMIT, FileHash, json_hash, json_text, parse_json

STATE, SUFFIX = "state.json", ".safetensors"
_PART = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DOUBLE = re.compile("[0-9a-f]{16}")
_DEPTH_LIMIT = 64
_TAGS = ("tensor", "float", "tuple", "dict")
# dtypes that the safetensors library does not read -> the dtype of the last axis by which they are stored
_STORED_AS = {
    torch.complex128: torch.float64,
    torch.complex32: torch.float16,
    torch.float8_e8m0fnu: torch.uint8,
}

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that a resumed run needs.

    Loaded tensors are on the CPU, bitwise equal to the saved ones, and share no memory.  Loaded containers are of type
    dict, list or tuple.

    Args:
        step: steps taken, at least 0.
        parts: "model", "solver", ... -> nested dicts (keys are strings or integers), lists and tuples of tensors,
            numbers, booleans, strings and None.  Tensors must be finite; plain numbers may be NaN or infinite.
        state: the same without tensors, such as the position in the data.
        settings: the same without tensors: what a resumed run must share.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.checkpoints import Checkpoints
        >>> from lifted_bregman.training.snapshot import Snapshot
        >>> snapshot = Snapshot(step=3, parts={"model": {"w": torch.ones(2)}}, state={"epoch": 1}, settings={})
        >>> path = Checkpoints(Path("checkpoints")).save(snapshot)
        >>> Checkpoints(Path("checkpoints")).load().snapshot.state
        {'epoch': 1}
    """

    step: int
    parts: Mapping[str, Any]
    state: Mapping[str, Any]
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if type(self.step) is not int or not 0 <= self.step < 10**18:
            raise SettingError(f"step is {self.step!r}; it must be a whole number of at least 0.")
        for name in self.parts:
            if not _PART.fullmatch(name):
                raise SettingError(f"a part is named {name!r}; use small letters, digits and underscores.")

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of each file.  Everything is checked before this returns; the contents are made one by one.

        CheckpointError names an entry that cannot be stored, or that holds NaN or infinity.
        """
        tensors: dict[str, dict[str, Tensor]] = {part: {} for part in self.parts}

        def put(path: KeyPath, tensor: Tensor) -> str:
            _require_storable(tensor, _shown(path))
            stored = tensors[str(path[0])]
            base = ".".join(map(str, path[1:])).encode("utf-8", "replace").decode("utf-8") or "value"
            names = chain([base], (f"{base}:{number}" for number in count(2)))
            name = next(name for name in names if name not in stored and name != "__metadata__")  # a word of the format
            stored[name] = tensor
            return name

        trees = {part: _encode(content, put, (part,)) for part, content in self.parts.items()}
        state, settings = _encode(self.state, _refuse, ("state",)), self._settings_tree()
        text = json_text({"step": self.step, "state": state, "settings": settings, "parts": trees}, "the state")
        return chain(((part + SUFFIX, _save(part, own)) for part, own in tensors.items()), [(STATE, text)])

    def settings_hash(self) -> str:
        """sha256 of the settings, as they stand in state.json."""
        return json_hash(self._settings_tree())

    def _settings_tree(self) -> Any:
        return _encode(self.settings, _refuse, ("settings",))

    @classmethod
    def read(cls, folder: Path, step: int, files: Mapping[str, FileHash], settings_sha256: str) -> Snapshot:
        """The snapshot in the files of a folder, each verified by size and hash."""
        with reading(folder / STATE):
            with open_file(folder / STATE, JSON_LIMIT) as file:
                text = file.read()
            _require_hash(text, files[STATE])
            match parse_json(text):
                case {"step": found, "state": dict(state), "settings": dict(settings), "parts": dict(trees)}:
                    if found != step or {part + SUFFIX for part in trees} | {STATE} != set(files):
                        raise CheckpointError("its step or parts are not those of the manifest")
                case _:
                    raise CheckpointError("it is not what a checkpoint keeps there")
            if json_hash(settings) != settings_sha256:
                raise CheckpointError("its settings are not those of the manifest")
            state, settings = _decode(state, {}), _decode(settings, {})
            if not isinstance(state, dict) or not isinstance(settings, dict):
                raise CheckpointError("its state and settings are no dicts")
        parts = {}
        for part, tree in trees.items():
            tensors = _load(folder / (part + SUFFIX), files[part + SUFFIX])
            with reading(folder / STATE):
                parts[part] = _decode(tree, tensors)
                if tensors:
                    raise CheckpointError(f"it does not name the tensor {next(iter(tensors))[:100]!r} of {part}")
        return cls(step, parts, state, settings)


def is_part_file(name: str) -> bool:
    """Whether a file of this name may hold the tensors of a part.

    Example:
        >>> from lifted_bregman.training.snapshot import is_part_file
        >>> is_part_file("model.safetensors"), is_part_file("../model.safetensors")
        (True, False)
    """
    return name.endswith(SUFFIX) and _PART.fullmatch(name.removesuffix(SUFFIX)) is not None


def save_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file; the tensors may be views of the same memory.

    Example:
        >>> from lifted_bregman.training.snapshot import load_tensors, save_tensors
        >>> load_tensors(save_tensors({"w": torch.ones(2)}))
        {'w': tensor([1., 1.])}
    """
    from safetensors.torch import save

    stored, seen = {}, set()
    for name, tensor in tensors.items():
        own = tensor.detach().contiguous()
        memory = own.untyped_storage().data_ptr()
        stored[name] = own.clone() if memory in seen else own  # safetensors refuses two views of one memory
        seen.add(memory)
    try:
        return save(stored)
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"safetensors cannot store these tensors: {str(error)[:200]}.") from error


def load_tensors(content: bytes) -> dict[str, Tensor]:
    """The tensors in the content of a safetensors file that may be hostile; they share no memory.

    Example:
        >>> from lifted_bregman.training.snapshot import load_tensors, save_tensors
        >>> load_tensors(save_tensors({"w": torch.ones(2)}))
        {'w': tensor([1., 1.])}
        >>> load_tensors(b"no tensors")
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CheckpointError: it is no safetensors file (Error while deserializing: ...
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
    except (SafetensorError, KeyError, RuntimeError, AssertionError) as error:
        raise CheckpointError(f"it is no safetensors file ({str(error)[:200]})") from error
    for name, tensor in tensors.items():
        if tensor.dtype is torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
            raise CheckpointError(f"its tensor {name[:100]!r} holds booleans that are neither true nor false")
    return tensors


def _save(part: str, tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a part's file."""
    stored = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        kind = _STORED_AS.get(tensor.dtype)
        stored[name] = tensor if kind is None else tensor.contiguous().unsqueeze(-1).view(kind)
    content = save_tensors(stored)
    if int.from_bytes(content[:8], "little") > JSON_LIMIT:
        raise CheckpointError(f"{part} has {len(tensors)} tensors, too many for one part: join them into larger ones.")
    return content


def _load(path: Path, expected: FileHash) -> dict[str, Tensor]:
    with reading(path), open_file(path) as file:
        # The first 8 bytes are the length of the header: a giant one is refused before anything is read.
        length = int.from_bytes(file.read(8), "little")
        if length > JSON_LIMIT:
            raise CheckpointError(f"its header would have {length} bytes and {JSON_LIMIT} are allowed")
        file.seek(0)
        content = file.read()
        _require_hash(content, expected)
        return load_tensors(content)


def _require_hash(content: bytes, expected: FileHash) -> None:
    found = FileHash.of(content)
    if found.size != expected.size:
        raise CheckpointError(f"it has {found.size} bytes and the manifest says {expected.size}")
    if found != expected:
        raise CheckpointError("its content is not what was written (sha256)")


def _refuse(path: KeyPath, tensor: Tensor) -> str:
    raise CheckpointError(f"{_shown(path)} is a {type(tensor).__name__}: put tensors into a part.")


def _encode(value: Any, put: Callable[[KeyPath, Tensor], str], path: KeyPath) -> Any:
    """The tree of a value; `put` stores the tensor at a path and returns its name."""
    if len(path) > _DEPTH_LIMIT:
        raise CheckpointError(f"{_shown(path)[:200]} is nested deeper than {_DEPTH_LIMIT} containers.")
    if isinstance(value, Tensor):
        return {"tensor": [put(path, value), str(value.dtype).removeprefix("torch.")]}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise CheckpointError(f"{_shown(path)} has the key {key!r}; keys are strings or whole numbers.")
        entries = {key: _encode(entry, put, (*path, key)) for key, entry in value.items()}
        plain = all(isinstance(key, str) for key in entries) and not (len(entries) == 1 and entries.keys() <= {*_TAGS})
        return entries if plain else {"dict": [list(item) for item in entries.items()]}
    if isinstance(value, list | tuple):
        listed = [_encode(entry, put, (*path, index)) for index, entry in enumerate(value)]
        return listed if isinstance(value, list) else {"tuple": listed}
    raise CheckpointError(
        f"{_shown(path)} is a {type(value).__name__}; a part holds tensors, numbers, booleans, strings, None, dicts, "
        "lists and tuples. Convert it first."
    )


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The value of a tree that may be hostile; takes the tensors that the tree names out of `tensors`.

    Lists and dicts are changed in place, so that a wide tree takes its memory once.
    """
    if isinstance(tree, list):
        for place, entry in enumerate(tree):
            tree[place] = _decode(entry, tensors)
        return tree
    if not isinstance(tree, dict):
        return tree
    match list(tree.items()):
        case [("tensor", [str(name), str(dtype)])]:
            if name not in tensors:
                raise CheckpointError(f"it names the tensor {name[:100]!r}, which is not there or was named before")
            return _as_given(tensors.pop(name), dtype)
        case [("float", str(digits))] if _DOUBLE.fullmatch(digits):
            return struct.unpack(">d", bytes.fromhex(digits))[0]
        case [("tuple", list(entries))]:
            return tuple(_decode(entry, tensors) for entry in entries)
        case [("dict", list(entries))] if all(map(_is_item, entries)):
            result = {key: _decode(entry, tensors) for key, entry in entries}
            if len(result) == len(entries):
                return result
        case [(name, _)] if name in _TAGS:
            pass
        case items:
            for name, entry in items:
                tree[name] = _decode(entry, tensors)
            return tree
    raise CheckpointError(f"it holds an entry that no checkpoint has: {str(tree)[:100]}")


def _is_item(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and type(entry[0]) in (str, int)


def _as_given(stored: Tensor, dtype: str) -> Tensor:
    """The tensor in the dtype that it had when it was saved."""
    given = getattr(torch, dtype, None) if dtype.isidentifier() else None
    if isinstance(given, torch.dtype):
        if stored.dtype is given:
            return stored
        if stored.dtype is _STORED_AS.get(given) and stored.shape[-1:] == (given.itemsize // stored.itemsize,):
            return stored.view(given).squeeze(-1)
    raise CheckpointError(f"it wants a tensor of {dtype[:100]!r} and the file has one of {stored.dtype}")


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity; it may be of any dtype.

    Example:
        >>> from lifted_bregman.training.snapshot import is_finite
        >>> is_finite(torch.ones(2)), is_finite(torch.tensor([1.0, torch.nan]))
        (True, False)
    """
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    tensor = tensor.detach().resolve_conj()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.element_size() == 1:  # torch has no arithmetic for 8 bits
        tensor = tensor.to(torch.float32)
    low, high = torch.aminmax(tensor)  # one pass without memory; both are NaN if any entry is
    return math.isfinite(low.item()) and math.isfinite(high.item())


def _require_storable(tensor: Tensor, where: str) -> None:
    """CheckpointError unless the tensor is dense, has memory, is of a dtype that torch computes with, and is finite."""
    try:
        storable = tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
        finite = storable and is_finite(tensor)
    except RuntimeError:
        storable = False
    if not storable:
        raise CheckpointError(
            f"{where} is a {str(tensor.layout).removeprefix('torch.')} tensor on {tensor.device} of {tensor.dtype}; "
            "a checkpoint keeps dense tensors of the usual dtypes with memory of their own. Convert it first."
        )
    if not finite:
        raise CheckpointError(
            f"{where} holds NaN or infinity, so no checkpoint was written and earlier ones are untouched: go back to "
            "the last one, with a smaller step size or after a look at the data."
        )


def _shown(path: KeyPath) -> str:
    """A path as a user would write it: model['layers'][0]."""
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])
