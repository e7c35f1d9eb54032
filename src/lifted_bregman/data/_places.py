"""Folders that may hold the files of a set: the user's, the cache, an installation of the system."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lifted_bregman.data.files import opened, read_exactly, replacing
from lifted_bregman.data.registry import FileInfo, Stored
from lifted_bregman.errors import DataError

CACHE_VARIABLE = "LIFTED_BREGMAN_DATA"
SYSTEM_FOLDERS = (Path("/usr/share/datasets"),)  # where Debian's packages of data sets install
_SOURCE_FILE = "source.txt"

Content = Mapping[str, bytes | memoryview]


class WrongContent(DataError):
    """A file does not have the registered content."""


class NoCache(DataError):
    """No cache folder is set, and there is no home folder."""


def cache_folder() -> Path:
    """Return $LIFTED_BREGMAN_DATA, else $XDG_CACHE_HOME/lifted-bregman, else ~/.cache/lifted-bregman.

    Raises DataError if neither variable is set and there is no home folder.

    Example:
        >>> lb.data.cache_folder().name
        'lifted-bregman'
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "lifted-bregman"
    except RuntimeError as error:
        raise NoCache(f"there is no home folder to keep data in: name a folder in ${CACHE_VARIABLE}.") from error


@dataclass(frozen=True)
class Place:
    """A folder that may hold the files of one set or text, gzipped or not."""

    folder: Path
    kind: Literal["data_dir", "cache", "system"]

    def find(self, file: FileInfo) -> Path | None:
        """Return the path of the file, None if it is not there; its content is not checked."""
        for path in (self.folder / f"{file.name}.gz", self.folder / file.name):
            if os.path.exists(path):
                return path
        return None

    def holds(self, info: Stored) -> bool:
        """Return whether every file is there; their content is not checked."""
        return all(self.find(file) is not None for file in info.files)

    def read(self, info: Stored) -> Content:
        """Return the verified content of every file; DataError names the first that is missing or damaged."""
        return {file.name: self.read_file(file) for file in info.files}

    def read_file(self, file: FileInfo) -> memoryview:
        """Return the verified content of one file."""
        path = self.find(file)
        if path is None:
            raise DataError(f"{self.folder / file.name}.gz does not exist: put it there, or fetch the set again.")
        return read_verified(path, file)

    def store(self, file: FileInfo, content: bytes | memoryview) -> None:
        """Verify the content, then write the file gzipped."""
        require_content(content, file, file.name)
        with (
            replacing(self.folder / f"{file.name}.gz") as target,
            gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=target, mtime=0) as packed,
        ):
            packed.write(content)

    def remember_source(self, sentence: str) -> None:
        """Write the origin of the files into a text file beside them."""
        with replacing(self.folder / _SOURCE_FILE) as target:
            target.write(f"{sentence}\n".encode())

    def source(self) -> str:
        """Return a phrase that says where the files are, and where they came from if that is known."""
        if self.kind == "system":
            return f"the system's installation in {self.folder}"
        try:
            with (self.folder / _SOURCE_FILE).open(encoding="utf-8", errors="replace") as file:
                origin = file.read(1000).strip()
        except OSError:
            origin = ""
        where = "the cache" if self.kind == "cache" else f"the folder {self.folder}"
        return f"{where}; {origin}" if origin else where


def read_verified(path: Path, file: FileInfo) -> memoryview:
    """Return the decompressed content of `path`; DataError unless it is that of `file`."""
    with opened(path) as stream:
        content = read_exactly(stream, file.size, path)
    require_content(content, file, str(path))
    return content


def require_content(content: bytes | memoryview, file: FileInfo, name: str) -> None:
    """Raise WrongContent unless size and sha256 are those of `file`."""
    found = hashlib.sha256(content).hexdigest()
    if len(content) != file.size or found != file.sha256:
        raise WrongContent(
            f"{name} is damaged or another file: the sha256 of its content is {found[:12]}... and should be "
            f"{file.sha256[:12]}...; delete it and fetch the set again."
        )


def places(info: Stored, data_dir: Path | None) -> list[Place]:
    """Return the folders to look in, in this order: the user's, the cache unless there is none, the system's."""
    found = []
    if data_dir is not None:
        found.append(store_place(info, data_dir))
    with suppress(NoCache):
        found.append(Place(cache_folder() / info.name, "cache"))
    found.extend(Place(folder / info.name, "system") for folder in SYSTEM_FOLDERS)
    return found


def store_place(info: Stored, data_dir: Path | None) -> Place:
    """Return the folder to store files in: the cache, or of the user's DIR the folder DIR/NAME.

    DIR itself is returned if it holds the files and there is no DIR/NAME.
    """
    if data_dir is None:
        return Place(cache_folder() / info.name, "cache")
    if os.path.exists(data_dir) and not os.path.isdir(data_dir):
        raise DataError(f"data_dir is {data_dir}, which is a file: name the folder that holds it.")
    inside = Place(data_dir / info.name, "data_dir")
    flat = Place(data_dir, "data_dir")
    return flat if flat.holds(info) and not os.path.isdir(inside.folder) else inside
