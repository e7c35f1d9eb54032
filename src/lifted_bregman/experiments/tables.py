"""A user's own samples: tables and images in .csv, .npy, .npz or .idx files, and scikit-learn's diabetes table."""

from __future__ import annotations

import csv
import hashlib
import zipfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from lifted_bregman._text import is_number, unknown
from lifted_bregman.data import read_array
from lifted_bregman.data.arrays import MOST_BYTES, read_npy, require_samples
from lifted_bregman.data.csv_files import csv_lines
from lifted_bregman.data.files import inflated_limit, opened_as_it_is
from lifted_bregman.errors import DataError

_Array = NDArray[Any]
_MOST_DIRECTORY = 4 << 20  # bytes, of an archive
_MOST_SHOWN = 20  # names, in a sentence
_MOST_COMPARED = 10_000
_ARRAYS = ("X", "y", "X_test", "y_test")


@dataclass(frozen=True, eq=False)
class SampleTable:
    """The samples of a file, before any scaling.

    Args:
        X: inputs, (samples, ...).
        y: labels or numbers, (samples,) or (samples, targets), text for classes with names; None without targets.
        X_test: inputs of the test part, if the file has one.
        y_test: its labels or numbers.
        columns: the names of the inputs, if they have names.
        source: a sentence that says where the samples came from.
        sha256: of each file.
    """

    X: _Array
    y: _Array | None
    X_test: _Array | None = None
    y_test: _Array | None = None
    columns: tuple[str, ...] | None = None
    source: str = ""
    sha256: dict[str, str] = field(default_factory=dict)


def read_table(path: Path, target: str | None, wanted: bool, classes: bool) -> SampleTable:
    """Reads the samples in a file; raises DataError if it cannot be read or has no targets although they are wanted.

    Args:
        path: .csv with one sample in each line; .npz with the arrays X, y and perhaps X_test, y_test; or .npy or .idx
            with the inputs alone.
        target: where the targets are.  For .csv a column, by name or by number from 1, None for the last; for .npz the
            name of an array, None for y; otherwise a second file.
        wanted: whether the task needs targets.  If it does not, and `target` is None, every column is an input.
        classes: whether targets are classes, whose names may be text.
    """
    kind = path.suffix.lower()
    digests = {path.name: sha256_of(path)}
    if kind == ".csv":
        X, y, columns = _read_csv(path, target, wanted, classes)
        return SampleTable(X, y, columns=columns, source=f"the file {path}", sha256=digests)
    if kind == ".npz":
        keys = ("X", target or "y", "X_test", "y_test")
        found = _read_npz(path, keys, required=2 if wanted or target is not None else 1)
        parts = {name: found.get(key) for name, key in zip(_ARRAYS, keys, strict=True)}
        table = SampleTable(**parts, source=f"the file {path}", sha256=digests)  # type: ignore[arg-type]
        _require_equal_length(table.X, table.y, path, path)
        if table.X_test is not None and (table.y_test is not None or wanted):
            _require_equal_length(table.X_test, table.y_test, path, path, " of the test part")
        return table
    X = read_array(path)
    if target is None:
        if wanted:
            raise DataError(f"{path} holds inputs alone: name the file with their targets, --target labels.npy.")
        return SampleTable(X, None, source=f"the file {path}", sha256=digests)
    labels = Path(target)
    y = read_array(labels)
    _require_equal_length(X, y, path, labels)
    digests[labels.name] = sha256_of(labels)
    return SampleTable(X, y, source=f"the files {path} and {labels}", sha256=digests)


def diabetes() -> SampleTable:
    """Ten measurements of each of 442 patients, and the progression of their diabetes after a year."""
    try:
        from sklearn.datasets import load_diabetes  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError(
            "'diabetes' comes with scikit-learn, which is not installed: install lifted-bregman with the extra 'data'."
        ) from error
    bunch: Any = load_diabetes(scaled=False)
    return SampleTable(
        bunch.data, bunch.target, columns=tuple(bunch.feature_names), source="the Python package scikit-learn"
    )


