"""Atomic writes of result files: bytes, and arrays as .npy, or .csv with one sample in each line."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifted_bregman.errors import SettingError
from lifted_bregman.training.files import replace_file


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Writes a file beside its final name, then renames it."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise SettingError(
            f"{path} cannot be written ({error.strerror}): choose another place, or make room or rights there."
        ) from error


def require_array_file(path: Path) -> None:
    """SettingError unless an array can be written to `path`: a name that ends in .npy or .csv, in a folder."""
    if path.suffix.lower() not in (".npy", ".csv"):
        raise SettingError(f"{path} has no kind that can be written: name a file that ends in .npy or .csv.")
    if path.is_dir():
        raise SettingError(f"{path} is a folder: name a file that ends in .npy or .csv.")
    if not path.parent.is_dir():
        raise SettingError(f"{path} cannot be written, for there is no folder {path.parent}: choose another place.")


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Writes an array (samples, ...) in the format that the ending of `path` names.

    A .csv file has one line for each sample, without headings, its numbers separated by commas and with as many digits
    as it takes to read the same numbers again.
    """
    content = BytesIO()
    if path.suffix.lower() == ".csv":
        digits = "%d" if array.dtype.kind in "bui" else "%.9g" if array.dtype == np.float32 else "%.17g"
        np.savetxt(content, array.reshape(len(array), -1), fmt=digits, delimiter=",")
    else:
        np.save(content, np.ascontiguousarray(array), allow_pickle=False)
    write_whole(path, content.getbuffer())
