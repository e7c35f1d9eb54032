"""One array from a user's .npy, .idx or .csv file, checked strictly and read with bounded memory."""

from __future__ import annotations

import math
import os
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lifted_bregman._text import is_number
from lifted_bregman.data import idx
from lifted_bregman.data.csv_files import csv_lines
from lifted_bregman.data.files import opened_as_it_is, read_exactly
from lifted_bregman.errors import DataError

MOST_BYTES = 4 << 30
_SUFFIXES = ".npy, .idx, .idx.gz, -ubyte, -ubyte.gz or .csv"
_HEADER_ERRORS = (ValueError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError, tokenize.TokenError)


def read_array(path: Path | str) -> NDArray[Any]:
    """Read the array of finite real numbers in a file; its first dimension counts samples, at least one.

    The name of the file determines its format:  NumPy's .npy (never with pickled objects), IDX (.idx or -ubyte, gzipped
    or not), or .csv with commas, one sample in each line, after at most one line of headings.  Raises DataError for
    files above 4 GiB, text above 512 MiB, lines of more than 1,048,576 cells, pipes and devices.

    Example:
        >>> np.savetxt("table.csv", [[1.0, 2.0], [3.0, 4.0]], delimiter=",")
        >>> lb.data.read_array("table.csv")
        array([[1., 2.],
               [3., 4.]])
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
        raise DataError(f"{path} has an ending that cannot be read: give a file whose name ends in {_SUFFIXES}.")
    require_samples(array, path)
    return array


def require_samples(array: NDArray[Any], name: Path | str) -> None:
    """Raise DataError with the name of the array unless it has samples and all its numbers are finite."""
    if array.size == 0 or array.ndim == 0:
        raise DataError(f"{name} has the shape {array.shape}: it holds no samples; give at least one.")
    _require_finite(array, name)


def _read_npy(path: Path) -> NDArray[Any]:
    with opened_as_it_is(path) as file:
        return read_npy(file, os.fstat(file.fileno()).st_size, path)


def read_npy(file: BinaryIO, length: int, name: Path | str) -> NDArray[Any]:
    """Read an array of numbers from a stream of `length` bytes in the .npy format; errors have its name."""
    try:
        shape, fortran, dtype = _npy_header(file)
    except _HEADER_ERRORS as error:
        raise DataError(f"{name} is no .npy file that can be read ({error}): save it with numpy.save.") from error
    if dtype.kind not in "buif":
        raise DataError(f"{name} holds values of type {dtype}; expected numbers: {_remedy(dtype)}.")
    size = dtype.itemsize * math.prod(shape)
    left = length - file.tell()
    if size != left or size > MOST_BYTES:
        raise DataError(
            f"{name} announces the shape {shape}, {size:,} bytes of values, and holds {left:,}; it is damaged, or "
            f"above the {MOST_BYTES:,} bytes that are accepted."
        )
    values = read_exactly(file, size, name)
    array = np.frombuffer(values, dtype).reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


def _remedy(dtype: np.dtype[Any]) -> str:
    """Return the remedy for an array of other values than numbers."""
    if dtype.kind in "US":
        return (
            "if it is names of classes, number them, numpy.unique(names, return_inverse=True)[1], or give a .csv file, "
            "whose column of classes may hold names"
        )
    return "save them as float32 or uint8"


def _npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns about headers of very old files
        shape, fortran, dtype = readers[version](file)
    if any(size < 0 for size in shape):
        raise ValueError(f"the shape {shape}")
    return shape, fortran, dtype


def _read_csv(path: Path) -> NDArray[np.float64]:
    try:
        return np.loadtxt(_samples(path), np.float64, comments=None, delimiter=",", ndmin=2)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path} is no table of numbers separated by commas ({error}): repair that line.") from error


def _samples(path: Path) -> Iterator[str]:
    """Return the lines of a .csv file without its headings; raise DataError if no line is left."""
    lines = csv_lines(path)
    first = next(lines, "")
    cells = first.split(",")
    if not any(map(is_number, cells)):
        first = next(lines, "")
    elif len(cells) > 2 and (_counts(cells, 0) or _counts(cells, 1)):
        warnings.warn(
            f"the first line of {path} holds the numbers of its columns and is read as a sample; if it is a line of "
            "headings, leave it out (in pandas: header=False).",
            RuntimeWarning,
            stacklevel=4,
        )
    if not first:
        raise DataError(f"{path} holds no samples: give one line of numbers, separated by commas, for each.")
    return chain([first], lines)


def _counts(cells: Sequence[str], start: int) -> bool:
    """Whether the cells are start, start + 1, ..."""
    return all(cell.strip() == str(number) for number, cell in enumerate(cells, start))


def _require_finite(array: NDArray[Any], name: Path | str) -> None:
    if array.dtype.kind != "f":
        return
    step = max(1, (1 << 22) // max(1, array[0].size))
    for start in range(0, len(array), step):
        rows = array[start : start + step]
        good = np.isfinite(rows.reshape(len(rows), -1)).all(1)
        if not good.all():
            raise DataError(
                f"{name} holds NaN or infinity, first in row {start + int(np.argmin(good))} (from 0): remove or repair "
                "such rows."
            )
