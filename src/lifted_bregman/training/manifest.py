"""manifest.json: size and sha256 of the files beside it, and a sha256 of its own entries.

A checkpoint has one that lists all its files.  The folder of a run has one that lists settings, record of the data,
trained model and result: all that predictions depend on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lifted_bregman.errors import CheckpointError
from lifted_bregman.training.files import open_file, reading, replace_file, writing

MANIFEST = "manifest.json"
FORMAT = 1
JSON_LIMIT = 3 << 20
"""Bytes of the largest JSON text that is written or read.  Parsing takes some thirty times as much memory."""
_REMEDY = "; restore it, or train again"
_ATTEMPTS = 20  # to read while another process writes


class FileHash(NamedTuple):
    """What a manifest says of a file."""

    size: int
    """Bytes."""
    sha256: str
    """Of the content, as 64 hexadecimal digits."""

    @classmethod
    def of(cls, content: bytes) -> FileHash:
        """The size and hash of a content."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


def json_hash(value: Any) -> str:
    """sha256 of the canonical JSON of a value: keys sorted, no spaces, ASCII."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def json_text(value: Any, what: str, indent: int | None = None) -> bytes:
    """The JSON text of a value as it goes into a file; `what` names the value in errors."""
    try:
        text = json.dumps(value, indent=indent).encode("ascii") + b"\n"
    except (ValueError, RecursionError) as error:  # such as a number of more than 4,300 digits
        raise CheckpointError(f"{what} cannot be written as JSON: {error}.") from error
    if len(text) > JSON_LIMIT:
        raise CheckpointError(
            f"{what} takes {len(text)} bytes of JSON and {JSON_LIMIT} are allowed: put long lists of numbers "
            "into tensors."
        )
    return text


def parse_json(text: bytes) -> Any:
    """The value of a JSON text that may be hostile, of at most `JSON_LIMIT` bytes."""
    if len(text) > JSON_LIMIT:
        raise CheckpointError(f"it has {len(text)} bytes and {JSON_LIMIT} are allowed")
    try:
        return json.loads(text.decode("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"it is no JSON ({error})") from error


def seal(files: Mapping[str, FileHash], **more: Any) -> bytes:
    """The content of a manifest that lists `files` and holds further entries."""
    listed = {name: files[name]._asdict() for name in sorted(files)}
    entries = {"format": FORMAT, **more, "files": listed}
    return json_text({**entries, "sha256": json_hash(entries)}, MANIFEST, indent=1)


def unseal(content: bytes) -> tuple[dict[str, FileHash], dict[str, Any]]:
    """The files that a manifest lists, and its further entries.  CheckpointError unless it is as `seal` wrote it."""
    entries = parse_json(content)
    if not isinstance(entries, dict):
        raise CheckpointError("it is no manifest")
    digest, known = entries.pop("sha256", None), entries.get("format")
    if type(known) is not int or known != FORMAT:
        raise CheckpointError(
            f"it has format {str(known)[:20]} and this version of the library reads format {FORMAT}; a newer version "
            "may read it"
        )
    if digest != json_hash(entries):
        raise CheckpointError("it is not what was written (sha256)")
    listed = entries.pop("files", None)
    if not isinstance(listed, dict):
        raise CheckpointError("it lists no files")
    files = {}
    for name, entry in listed.items():
        match entry:
            case {"size": int(size), "sha256": str(sha256)} if len(entry) == 2 and type(size) is int and size >= 0:
                files[name] = FileHash(size, sha256)
            case _:
                raise CheckpointError(f"it gives no size and sha256 of {name[:100]!r}")
    del entries["format"]
    return files, entries


def update_files(folder: Path, files: Mapping[str, bytes | None]) -> None:
    """Writes files of a run and lists them in its manifest; None removes a file.

    The files that change are taken off the list before the first change and are listed again after the last one.  A
    kill in between leaves files that cannot be verified, never files that are refused.
    """
    stored = StoredFiles.read(folder, files)
    wanted = {name: content for name, content in files.items() if content is not None}
    listed = {} if stored.manifest is None else stored.listed()
    hashes = {name: FileHash.of(content) for name, content in wanted.items()}
    kept = {name: found for name, found in listed.items() if name not in files or found == hashes.get(name)}
    if stored.files == wanted and listed == kept | hashes:
        return
    if kept != listed:
        _replace(folder / MANIFEST, seal(kept))
    for name in files:
        if name not in wanted:
            with writing(f"{folder / name} was not written"):
                (folder / name).unlink(missing_ok=True)
        elif stored.files.get(name) != wanted[name]:
            _replace(folder / name, wanted[name])
    _replace(folder / MANIFEST, seal(kept | hashes))


def _replace(path: Path, content: bytes) -> None:
    with writing(f"{path} was not written"):
        replace_file(path, content)


@dataclass(frozen=True)
class StoredFiles:
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
    def read(cls, folder: Path, names: Iterable[str]) -> StoredFiles:
        """Reads the files; again if another process has changed the manifest in the meantime."""
        names = tuple(names)
        for _ in range(_ATTEMPTS):
            manifest = _content(folder / MANIFEST)
            found = {name: content for name in names if (content := _content(folder / name)) is not None}
            if manifest == _content(folder / MANIFEST):
                break
        return cls(folder, names, found, manifest)

    def listed(self) -> dict[str, FileHash]:
        """The files that the manifest lists."""
        with reading(self.folder / MANIFEST, _REMEDY):
            return unseal(self.manifest or b"")[0]

    def verify(self) -> str | None:
        """CheckpointError if a file is not the one that the manifest lists.

        Returns the sentence about files that the manifest does not list: a run of an earlier version, or one that was
        killed while it wrote them.  None where each file was verified.
        """
        listed = {} if self.manifest is None else self.listed()
        for name in self.names:
            path = self.folder / name
            if name in listed and name not in self.files:
                raise CheckpointError(f"{path} is missing, which {MANIFEST} lists: restore it, or train again.")
            if name in listed and listed[name] != FileHash.of(self.files[name]):
                raise CheckpointError(
                    f"{path} is not what the run wrote (sha256): it is damaged, so restore it, or train again; if it "
                    f"was changed on purpose, remove {MANIFEST}."
                )
        unlisted = [name for name in self.files if name not in listed]
        if not unlisted:
            return None
        return f"{' and '.join(unlisted)} could not be verified, for {self.folder / MANIFEST} does not list them."


def _content(path: Path) -> bytes | None:
    """The bytes of a file; None if there is none."""
    with reading(path, _REMEDY):
        try:
            with open_file(path) as file:
                return file.read()
        except FileNotFoundError:
            return None
