"""The IDX format of the MNIST files: two zero bytes, a type, the number of dimensions, the dimensions, the values.

The reader is strict: a file must hold exactly as many bytes as its header announces.  Memory is bounded: the announced
size is compared with a limit before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lifted_bregman.data.files import expansion_limit, opened, read_exactly
from lifted_bregman.errors import DataError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_DIMENSIONS = 8


def read(path: Path, *, limit: int | None = None) -> NDArray[Any]:
    """Read the array in an IDX file, gzipped or not; raise DataError for any other content.

    Args:
        path: the file; its first bytes, not its name, show whether it is gzipped.
        limit: the most bytes of values accepted; None for `expansion_limit` of the file.
    """
    with opened(path) as stream:
        dtype, shape = read_header(stream, path)
        size = dtype.itemsize * math.prod(shape)
        most = expansion_limit(path) if limit is None else limit
        if size > most:
            raise DataError(
                f"{path} announces {size:,} bytes of values, of shape {shape}; at most {most:,} are accepted for a "
                "file of its size: it is damaged, or expands too much to be images; decompress it first if it is good."
            )
        values = read_exactly(stream, size, path)
    array = np.frombuffer(values, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def read_header(stream: BinaryIO, path: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return type and shape from the header, and leave the stream at the first value."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= _MOST_DIMENSIONS:
        raise DataError(
            f"{path} is no IDX file: it begins with the bytes {magic.hex(' ') or '(none)'}; expected 00 00, a type "
            f"from 08 to 0e and 1 to {_MOST_DIMENSIONS} dimensions."
        )
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path} ends inside its header: it is incomplete; replace it by a good copy.")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    if 0 in shape:
        raise DataError(f"{path} has the shape {shape}: it holds no values; give a file with at least one sample.")
    return np.dtype(_TYPES[magic[2]]), shape


def to_bytes(array: NDArray[np.uint8]) -> bytes:
    """Return an array of bytes in the IDX format."""
    return _header(array.shape) + array.tobytes()


def from_bytes(content: bytes | memoryview, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the array of bytes of this shape from verified content; raise DataError for any other content."""
    header = _header(shape)
    if bytes(content[: len(header)]) != header or len(content) != len(header) + math.prod(shape):
        raise DataError(
            f"the content is no IDX file of bytes of the shape {shape}: register the set with the shape of its files."
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def _header(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, 0x08, len(shape), *shape)
