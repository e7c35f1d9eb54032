"""manifest.json: size and sha256 of files in its folder, and a sha256 of the entries of the manifest itself.

The manifest of a checkpoint lists all files of the checkpoint.  That of a run's folder lists the files on which
predictions depend: settings, record of the data, trained model and result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
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
    """The entry of a file in a manifest.

    Example:
        >>> from lifted_bregman.training.manifest import FileHash
        >>> FileHash(size=3, sha256="ab" * 32).size
        3
    """

    size: int
    """Bytes."""
    sha256: str
    """Of the content, as 64 hexadecimal digits."""

    @classmethod
    def of(cls, content: bytes) -> FileHash:
        """The size and hash of a content."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


def json_hash(value: Any) -> str:
    """sha256 of the canonical JSON of a value: keys sorted, no spaces, ASCII.

    Example:
        >>> from lifted_bregman.training.manifest import json_hash
        >>> json_hash({"a": 1, "b": 2}) == json_hash({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def json_text(value: Any, what: str, indent: int | None = None) -> bytes:
    """The JSON text of a value as it goes into a file; `what` names the value in errors.

    Example:
        >>> from lifted_bregman.training.manifest import json_text
        >>> json_text({"a": 1}, "the settings").decode().strip()
        '{"a": 1}'
    """
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
    """The value of a JSON text that may be hostile, of at most `JSON_LIMIT` bytes.

    Example:
        >>> from lifted_bregman.training.manifest import parse_json
        >>> parse_json(b'{"a": 1}')
        {'a': 1}
    """
    if len(text) > JSON_LIMIT:
        raise CheckpointError(f"it has {len(text)} bytes and {JSON_LIMIT} are allowed")
    try:
        return json.loads(text.decode("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"it is no JSON ({error})") from error


def parse_table(text: bytes) -> dict[str, Any]:
    """The table of a JSON text that may be hostile."""
    table = parse_json(text)
    if not isinstance(table, dict):
        raise CheckpointError("it holds no table")
    return table


def seal(files: Mapping[str, FileHash], **more: Any) -> bytes:
    """The content of a manifest that lists `files` and holds further entries.

    Example:
        >>> from lifted_bregman.training.manifest import FileHash, seal, unseal
        >>> files, more = unseal(seal({"a.txt": FileHash(3, "ab" * 32)}, step=2))
        >>> files["a.txt"].size, more
        (3, {'step': 2})
    """
    listed = {name: files[name]._asdict() for name in sorted(files)}
    entries = {"format": FORMAT, **more, "files": listed}
    return json_text({**entries, "sha256": json_hash(entries)}, MANIFEST, indent=1)


def unseal(content: bytes) -> tuple[dict[str, FileHash], dict[str, Any]]:
    """The files that a manifest lists, and its further entries.  CheckpointError unless it is as `seal` wrote it.

    Example:
        >>> from lifted_bregman.training.manifest import unseal
        >>> unseal(b"{}")
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.CheckpointError: it has format None and this version of the library reads ...
    """
    entries = parse_table(content)
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


def read_files(folder: Path, names: Iterable[str]) -> tuple[dict[str, bytes], str | None]:
    """{name: content} of those files of a run that exist.

    Raises CheckpointError if a file that the manifest lists is missing, or differs from its entry.  Also returns a
    warning that names the files that the manifest does not list; None if each file was verified.  Such files remain if
    a process is killed while it writes them.
    """
    names = tuple(names)
    files, listed = _read_with_manifest(folder, names)
    for name in filter(listed.__contains__, names):
        if name not in files:
            raise CheckpointError(f"{folder / name} is missing, which {MANIFEST} lists: restore it, or train again.")
        if listed[name] != FileHash.of(files[name]):
            raise CheckpointError(
                f"{folder / name} is not what the run wrote (sha256): it is damaged, so restore it, or train again; if "
                f"it was changed on purpose, remove {MANIFEST}."
            )
    unlisted = [name for name in files if name not in listed]
    if not unlisted:
        return files, None
    return files, f"{' and '.join(unlisted)} could not be verified, for {folder / MANIFEST} does not list them."


def update_files(folder: Path, files: Mapping[str, bytes | None]) -> None:
    """Writes files of a run and lists them in its manifest; None removes a file.

    The entries of these files are removed from the manifest before the first change, and the new ones are added after
    the last change.  If the process is killed in between, `read_files` cannot verify these files, but accepts them.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.training.manifest import unseal, update_files
        >>> update_files(Path("."), {"a.txt": b"abc"})
        >>> unseal(Path("manifest.json").read_bytes())[0]["a.txt"].size
        3
    """
    stored, listed = _read_with_manifest(folder, files)
    wanted = {name: content for name, content in files.items() if content is not None}
    hashes = {name: FileHash.of(content) for name, content in wanted.items()}
    kept = {name: found for name, found in listed.items() if name not in files or found == hashes.get(name)}
    if stored == wanted and listed == kept | hashes:
        return
    if kept != listed:
        _replace(folder / MANIFEST, seal(kept))
    for name in files:
        if name not in wanted:
            with writing(f"{folder / name} was not written"):
                (folder / name).unlink(missing_ok=True)
        elif stored.get(name) != wanted[name]:
            _replace(folder / name, wanted[name])
    _replace(folder / MANIFEST, seal(kept | hashes))


def _replace(path: Path, content: bytes) -> None:
    with writing(f"{path} was not written"):
        replace_file(path, content)


def _read_with_manifest(folder: Path, names: Iterable[str]) -> tuple[dict[str, bytes], dict[str, FileHash]]:
    """The files that exist, and the entries of the manifest at that moment; no entries without a manifest."""
    for _ in range(_ATTEMPTS):  # another process may change them in the meantime
        manifest = _content(folder / MANIFEST)
        found = {name: content for name in names if (content := _content(folder / name)) is not None}
        if manifest == _content(folder / MANIFEST):
            break
    with reading(folder / MANIFEST, _REMEDY):
        return found, {} if manifest is None else unseal(manifest)[0]


def _content(path: Path) -> bytes | None:
    """The bytes of a file; None if there is none."""
    with reading(path, _REMEDY):
        try:
            with open_file(path) as file:
                return file.read()
        except FileNotFoundError:
            return None
