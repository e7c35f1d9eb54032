"""One checkpoint directory, which may be damaged or hostile: what it says it holds, and what it really holds.

Files are opened by their names inside the directory, never through links and never waiting for a pipe.  Their sizes
are compared before anything is read, and the bytes that are hashed are the ones that are used.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lifted_bregman.errors import CheckpointError
from lifted_bregman.training import _checkpoint_tensors
from lifted_bregman.training._checkpoint_json import JSON_LIMIT, parsed, plain, sha256_of

FORMAT = 1
MANIFEST, STATE, SUFFIX = "manifest.json", "state.json", ".safetensors"
PART = re.compile(r"[a-z][a-z0-9_]{0,63}")
_STEP = re.compile(r"step-(\d{8,18})")
_KEYS = {"format", "step", "best", "library", "torch", "python", "settings_sha256", "files", "sha256"}
_PIECE = 1 << 20


def step_name(step: int) -> str:
    """The name of a step's directory."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a directory's name, None if it is not one of a checkpoint."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found and name == step_name(int(found[1])) else None


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says; `files` gives size and sha256 of each other file."""

    step: int
    best: bool
    library: str
    torch: str
    python: str
    settings_sha256: str
    files: Mapping[str, tuple[int, str]]

    @property
    def parts(self) -> list[str]:
        """The names of the parts, sorted."""
        return sorted(name.removesuffix(SUFFIX) for name in self.files if name != STATE)

    def as_json(self) -> dict[str, Any]:
        """The manifest as it is written, with the hash of its own content."""
        files = {name: {"size": size, "sha256": digest} for name, (size, digest) in sorted(self.files.items())}
        entries = {"format": FORMAT, **vars(self), "files": files}
        return {**entries, "sha256": sha256_of(entries)}


class Directory:
    """An open checkpoint directory.  Every error names the file and the reason."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Directory]:
        """The directory at `path`, which must not be a link."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            reason = "is a link" if path.is_symlink() else f"cannot be opened ({error.strerror})"
            raise CheckpointError(f"{path} {reason}; a checkpoint is a directory such as {step_name(1234)}.") from error
        try:
            yield cls(path, descriptor)
        finally:
            os.close(descriptor)

    def manifest(self) -> Manifest:
        """The manifest, with everything checked that can be checked without reading the other files."""
        with self.reading(MANIFEST):
            with self._file(MANIFEST) as file:
                file.require_at_most(JSON_LIMIT)
                entries = parsed(file.take(file.size))
            manifest = _manifest(entries)
            expected = step_of(self.path.name)
            if expected not in (None, manifest.step):
                raise CheckpointError(f"it belongs to step {manifest.step}")
            present = {name for name in os.listdir(self._descriptor) if not name.startswith(".")} - {MANIFEST}
            for name in sorted(present ^ set(manifest.files)):
                raise CheckpointError(
                    f"{name} is {'not listed in it' if name in present else 'listed in it and missing'}"
                )
        for name, (size, _) in manifest.files.items():
            with self.reading(name):
                _require_regular(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False), size)
        return manifest

    def state(self, manifest: Manifest) -> Any:
        """The content of `state.json`."""
        with self.reading(STATE), self._file(STATE, manifest.files[STATE]) as file:
            file.require_at_most(JSON_LIMIT)
            text = file.take(file.size)
            file.require_hash()
            return parsed(text)

    def tensors(self, manifest: Manifest, part: str) -> dict[str, Tensor]:
        """The tensors of a part."""
        name = part + SUFFIX
        with self.reading(name), self._file(name, manifest.files[name]) as file:
            tensors = _checkpoint_tensors.read(file.size, file.take, file.fill)
            file.require_hash()
            return tensors

    def tensor_names(self, manifest: Manifest, part: str) -> set[str]:
        """The names of the tensors of a part, whose numbers are hashed and not kept."""
        name = part + SUFFIX
        with self.reading(name), self._file(name, manifest.files[name]) as file:
            names = _checkpoint_tensors.check(file.size, file.take)
            while file.take(_PIECE):
                pass
            file.require_hash()
            return names

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Every error in the block becomes one that names this file."""
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{self.path / name} is damaged or not a checkpoint's: {error}.") from error
        except OSError as error:
            raise CheckpointError(f"{self.path / name} cannot be read: {error.strerror}.") from error

    @contextmanager
    def _file(self, name: str, expected: tuple[int, str] | None = None) -> Iterator[_File]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=self._descriptor)
        try:
            yield _File(descriptor, expected)
        finally:
            os.close(descriptor)