NAMED_TABLES = {"diabetes": diabetes}
"""Data by name that are tables of numbers, not images."""


def read_new_inputs(path: Path, columns: Sequence[str] | None = None) -> _Array:
    """Inputs alone, as `lifted predict` takes them; of a .csv file with headings the columns of these names."""
    kind = path.suffix.lower()
    if kind == ".npz":
        return _read_npz(path, ("X",), required=1)["X"]
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
    with opened_as_it_is(path) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def _read_csv(
    path: Path, target: str | None, wanted: bool, classes: bool
) -> tuple[_Array, _Array | None, tuple[str, ...] | None]:
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
        yield from (row for row in csv.reader(csv_lines(path)) if row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} is no table of numbers separated by commas ({error}): save it as UTF-8 text."
        ) from error


def _column(target: str, names: Sequence[str], path: Path) -> int:
    if target in names:
        return names.index(target)
    if target.isdigit() and 1 <= int(target) <= len(names):
        return int(target) - 1
    listed, unlisted = names[:_MOST_SHOWN], names[_MOST_SHOWN:_MOST_COMPARED]
    raise DataError(f"in {path} {unknown('column', target, listed, unlisted)}")


def _numbers(
    path: Path, headings: Sequence[str] | None, places: Sequence[int], text: int | None = None
) -> tuple[_Array, _Array]:
    """These columns as numbers where others hold text, and the column `text` as it is."""
    rows = _rows(path)
    if headings is not None:
        next(rows)
    numbers, words = array("d"), []
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
        numbers.extend(float(row[place]) for place in places)
        words.append("" if text is None else row[text].strip())
    return np.frombuffer(numbers, np.float64).reshape(-1, len(places)), np.array(words)


def _read_npz(path: Path, wanted: Sequence[str], required: int) -> dict[str, _Array]:
    """The wanted arrays that an .npz file holds, each read as strictly as a .npy file.

    The first `required` of them must be there.  Other arrays are not read.  What is wanted may not inflate to more than
    an honest file of this size holds.
    """
    try:
        with opened_as_it_is(path) as file, zipfile.ZipFile(cast(Any, _SmallReads(file))) as archive:
            members = {name: archive.NameToInfo.get(f"{name}.npy") for name in wanted}
            for name in wanted[:required]:
                if members[name] is None:
                    held = [member.filename.removesuffix(".npy") for member in archive.filelist[:_MOST_SHOWN]]
                    raise DataError(
                        f"{path} holds the arrays {', '.join(held) or '(none)'}, but no '{name}': save it with "
                        "numpy.savez(file, X=inputs, y=targets)."
                    )
            found = {name: member for name, member in members.items() if member is not None}
            size, most = sum(member.file_size for member in found.values()), inflated_limit(path.stat().st_size)
            if size > min(most, MOST_BYTES):
                raise DataError(
                    f"{path} announces {size:,} bytes of values; at most {min(most, MOST_BYTES):,} are accepted for a "
                    "file of its size: if it is good, save it without compression, by numpy.savez."
                )
            return {name: _member(archive, member, f"the array '{name}' of {path}") for name, member in found.items()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path} is damaged ({error}): save it again with numpy.savez.") from error


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> _Array:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"{name} is compressed in a way that NumPy has not")
    with archive.open(member) as stream:
        found = read_npy(cast(BinaryIO, stream), member.file_size, name)
    require_samples(found, name)
    return found


class _SmallReads:
    """A file for `zipfile`, which reads the directory of an archive at once: one that is too large is refused."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _MOST_DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has {size:,} bytes")
        return self._file.read(_MOST_DIRECTORY if size < 0 else size)


def _require_equal_length(X: _Array, y: _Array | None, of_X: Path, of_y: Path, which: str = "") -> None:
    if y is None or len(X) != len(y):
        raise DataError(
            f"{of_X} has {len(X)} samples{which} and {of_y} {0 if y is None else len(y)} targets: give one for each."
        )
