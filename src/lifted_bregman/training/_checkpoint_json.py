"""What a checkpoint keeps as JSON: plain values, and trees of containers whose leaves are tensors or numbers.

A tree is written so that nothing is ambiguous.  None, booleans, integers, strings and finite floats are themselves, a
list is an array, and everything else is an object with one entry:

    {"tuple": [...]}    {"dict": [[key, value], ...]}    {"tensor": [name, dtype]}    {"float": 16 hexadecimal digits}
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from lifted_bregman.errors import CheckpointError

JSON_LIMIT = 3 << 20
"""Bytes of the largest JSON text that is written or read; parsing takes some thirty times as much memory."""
_DEPTH_LIMIT = 64
_INTEGER_BITS = 4096
_DOUBLE = re.compile("[0-9a-f]{16}")

KeyPath = tuple[str | int, ...]


def canonical(value: Any) -> bytes:
    """The one text of a plain value: keys sorted, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def sha256_of(value: Any) -> str:
    """sha256 of the canonical text."""
    return hashlib.sha256(canonical(value)).hexdigest()


def as_text(value: Any, what: str, indent: int | None = None) -> bytes:
    """The text of a plain value as it goes into a file."""
    text = json.dumps(value, indent=indent).encode("ascii") + b"\n"
    if len(text) > JSON_LIMIT:
        raise CheckpointError(
            f"{what} takes {len(text)} bytes of JSON and {JSON_LIMIT} are allowed: put long lists of numbers "
            "into tensors."
        )
    return text


def parsed(text: bytes) -> Any:
    """The value of a JSON text that may be hostile; its length has been bounded by the caller."""
    try:
        return json.loads(text.decode("utf-8"))
    except RecursionError:
        raise CheckpointError("it is nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"it is no JSON: {error}") from error


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """The value made of what JSON can give back, dicts and lists; anything else is refused."""
    _require_depth(where, depth)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise CheckpointError(f"{where} has the key {key!r}; the keys of plain JSON are strings.")
        return {key: plain(entry, f"{where}[{key!r}]", depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, f"{where}[{index}]", depth + 1) for index, entry in enumerate(value)]
    if isinstance(value, int):
        _require_small(value, where)
    elif not (value is None or isinstance(value, str | float)):
        raise CheckpointError(
            f"{where} is a {type(value).__name__}; JSON keeps None, booleans, numbers, strings, lists and dicts. "
            "Put tensors into a part."
        )
    return value


def encoded(value: Any, put: Callable[[KeyPath, Tensor], str], path: KeyPath) -> Any:
    """The tree of `value`; `put` takes each tensor with its path and answers with the name it is stored by."""
    _require_depth(shown(path), len(path))
    if isinstance(value, Tensor):
        return {"tensor": [put(path, value), str(value.dtype).removeprefix("torch.")]}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        _require_small(value, shown(path))
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise CheckpointError(f"{shown(path)} has the key {key!r}; keys are strings or whole numbers.")
        return {"dict": [[key, encoded(entry, put, (*path, key))] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        entries = [encoded(entry, put, (*path, index)) for index, entry in enumerate(value)]
        return entries if isinstance(value, list) else {"tuple": entries}
    raise CheckpointError(
        f"{shown(path)} is a {type(value).__name__}; a part holds tensors, numbers, booleans, strings, None, dicts, "
        "lists and tuples. Convert it first."
    )


def decoded(tree: Any, get: Callable[[str, str], Any], depth: int = 0) -> Any:
    """The inverse of `encoded`, of a tree that may be hostile; `get` answers to the name and dtype of a tensor."""
    _require_depth("it", depth)
    if isinstance(tree, list):
        return [decoded(entry, get, depth + 1) for entry in tree]
    if not isinstance(tree, dict):
        return tree
    match list(tree.items()):
        case [("tensor", [str(name), str(dtype)])]:
            return get(name, dtype)
        case [("float", str(digits))] if _DOUBLE.fullmatch(digits):
            return struct.unpack(">d", bytes.fromhex(digits))[0]
        case [("tuple", list(entries))]:
            return tuple(decoded(entry, get, depth + 1) for entry in entries)
        case [("dict", list(entries))] if all(map(_is_item, entries)):
            result = {key: decoded(entry, get, depth + 1) for key, entry in entries}
            if len(result) == len(entries):
                return result
    raise CheckpointError(f"it holds an entry that no checkpoint has: {str(tree)[:100]}")


def _is_item(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and type(entry[0]) in (str, int)


def shown(path: KeyPath) -> str:
    """The way to an entry, as a user would write it."""
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def _require_depth(where: str, depth: int) -> None:
    if depth > _DEPTH_LIMIT:
        raise CheckpointError(f"{where[:200]} is nested deeper than {_DEPTH_LIMIT} containers")


def _require_small(value: int, where: str) -> None:
    if value.bit_length() > _INTEGER_BITS:
        raise CheckpointError(f"{where} is a whole number of {value.bit_length()} bits; {_INTEGER_BITS} are allowed.")