def read_pointer(path: Path) -> int | None:
    """The step that a file such as LATEST names, None if it is damaged; raises OSError if it cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return step_of(_File(descriptor, None).take(64).decode("ascii").removesuffix("\n"))
    except (CheckpointError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)


class _File:
    """A file being read once, from beginning to end, and hashed on the way."""

    def __init__(self, descriptor: int, expected: tuple[int, str] | None) -> None:
        status = os.fstat(descriptor)
        _require_regular(status, None if expected is None else expected[0])
        self.size = status.st_size
        self._descriptor = descriptor
        self._expected = expected
        self._left = self.size
        self._digest = hashlib.sha256()

    def require_at_most(self, limit: int) -> None:
        if self.size > limit:
            raise CheckpointError(f"it has {self.size} bytes and {limit} are allowed")

    def take(self, count: int) -> bytes:
        """The next bytes, fewer only at the end."""
        parts = []
        count = min(count, self._left)  # it may be growing
        while count and (part := os.read(self._descriptor, count)):
            self._digest.update(part)
            self._left -= len(part)
            count -= len(part)
            parts.append(part)
        return b"".join(parts)

    def fill(self, memory: memoryview) -> None:
        """Puts the next bytes into `memory`."""
        while memory:
            count = os.readv(self._descriptor, [memory[:_PIECE]])
            if not count:
                raise CheckpointError("it became shorter while it was read")
            self._digest.update(memory[:count])
            memory = memory[count:]

    def require_hash(self) -> None:
        """Refuses bytes other than those that were written; to be asked after the last one."""
        if self._expected is not None and self._digest.hexdigest() != self._expected[1]:
            raise CheckpointError("its content is not what was written (sha256)")


def _require_regular(status: os.stat_result, size: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError("it is a link, a pipe or something else that is no regular file")
    if size is not None and status.st_size != size:
        raise CheckpointError(f"it has {status.st_size} bytes and the manifest says {size}")


def _manifest(entries: Any) -> Manifest:
    if not isinstance(entries, dict):
        raise CheckpointError("it is no manifest")
    entries = plain(entries, "it")
    if type(entries.get("format")) is not int or entries["format"] != FORMAT:
        raise CheckpointError(
            f"it is of format {str(entries.get('format'))[:20]} and this version of the library knows format {FORMAT}; "
            "a newer version may read it"
        )
    digest = entries.pop("sha256", None)
    if set(entries) | {"sha256"} != _KEYS or digest != sha256_of(entries):
        raise CheckpointError("it is not what was written (sha256)")
    words = {name: entries[name] for name in ("library", "torch", "python", "settings_sha256")}
    step, best, files = entries["step"], entries["best"], entries["files"]
    if not (
        type(step) is int and step >= 0 and type(best) is bool and all(isinstance(word, str) for word in words.values())
    ):
        raise CheckpointError("its entries are not of the right kind")
    if not isinstance(files, dict) or STATE not in files:
        raise CheckpointError(f"it lists no {STATE}")
    return Manifest(step, best, **words, files={name: _listed(name, entry) for name, entry in files.items()})


def _listed(name: str, entry: Any) -> tuple[int, str]:
    if name != STATE and not (name.endswith(SUFFIX) and PART.fullmatch(name.removesuffix(SUFFIX))):
        raise CheckpointError(f"it lists {name[:100]!r}, which is no file of a checkpoint")
    match entry:
        case {"size": int(size), "sha256": str(digest)} if len(entry) == 2 and type(size) is int and size >= 0:
            return size, digest
    raise CheckpointError(f"it gives no size and sha256 of {name}")
