"""Snapshots whose content follows from the step, and comparisons that see every bit."""

import hashlib
import json
import math
import os
import struct
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.training.checkpoints import Snapshot


def snapshot(step: int, width: int = 8) -> Snapshot:
    """A small snapshot, different for every step; its model has width² + width numbers."""
    draw = torch.Generator().manual_seed(step)
    weight = torch.randn(width, width, generator=draw)
    parts = {
        "model": {"0.weight": weight, "0.bias": torch.randn(width, generator=draw), "2.weight": weight.t()},
        "variables": {"x_1": torch.randn(5, 3, generator=draw, dtype=torch.float64)},
        "solver": {
            "steps": step,
            "scale": (0.1 * step, math.nan, -math.inf),
            "layers": [{1: torch.tensor(step), 2: None}, ("ε", True)],
            "empty": torch.empty(0, 4),
        },
    }
    return Snapshot(step, parts, {"epoch": step // 3, "batch": [step, 0.1]}, {"width": width, "solver": "ADMM"})


def bits(value: Any) -> Any:
    """Something that is equal for two values only if they agree in kind, shape, dtype and every bit."""
    if isinstance(value, Tensor):
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return ("tensor", value.dtype, tuple(value.shape), bytes(flat.view(torch.uint8).numpy()) if len(flat) else b"")
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, dict):
        return ("dict", [(type(key), key, bits(entry)) for key, entry in value.items()])
    if isinstance(value, list | tuple):
        return (type(value), [bits(entry) for entry in value])
    if isinstance(value, Snapshot):
        return bits([value.step, dict(value.parts), dict(value.state), dict(value.settings)])
    return (type(value), value)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes, and every directory."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"directory"
        for path in sorted(folder.rglob("*"))
    }


def sign(checkpoint: Path, **changes: Any) -> None:
    """Writes the manifest that fits the files, as somebody hostile would; `changes` replace its entries."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest.pop("sha256", None)
    for name in manifest["files"] if "files" not in changes else ():
        data = (checkpoint / name).read_bytes() if (checkpoint / name).is_file() else b""
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest |= changes
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    manifest["sha256"] = hashlib.sha256(text).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A temporary folder in memory, where there is one, for tests that are not about the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


def fork() -> int:
    """os.fork, without the warning that newer versions of Python give when there are threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()
