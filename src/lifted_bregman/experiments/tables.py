"""A user's own samples: tables and images in .csv, .npy, .npz or .idx files, and scikit-learn's diabetes table."""

from __future__ import annotations

import csv
import hashlib
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifted_bregman._text import is_number
from lifted_bregman.data import read_array
from lifted_bregman.errors import DataError
from lifted_bregman.experiments._typed import unknown

Array = NDArray[Any]
_MOST_BYTES = 4 << 30
_CHUNK = 1 << 20
_ARRAYS = ("X", "y", "X_test", "y_test")


@dataclass(frozen=True, eq=False)
class Table:
    """Samples as they are in a file.

    Args:
        X: inputs, (samples, ...).
        y: labels or numbers, (samples,) or (samples, targets), text for classes with names; None where there are none.
        X_test: inputs of a test part of its own, if there is one.
        y_test: its labels or numbers.
        columns: the names of the inputs, if they have names.
        source: a sentence that says where the samples came from.
        sha256: of each file.
    """

    X: Array
    y: Array | None
    X_test: Array | None = None
    y_test: Array | None = None
    columns: tuple[str, ...] | None = None
    source: str = ""
    sha256: dict[str, str] = field(default_factory=dict)


def read_table(path: Path, target: str | None, wanted: bool, classes: bool) -> Table:
    """The table in a file.

    Args:
        path: .csv with one sample in each line; .npz with the arrays X, y and perhaps X_test, y_test; or .npy or .idx
            with the inputs alone.
        target: for .csv the column of the targets, by name or by number from 1, the last if None; for .npz the name of
            their array, y if None; otherwise the file that holds them.
        wanted: whether targets are needed; if not, only a target that is named is taken apart from the inputs.
        classes: whether targets are classes, which may have names.
    """
    kind = path.suffix.lower()
    digests = {path.name: sha256_of(path)}
    if kind == ".csv":
        X, y, columns = _read_csv(path, target, wanted, classes)
        return Table(X, y, columns=columns, source=f"the file {path}", sha256=digests)
    if kind == ".npz":
        found = _read_npz(path)
        name = target or "y"
        if "X" not in found or (name not in found and (wanted or target is not None)):
            missing = "X" if "X" not in found else name
            raise DataError(
                f"{path} holds the arrays {', '.join(found) or '(none)'}, but no '{missing}': save it with "
                "numpy.savez(file, X=inputs, y=targets)."
            )
        parts = {name: found.get(key) for name, key in zip(_ARRAYS, ("X", name, "X_test", "y_test"), strict=True)}
        table = Table(**parts, source=f"the file {path}", sha256=digests)  # type: ignore[arg-type]
        _require_equal_length(table.X, table.y, path, path)
        if table.X_test is not None and (table.y_test is not None or wanted):
            _require_equal_length(table.X_test, table.y_test, path, path, " of the test part")
        return table
    X = read_array(path)
    if target is None:
        if wanted:
            raise DataError(f"{path} holds inputs alone: name the file with their targets, --target labels.npy.")
        return Table(X, None, source=f"the file {path}", sha256=digests)
    labels = Path(target)
    y = read_array(labels)
    _require_equal_length(X, y, path, labels)
    digests[labels.name] = sha256_of(labels)
    return Table(X, y, source=f"the files {path} and {labels}", sha256=digests)


def diabetes() -> Table:
    """442 patients with 10 measurements each, and how far their illness went in a year."""
    try:
        from sklearn.datasets import load_diabetes  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError(
            "'diabetes' comes with scikit-learn, which is not installed: install lifted-bregman with the extra 'data'."
        ) from error
    bunch: Any = load_diabetes(scaled=False)
    return Table(bunch.data, bunch.target, columns=tuple(bunch.feature_names), source="the Python package scikit-learn")


def read_inputs(path: Path, columns: Sequence[str] | None = None) -> Array:
    """Inputs alone, as `lifted predict` takes them; of a .csv file with headings the columns of these names."""
    kind = path.suffix.lower()
    if kind == ".npz":
        found = _read_npz(path)
        if "X" not in found:
            raise DataError(f"{path} holds the arrays {', '.join(found) or '(none)'}, but no 'X' with the inputs.")
        return found["X"]
    if kind != ".csv" or columns is None:
        return read_array(path)
    headings, _ = _beginning(path)
    if headings is None:
        return read_array(path)
    places = [_column(name, headings, path) for name in columns]
    try:
        return read_array(path)[:, places]
    except DataError:
        return _numbers(path, headings, places)[0]  # other columns may hold text


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: check the name and the folder.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check the file and its rights.") from error
    return digest.hexdigest()


