"""manifest.json in the folder of a run: size and sha256 of the files that say what the run is.

Predictions depend on four things, and each is verified before it is used: the settings and the record of the data by
this manifest, the trained model by its hash in `result.json`, and checkpoints by manifests of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments._write import write_whole
from lifted_bregman.training._checkpoint_json import JSON_LIMIT, as_text, parsed, plain, sha256_of

MANIFEST = "manifest.json"
_FORMAT = 1
_MOST_BYTES = 1 << 28
_ATTEMPTS = 20  # to read while another process writes


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files and the manifest of them; those that are there already with the same bytes are left alone.

    The manifest is removed before the first file changes and written after the last one.  A kill in between leaves a
    folder that cannot be verified, never one that is refused.
    """
    entries: dict[str, Any] = {"format": _FORMAT, "files": {name: _listed(files[name]) for name in sorted(files)}}
    sealed = as_text({**entries, "sha256": sha256_of(entries)}, MANIFEST, indent=1)
    contents = {**files, MANIFEST: sealed}
    if all(_content(folder / name) == content for name, content in contents.items()):
        return
    try:
        (folder / MANIFEST).unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder / MANIFEST} cannot be replaced ({error.strerror}): change its rights."
        ) from error
    for name, content in contents.items():  # the manifest comes last
        write_whole(folder / name, content)


@dataclass(frozen=True)
class RunFiles:
    """Files of a run and its manifest, as they were on the disk at one moment.

    Args:
        folder: of the run.
        names: of the files that were asked for.
        files: the content of each of them that is there.
        manifest: the content of `manifest.json`; None where there is none.
    """

    folder: Path
    names: tuple[str, ...]
    files: Mapping[str, bytes]
    manifest: bytes | None

    @classmethod
    def read(cls, folder: Path, names: Iterable[str]) -> RunFiles:
        """Reads the files; again if another process has changed the manifest in the meantime."""
        names = tuple(names)
        for _ in range(_ATTEMPTS):
            manifest = _content(folder / MANIFEST)
            found = {name: content for name in names if (content := _content(folder / name)) is not None}
            if manifest == _content(folder / MANIFEST):
                break
        return cls(folder, names, found, manifest)

    def verify(self) -> str | None:
        """CheckpointError unless the files are those that the manifest lists.

        Returns the sentence that they could not be verified, where an older version of the library has written no
        manifest.
        """
        if self.manifest is None:
            return f"{self.folder} has no {MANIFEST}, so {' and '.join(self.files)} could not be verified."
        listed = _listed_files(self.manifest, self.folder / MANIFEST)
        for name in self.names:
            path = self.folder / name
            if name in listed and name not in self.files:
                raise CheckpointError(f"{path} is missing, which {MANIFEST} lists: restore it, or train again.")
            if name in self.files and listed.get(name) != _listed(self.files[name]):
                raise CheckpointError(
                    f"{path} is not what the run wrote (sha256): restore it, or train again; if it was changed on "
                    f"purpose, remove {MANIFEST}."
                )
        return None


def _listed(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _listed_files(manifest: bytes, path: Path) -> dict[str, Any]:
    try:
        if len(manifest) > JSON_LIMIT:
            raise CheckpointError(f"it has {len(manifest)} bytes and {JSON_LIMIT} are allowed")
        entries = plain(parsed(manifest), "it")
        if not isinstance(entries, dict) or not isinstance(entries.get("files"), dict):
            raise CheckpointError("it lists no files")
        digest = entries.pop("sha256", None)
        if digest != sha256_of(entries):
            raise CheckpointError("it is not what was written (sha256)")
        if entries.get("format") != _FORMAT:
            raise CheckpointError(f"it is of another format than {_FORMAT}, which a newer version may read")
    except CheckpointError as error:
        raise CheckpointError(
            f"{path} is damaged or not that of a run: {error}; restore it, or train again."
        ) from error
    files: dict[str, Any] = entries["files"]
    return files


def _content(path: Path) -> bytes | None:
    """The bytes of a file, None if there is none."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): restore the file, or its rights.") from error
    if len(content) > _MOST_BYTES:
        raise CheckpointError(f"{path} is above {_MOST_BYTES:,} bytes, which no file of a run is: restore it.")
    return content
