"""Ways to spoil a sound checkpoint and sign it anew, and what is said about each."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.training.checkpoint_helpers import sign

LIMIT = 3 << 20  # bytes of JSON


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def safetensors_file(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def model(content: bytes) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        (path / "model.safetensors").write_bytes(content)
        sign(path)

    return spoil


def state(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        entries = json.loads((path / "state.json").read_text())
        change(entries)
        (path / "state.json").write_text(json.dumps(entries))
        sign(path)

    return spoil


def tree(value: Any) -> Callable[[Path], None]:
    return state(lambda entries: entries["parts"].update(solver=value))


def text(name: str, content: bytes) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        (path / name).write_bytes(content)
        if name != "manifest.json":
            sign(path)

    return spoil


def listed(name: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        files = json.loads((path / "manifest.json").read_text())["files"]
        (path.parent / "outside.safetensors").write_bytes((path / "model.safetensors").read_bytes())
        files[name] = files.pop("model.safetensors")
        sign(path, files=files)

    return spoil


def size(value: Any) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        files = json.loads((path / "manifest.json").read_text())["files"]
        files["model.safetensors"]["size"] = value
        sign(path, files=files)

    return spoil


def sparse(name: str, length: int, head: bytes = b"") -> Callable[[Path], None]:
    """A file with a hole: it takes no space on the disk and says that it is `length` long; so does the manifest."""

    def spoil(path: Path) -> None:
        files = json.loads((path / "manifest.json").read_text())["files"]
        if name in files:
            files[name]["size"] = length
            sign(path, files=files)
        with (path / name).open("wb") as file:
            file.write(head)
            file.truncate(length)

    return spoil


def link(name: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        (path / name).rename(path.parent / "outside")
        (path / name).symlink_to(path.parent / "outside")

    return spoil


def fifo(name: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        (path / name).unlink()
        os.mkfifo(path / name)

    return spoil


def directory(name: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        (path / name).unlink()
        (path / name).mkdir()

    return spoil


def zip_file() -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(3)}, buffer)
    return buffer.getvalue()


def floats(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


PICKLE = pickle.dumps(Bomb())
NESTED = b"[" * (LIMIT - 100)
WIDE = b"[" + b"[]," * (LIMIT // 3 - 100) + b"[]]"
NUMBERS = b"[" + b"1," * (LIMIT // 2 - 100) + b"1]"

CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickle for a part": (model(PICKLE), "model.safetensors is damaged"),
    "pickle for the state": (text("state.json", PICKLE), "state.json is damaged"),
    "pickle for the manifest": (text("manifest.json", PICKLE), "manifest.json is damaged"),
    "torch.save for a part": (model(zip_file()), "model.safetensors is damaged"),
    "name up": (listed("../outside.safetensors"), "which is no file of a checkpoint"),
    "name up twice": (listed("../../x/outside.safetensors"), "which is no file of a checkpoint"),
    "name absolute": (listed("/etc/passwd"), "which is no file of a checkpoint"),
    "name below": (listed("sub/model.safetensors"), "which is no file of a checkpoint"),
    "name with a null": (listed("model\0.safetensors"), "which is no file of a checkpoint"),
    "name in capitals": (listed("MODEL.safetensors"), "which is no file of a checkpoint"),
    "name of the manifest": (listed("manifest.json"), "which is no file of a checkpoint"),
    "name empty": (listed(".safetensors"), "which is no file of a checkpoint"),
    "name hidden": (listed(".model.safetensors"), "which is no file of a checkpoint"),
    "name with a line end": (listed("model\n.safetensors"), "which is no file of a checkpoint"),
    "link for a part": (link("model.safetensors"), "model.safetensors cannot be read"),
    "link for the state": (link("state.json"), "state.json cannot be read"),
    "link for the manifest": (link("manifest.json"), "manifest.json cannot be read"),
    "pipe for a part": (fifo("model.safetensors"), "no regular file"),
    "pipe for the state": (fifo("state.json"), "no regular file"),
    "pipe for the manifest": (fifo("manifest.json"), "no regular file"),
    "directory for a part": (directory("model.safetensors"), "no regular file"),
    "directory for the manifest": (directory("manifest.json"), "no regular file"),
    "size far too large": (size(10**30), "and the manifest says 1000"),
    "size of exabytes": (size(1 << 62), "and the manifest says"),
    "size negative": (size(-1), "gives no size"),
    "size a float": (size(1e308), "gives no size"),
    "size a truth": (size(True), "gives no size"),
    "size a text": (size("5"), "gives no size"),
    "a terabyte of nothing": (sparse("model.safetensors", 1 << 46), "memory is"),
    "a terabyte of state": (sparse("state.json", 1 << 46), "3145728 are allowed"),
    "a terabyte of manifest": (sparse("manifest.json", 1 << 46), "3145728 are allowed"),
    "header beyond the file": (model(safetensors_file({}, length=1 << 20)), "invalid header length"),
    "header of exabytes": (model(safetensors_file({}, length=(1 << 64) - 1)), "header would have"),
    "header large and there": (
        sparse("model.safetensors", 1 << 30, safetensors_file(b"", length=1 << 29)),
        "header would have 536870912 bytes",
    ),
    "header nested": (model(safetensors_file(NESTED)), "invalid JSON in header"),
    "header wide": (model(safetensors_file(WIDE)), "invalid JSON in header"),
    "header of numbers": (model(safetensors_file(b'{"a":' + NUMBERS + b"}")), "invalid JSON in header"),
    "header no JSON": (model(safetensors_file(b"\xff\xfe{}")), "invalid UTF-8 in header"),
    "header cut off": (model(b"\1\0"), "header too small"),
    "file empty": (model(b""), "header too small"),
    "shape giant": (model(safetensors_file({"a": floats([1 << 40], 0, 1 << 42)})), "file not fully covered"),
    "shape overflowing": (
        model(safetensors_file({"a": floats([1 << 32, 1 << 32], 0, 0)})),
        "overflow computing",
    ),
    "shape of nothing, overflowing": (
        model(safetensors_file({"a": floats([0, 1 << 62, 1 << 62], 0, 0)})),
        "step-00000001",
    ),
    "shape of many dimensions": (model(safetensors_file({"a": floats([0] * 10**5, 0, 0)})), "which is not there"),
    "shape negative": (model(safetensors_file({"a": floats([-1], 0, 4)}, b"1234")), "invalid value"),
    "shape of truths": (model(safetensors_file({"a": floats([True], 0, 4)}, b"1234")), "invalid type"),
    "places overlapping": (
        model(safetensors_file({"a": floats([1], 0, 4), "b": floats([1], 0, 4)}, b"1234")),
        "invalid offset",
    ),
    "places with a gap": (model(safetensors_file({"a": floats([1], 4, 8)}, b"12345678")), "invalid offset"),
    "places backwards": (model(safetensors_file({"a": floats([1], 4, 0)}, b"1234")), "invalid offset"),
    "bytes left over": (model(safetensors_file({"a": floats([1], 0, 4)}, b"12345678")), "file not fully covered"),
    "dtype unknown": (model(safetensors_file({"a": floats([1], 0, 4, "F33")}, b"1234")), "unknown variant"),
    "dtype a list": (model(safetensors_file({"a": floats([1], 0, 4, ["F32"])}, b"1234")), "invalid type"),
    "entry no table": (model(safetensors_file({"a": 5})), "invalid type"),
    "state nested": (text("state.json", NESTED), "nested too deeply"),
    "state wide": (text("state.json", WIDE), "not what a checkpoint keeps"),
    "state of digits": (text("state.json", b"1" * 100_000), "no JSON"),
    "state without parts": (state(lambda entries: entries.pop("parts")), "not what a checkpoint keeps"),
    "state of another step": (state(lambda entries: entries.update(step=2)), "not those of the manifest"),
    "state with other settings": (
        state(lambda entries: entries["settings"].update(width=9)),
        "not those of the manifest",
    ),
    "state with another part": (state(lambda entries: entries["parts"].update(x=None)), "not those of the manifest"),
    "state no table": (state(lambda entries: entries.update(state=[])), "not what a checkpoint keeps"),
    "tree with a tensor that is not there": (tree({"tensor": ["nowhere", "float32"]}), "which is not there"),
    "tree with a tensor of another part": (tree({"tensor": ["0.weight", "float32"]}), "which is not there"),
    "tree with a tensor twice": (tree([{"tensor": ["empty", "float32"]}] * 2), "was named before"),
    "tree without its tensors": (tree(None), "does not name the tensor"),
    "tree with another table": (tree({"module": "os"}), "does not name the tensor"),
    "tree wide": (tree([[]] * (LIMIT // 4 - 200)), "does not name the tensor"),
    "tree with a number for a tuple": (tree({"tuple": 5}), "no checkpoint has"),
    "tree with a table for a dict": (tree({"dict": {}}), "no checkpoint has"),
    "tree with a tensor without a dtype": (tree({"tensor": ["empty"]}), "no checkpoint has"),
    "state with a tensor": (
        state(lambda entries: entries["state"].update(a={"tensor": ["empty", "float32"]})),
        "not there",
    ),
    "state a tuple": (state(lambda entries: entries.update(state={"tuple": []})), "are no dicts"),
    "tree with a key twice": (tree({"dict": [["a", 1], ["a", 2]]}), "no checkpoint has"),
    "tree with a list for a key": (tree({"dict": [[["a"], 1]]}), "no checkpoint has"),
    "tree with a truth for a key": (tree({"dict": [[True, 1]]}), "no checkpoint has"),
    "tree with half a number": (tree({"float": "7ff8"}), "no checkpoint has"),
    "tree with letters for a number": (tree({"float": "g" * 16}), "no checkpoint has"),
    "tree deep": (tree(json.loads("[" * 900 + "]" * 900)), "state.json is damaged"),
    "settings deep": (
        state(lambda entries: entries.update(settings={"a": json.loads("[" * 900 + "]" * 900)})),
        "state.json is damaged",
    ),
    "manifest nested": (
        text("manifest.json", b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}"),
        "manifest.json is damaged",
    ),
    "manifest of nothing": (text("manifest.json", b"null"), "holds no table"),
    "manifest without a format": (text("manifest.json", b"{}"), "has format None"),
    "manifest with the format as a truth": (text("manifest.json", b'{"format": true}'), "has format True"),
    "manifest with a step as text": (lambda path: sign(path, step="1"), "not those of a checkpoint"),
    "manifest with a table for a version": (lambda path: sign(path, torch={}), "not those of a checkpoint"),
    "manifest with one more entry": (lambda path: sign(path, hook="os.system"), "not those of a checkpoint"),
    "manifest without files": (lambda path: sign(path, files=[]), "lists no files"),
    "manifest without a state": (
        lambda path: sign(path, files={"model.safetensors": {"size": 1, "sha256": ""}}),
        "lists no state.json",
    ),
    "manifest with files of nothing": (lambda path: sign(path, files={"state.json": None}), "gives no size"),
    "booleans that are neither": (
        model(safetensors_file({"a": floats([3], 0, 3, "BOOL")}, b"\0\1\7")),
        "neither true nor false",
    ),
    "tree with another dtype": (
        tree({"dict": [["a", {"tensor": ["layers.0.1", "int64"]}], ["b", {"tensor": ["empty", "float64"]}]]}),
        "wants a tensor of 'float64'",
    ),
    "tree with a function for a dtype": (
        tree({"dict": [["a", {"tensor": ["layers.0.1", "load"]}], ["b", {"tensor": ["empty", "float32"]}]]}),
        "wants a tensor of 'load'",
    ),
    "tree with a list for a dtype": (
        tree({"dict": [["a", {"tensor": ["layers.0.1", "__all__"]}], ["b", {"tensor": ["empty", "float32"]}]]}),
        "wants a tensor of '__all__'",
    ),
    "tree with pairs that are none": (
        tree({"dict": [["a", {"tensor": ["layers.0.1", "complex128"]}], ["b", {"tensor": ["empty", "float32"]}]]}),
        "wants a tensor of 'complex128'",
    ),
}