def _read_csv(
    path: Path, target: str | None, wanted: bool, classes: bool
) -> tuple[Array, Array | None, tuple[str, ...] | None]:
    headings, first = _beginning(path)
    if first is None:
        raise DataError(f"{path} holds no samples: give one line of numbers, separated by commas, for each.")
    width = len(first)
    names = headings or tuple(map(str, range(1, width + 1)))
    place = None if target is None and not wanted else width - 1 if target is None else _column(target, names, path)
    inputs = [number for number in range(width) if number != place]
    if not inputs:
        raise DataError(f"{path} has no column but the target: give at least one column of inputs.")
    columns = None if headings is None else tuple(names[number] for number in inputs)
    if place is not None and classes and not is_number(first[place]):
        return *_numbers(path, headings, inputs, place), columns
    table = read_array(path)
    return table[:, inputs], None if place is None else table[:, place], columns


def _beginning(path: Path) -> tuple[tuple[str, ...] | None, list[str] | None]:
    """The headings and the first row below them, each None if there is none."""
    rows = _rows(path)
    first = next(rows, None)
    if first is None or any(map(is_number, first)):
        return None, first
    headings, row = tuple(cell.strip() for cell in first), next(rows, None)
    if row is not None and len(row) != len(headings):
        raise DataError(f"{path} has {len(headings)} headings and {len(row)} cells in its first row: repair it.")
    return headings, row


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from (row for row in csv.reader(file) if row)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: check the name and the folder.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check the file and its rights.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} is no table of numbers separated by commas ({error}): save it as UTF-8 text."
        ) from error


def _column(target: str, names: Sequence[str], path: Path) -> int:
    if target in names:
        return names.index(target)
    if target.isdigit() and 1 <= int(target) <= len(names):
        return int(target) - 1
    raise DataError(f"in {path} {unknown('column', target, names)}")


def _numbers(
    path: Path, headings: Sequence[str] | None, places: Sequence[int], text: int | None = None
) -> tuple[Array, Array]:
    """These columns as numbers where others hold text, and the column `text` as it is."""
    rows = _rows(path)
    if headings is not None:
        next(rows)
    numbers, words = [], []
    width = None if headings is None else len(headings)
    for count, row in enumerate(rows, start=1):
        width = len(row) if width is None else width
        if len(row) != width:
            raise DataError(f"row {count} of {path} has {len(row)} cells and the first {width}: repair that line.")
        for place in places:
            if not is_number(row[place]) or not np.isfinite(float(row[place])):
                name = str(place + 1) if headings is None else headings[place]
                raise DataError(
                    f"row {count} of {path} has '{row[place]}' in the column '{name}'; expected a number: repair it, "
                    "or leave that column out."
                )
        numbers.append([float(row[place]) for place in places])
        words.append("" if text is None else row[text].strip())
    return np.array(numbers), np.array(words)


def _read_npz(path: Path) -> dict[str, Array]:
    """The known arrays of an .npz file; each is taken out and read as strictly as a .npy file."""
    found: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if member.file_size > _MOST_BYTES:
                    raise DataError(f"{path} holds {member.file_size:,} bytes as '{name}': at most {_MOST_BYTES:,}.")
                if not member.filename.endswith(".npy") or not name.replace("_", "").isalnum():
                    continue
                copy = Path(folder) / "array.npy"
                with archive.open(member) as stream, copy.open("wb") as file:
                    while piece := stream.read(_CHUNK):
                        file.write(piece)
                try:
                    found[name] = read_array(copy)
                except DataError as error:
                    raise DataError(str(error).replace(str(copy), f"the array '{name}' of {path}")) from error
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: check the name and the folder.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check the file and its rights.") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path} is damaged ({error}): save it again with numpy.savez.") from error
    return found


def _require_equal_length(X: Array, y: Array | None, of_X: Path, of_y: Path, which: str = "") -> None:
    if y is None or len(X) != len(y):
        raise DataError(
            f"{of_X} has {len(X)} samples{which} and {of_y} {0 if y is None else len(y)} targets: give one for each."
        )
