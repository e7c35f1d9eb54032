"""What a checkpoint holds, taken apart for the disk and put together again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch import Tensor

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.training._checkpoint_directory import PART, STATE, Directory, Manifest
from lifted_bregman.training._checkpoint_json import KeyPath, as_text, decoded, encoded, plain, sha256_of, shown
from lifted_bregman.training._checkpoint_tensors import as_given, as_stored, require_storable


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a continuation needs.

    Tensors come back on the CPU, bit by bit what they were, each with memory of its own; containers come back as dict,
    list or tuple.

    Args:
        step: steps taken, at least 0.
        parts: "model", "solver", ... -> nested dicts (keys are strings or integers), lists and tuples of tensors,
            numbers, booleans, strings and None.  Tensors must be finite; plain numbers may be NaN or infinite.
        state: plain JSON, such as the position in the data; tuples come back as lists.
        settings: plain JSON; its hash tells whether a continuation has the same settings.
    """

    step: int
    parts: Mapping[str, Any]
    state: Mapping[str, Any]
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if type(self.step) is not int or not 0 <= self.step < 10**18:
            raise SettingError(f"step is {self.step!r}; it must be a whole number of at least 0.")
        for name in self.parts:
            if not PART.fullmatch(name):
                raise SettingError(f"a part is named {name!r}; use small letters, digits and underscores.")


def taken_apart(snapshot: Snapshot) -> tuple[bytes, dict[str, dict[str, Tensor]]]:
    """(text of `state.json`, tensors of each part by name), after every check that needs no disk."""
    state, settings = plain(snapshot.state, "state"), plain(snapshot.settings, "settings")
    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in snapshot.parts}

    def put(path: KeyPath, tensor: Tensor) -> str:
        require_storable(tensor, shown(path))
        stored = tensors[str(path[0])]
        base = ".".join(str(key) for key in path[1:]).encode("utf-8", "replace").decode("utf-8") or "value"
        name = base
        for number in count(2):
            if name not in stored and name != "__metadata__":  # which the format keeps for itself
                break
            name = f"{base}:{number}"
        stored[name] = as_stored(tensor)
        return name

    parts = {part: encoded(content, put, (part,)) for part, content in snapshot.parts.items()}
    entries = {"step": snapshot.step, "state": state, "settings": settings, "parts": parts}
    return as_text(entries, "the state"), tensors


def read_snapshot(directory: Directory) -> Snapshot:
    """The whole content of a checkpoint, every byte of it verified."""
    manifest = directory.manifest()
    size = sum(size for name, (size, _) in manifest.files.items() if name != STATE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise CheckpointError(
            f"{directory.path} holds {size} bytes and this machine's memory is {memory}: load it on a larger machine."
        )
    return _put_together(directory, manifest, directory.tensors, as_given)


def check_snapshot(directory: Directory) -> Manifest:
    """Verifies every byte of a checkpoint and keeps none."""
    manifest = directory.manifest()
    _put_together(
        directory, manifest, lambda m, part: dict.fromkeys(directory.tensor_names(m, part)), lambda _, __: None
    )
    return manifest


def _put_together(
    directory: Directory,
    manifest: Manifest,
    tensors_of: Callable[[Manifest, str], dict[str, Any]],
    convert: Callable[[Any, str], Any],
) -> Snapshot:
    content = directory.state(manifest)
    with directory.reading(STATE):
        match content:
            case {"step": manifest.step, "state": dict(state), "settings": dict(settings), "parts": dict(trees)}:
                plain(state, "state")
                plain(settings, "settings")
            case _:
                raise CheckpointError("it is not what a checkpoint keeps there")
        if sorted(trees) != manifest.parts or sha256_of(settings) != manifest.settings_sha256:
            raise CheckpointError("its parts or settings are not those of the manifest")
    parts = {}
    for part, tree in trees.items():
        tensors = tensors_of(manifest, part)

        def get(name: str, dtype: str, tensors: dict[str, Any] = tensors) -> Any:
            if name not in tensors:
                raise CheckpointError(f"it names the tensor {name[:100]!r}, which is not there or was named before")
            return convert(tensors.pop(name), dtype)

        with directory.reading(STATE):
            parts[part] = decoded(tree, get)
            if tensors:
                raise CheckpointError(f"it does not name the tensor {next(iter(tensors))[:100]!r} of {part}")
    return Snapshot(manifest.step, parts, state, settings)
