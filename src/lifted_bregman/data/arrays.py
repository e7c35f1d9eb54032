"""A user's own images: one array from a .npy, .idx or .csv file, read strictly and with bounded memory."""

from __future__ import annotations

import io
import math
import tokenize
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lifted_bregman._text import is_number
from lifted_bregman.data import idx
from lifted_bregman.data._files import opened_as_it_is, read_exactly
from lifted_bregman.errors import DataError

MOST_BYTES = 4 << 30
_MOST_TEXT = MOST_BYTES // 8
_SUFFIXES = ".npy, .idx, .idx.gz, -ubyte, -ubyte.gz or .csv"
_HEADER_ERRORS = (ValueError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError, tokenize.TokenError)


def read_array(path: Path | str) -> NDArray[Any]:
    """The finite, non-empty array of real numbers in a file, its first dimension counting samples.

    What the file is follows from its name: NumPy's .npy (never with pickled objects), IDX (.idx or -ubyte, gzipped or
    not), or .csv with commas, one sample in each line, after at most one line of headings.  Files above 4 GiB are
    refused.
    """
    path = Path(path)
    name = path.name.lower()
    if name.endswith(".npy"):
        array = _read_npy(path)
    elif name.removesuffix(".gz").endswith((".idx", "-ubyte")):
        array = idx.read(path)
    elif name.endswith(".csv"):
        array = _read_csv(path)
    else:
        raise DataError(f"{path} is of no kind that can be read: give a file whose name ends in {_SUFFIXES}.")
    if array.size == 0 or array.ndim == 0:
        raise DataError(f"{path} has the shape {array.shape}: it holds no samples; give at least one.")
    _require_finite(array, path)
    return array


def _read_npy(path: Path) -> NDArray[Any]:
    with opened_as_it_is(path) as file:
        try:
            shape, fortran, dtype = _npy_header(file)
        except (
            ValueError,
            TypeError,
            SyntaxError,
            EOFError,
            RecursionError,
            MemoryError,
            tokenize.TokenError,
        ) as error:
            raise DataError(f"{path} is no .npy file that can be read ({error}): save it with numpy.save.") from error
        if dtype.kind not in "buif":
            raise DataError(f"{path} holds values of type {dtype}; expected numbers: save them as float32 or uint8.")
        size = dtype.itemsize * math.prod(shape)
        left = path.stat().st_size - file.tell()
        if size != left or size > MOST_BYTES:
            raise DataError(
                f"{path} announces the shape {shape}, {size:,} bytes of values, and holds {left:,}; it is damaged, or "
                f"above the {MOST_BYTES:,} bytes that are accepted."
            )
        values = read_exactly(file, size, path)
    array = np.frombuffer(values, dtype).reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers of very old files are parsed with a warning
        shape, fortran, dtype = readers[version](file)
    if any(size < 0 for size in shape):
        raise ValueError(f"the shape {shape}")
    return shape, fortran, dtype


def _read_csv(path: Path) -> NDArray[np.float64]:
    with opened_as_it_is(path) as file:
        text = file.read(_MOST_TEXT + 1).removeprefix(b"\xef\xbb\xbf")
    if len(text) > _MOST_TEXT:
        raise DataError(f"{path} has more than the {_MOST_TEXT:,} bytes accepted for text: save it as .npy.")
    first, _, rest = text.partition(b"\n")
    cells = first.split(b",")
    if not any(map(is_number, cells)):
        text = rest
    elif len(cells) > 2 and [cell.strip() for cell in cells] in (_counting(0, len(cells)), _counting(1, len(cells))):
        warnings.warn(
            f"the first line of {path} counts its columns and is taken as a sample; if it is a line of headings, leave "
            "it out (in pandas: header=False).",
            RuntimeWarning,
            stacklevel=3,
        )
    if not text.strip():
        raise DataError(f"{path} holds no samples: give one line of numbers, separated by commas, for each.")
    try:
        return np.loadtxt(io.BytesIO(text), np.float64, comments=None, delimiter=",", ndmin=2, encoding="utf-8")
    except ValueError as error:
        raise DataError(f"{path} is no table of numbers separated by commas ({error}): repair that line.") from error


def _counting(start: int, count: int) -> list[bytes]:
    return [str(number).encode() for number in range(start, start + count)]


def _require_finite(array: NDArray[Any], path: Path) -> None:
    if array.dtype.kind != "f":
        return
    step = max(1, (1 << 22) // max(1, array[0].size))
    for start in range(0, len(array), step):
        rows = array[start : start + step]
        good = np.isfinite(rows.reshape(len(rows), -1)).all(1)
        if not good.all():
            raise DataError(
                f"{path} holds NaN or infinity, first in row {start + int(np.argmin(good))} (from 0): remove or repair "
                "such rows."
            )
