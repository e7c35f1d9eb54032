"""Folders in which a set may lie: the one the user names, the cache, an installation of the system."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from lifted_bregman.data._files import opened, read_exactly, write_atomically
from lifted_bregman.data.registry import FileInfo
from lifted_bregman.errors import DataError

CACHE_VARIABLE = "LIFTED_BREGMAN_DATA"
SYSTEM_FOLDERS = (Path("/usr/share/datasets"),)  # where Debian's packages of data sets install
_SOURCE_FILE = "source.txt"

Content = Mapping[str, bytes | memoryview]


class Stored(Protocol):
    """What a folder may hold: a set, or a text."""

    @property
    def name(self) -> str:
        """The name of its folder."""

    @property
    def files(self) -> Sequence[FileInfo]:
        """Its files."""


class WrongContent(DataError):
    """A file has not the content it should have."""


class NoCache(DataError):
    """There is no folder to keep data in."""


def cache_folder() -> Path:
    """$LIFTED_BREGMAN_DATA, else $XDG_CACHE_HOME/lifted-bregman, else ~/.cache/lifted-bregman.

    DataError where none of them is named and there is no home folder.
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
    """A folder that may hold the files of one set, gzipped or not."""

    folder: Path
    kind: Literal["data_dir", "cache", "system"]

    def find(self, file: FileInfo) -> Path | None:
        """Where the file lies, or None; nothing is said about its content."""
        for path in (self.folder / f"{file.name}.gz", self.folder / file.name):
            if os.path.exists(path):
                return path
        return None

    def holds(self, info: Stored) -> bool:
        """Whether every file of the set is there; nothing is said about their content."""
        return all(self.find(file) is not None for file in info.files)

    def read(self, info: Stored) -> Content:
        """The verified content of every file; DataError names the first that is missing or damaged."""
        return {file.name: self.read_file(file) for file in info.files}

    def read_file(self, file: FileInfo) -> memoryview:
        """The verified content of one file."""
        path = self.find(file)
        if path is None:
            raise DataError(f"{self.folder / file.name}.gz does not exist: put it there, or fetch the set again.")
        return read_verified(path, file)

    def store(self, file: FileInfo, content: bytes | memoryview) -> None:
        """Writes the file, gzipped, after its content has been verified."""
        require_content(content, file, file.name)

        def write(target: BinaryIO) -> None:
            with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=target, mtime=0) as packed:
                packed.write(content)

        write_atomically(self.folder / f"{file.name}.gz", write)

    def remember_source(self, sentence: str) -> None:
        """Notes beside the files where they came from."""

        def write(target: BinaryIO) -> None:
            target.write(f"{sentence}\n".encode())

        write_atomically(self.folder / _SOURCE_FILE, write)

    def source(self, info: Stored) -> str:
        """A phrase that says where the files are, and where they came from if that is known."""
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
    """The decompressed content of `path`, which must be that of `file`."""
    with opened(path) as stream:
        content = read_exactly(stream, file.size, path)
    require_content(content, file, str(path))
    return content


def require_content(content: bytes | memoryview, file: FileInfo, name: str) -> None:
    """DataError unless the sha256 is the right one."""
    found = hashlib.sha256(content).hexdigest()
    if len(content) != file.size or found != file.sha256:
        raise WrongContent(
            f"{name} is damaged or another file: the sha256 of its content is {found[:12]}... and should be "
            f"{file.sha256[:12]}...; delete it and fetch the set again."
        )


def places(info: Stored, data_dir: Path | None) -> list[Place]:
    """Where to look, in this order; of the user's folder DIR both DIR/NAME and, if that is none, DIR itself.

    Without a home folder there may be no cache to look in.
    """
    found = []
    if data_dir is not None:
        found.append(store_place(info, data_dir))
    with suppress(NoCache):
        found.append(Place(cache_folder() / info.name, "cache"))
    found.extend(Place(folder / info.name, "system") for folder in SYSTEM_FOLDERS)
    return found


def store_place(info: Stored, data_dir: Path | None) -> Place:
    """Where to put what is fetched."""
    if data_dir is None:
        return Place(cache_folder() / info.name, "cache")
    if os.path.exists(data_dir) and not os.path.isdir(data_dir):
        raise DataError(f"data_dir is {data_dir}, which is a file: name the folder that holds it.")
    inside = Place(data_dir / info.name, "data_dir")
    flat = Place(data_dir, "data_dir")
    return flat if flat.holds(info) and not os.path.isdir(inside.folder) else inside
