"""Images and codes as text, small enough to be stored with the rows of a run."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifted_bregman.errors import CheckpointError

PARTS, SHOWN = ("train", "validation"), ("input", "target", "output")
"""Of each part, the images that are stored: what went in, what should come out, what did."""
CODE = "code"
_MOST = 1 << 20  # pixels of images, or numbers of a code

Packed = dict[str, Any]


def pack(images: NDArray[np.uint8]) -> Packed:
    """8-bit images (samples, height, width) as text."""
    content = base64.b85encode(zlib.compress(images.tobytes(), 9)).decode("ascii")
    return {"shape": list(images.shape), "pixels": content}


def unpack(packed: Mapping[str, Any]) -> NDArray[np.uint8]:
    """What `pack` was given; CheckpointError if it was damaged since."""
    try:
        shape = tuple(int(size) for size in packed["shape"])
        count = int(np.prod(shape))
        if not 0 < count <= _MOST:
            raise ValueError(f"its shape is {shape}")
        content = zlib.decompressobj().decompress(base64.b85decode(packed["pixels"]), count)
        return np.frombuffer(content, np.uint8).reshape(shape)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise CheckpointError(f"a stored picture is damaged: {error}") from error


def pack_code(code: NDArray[np.float32]) -> Packed:
    """A code as its width and (place, value) of the numbers that are not 0."""
    return {"width": len(code), "values": [[int(place), round(float(code[place]), 6)] for place in code.nonzero()[0]]}


def unpack_code(packed: Mapping[str, Any]) -> NDArray[np.float64]:
    """The code with its zeros, rounded; CheckpointError if it was damaged since."""
    try:
        width = int(packed["width"])
        if not 0 < width <= _MOST:
            raise ValueError(f"its width is {width}")
        code = np.zeros(width)
        for place, value in packed["values"]:
            if not 0 <= place < width:
                raise ValueError(f"it has a number at {place}, and its width is {width}")
            code[place] = value
        if not np.isfinite(code).all():
            raise ValueError("a number is not finite")
        return code
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"a stored code is damaged: {error}") from error


def require_shown(pictures: Mapping[str, Any]) -> None:
    """CheckpointError unless the pictures of a run are none at all, or all that a report shows, undamaged."""
    if not pictures:
        return
    names = [f"{part}_{name}" for part in PARTS for name in SHOWN]
    missing = [name for name in (*names, CODE) if name not in pictures]
    if missing:
        raise CheckpointError(f"there is no picture '{missing[0]}'")
    for name in names:
        unpack(pictures[name])
    unpack_code(pictures[CODE])
