"""Results in JSON: values are checked against their types, and files are written as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman.errors import CheckpointError
from lifted_bregman_lab.decoding import decode
from lifted_bregman_lab.stored import StoredFile


class Colour(Enum):
    """Two members whose values are not their names."""

    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Point:
    """A row."""

    colour: Colour
    place: tuple[float, float]


@dataclass(frozen=True)
class Found:
    """Results with rows, one for each line, and without."""

    title: str
    points: Sequence[Point]
    weights: Sequence[float] = ()


FILE = StoredFile(Found, "points, format 1", "lifted points", lines=("points",))
FOUND = Found("two", [Point(Colour.RED, (1.0, 2.5)), Point(Colour.BLUE, (0.0, -3.0))], [0.5])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    FILE.write(path, FOUND)
    assert FILE.read(path) == FOUND
    lines = path.read_text(encoding="utf-8").splitlines()
    assert '  {"colour": "RED", "place": [1.0, 2.5]},' in lines and lines[-3:] == [
        '  {"colour": "BLUE", "place": [0.0, -3.0]}',
        " ]",
        "}",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"points, format 1"', '"points, format 2"'),
        ('"RED"', '"GREEN"'),
        ("[1.0, 2.5]", "[1.0, 2.5, 3.0]"),
        ("2.5", '"2.5"'),
        ('"title"', '"name"'),
        ('"title": "two",', ""),
        ("}", ""),
    ],
)
def test_another_file_is_refused_with_the_command_that_writes_such(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "found.json"
    FILE.write(path, FOUND)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"is not what 'lifted points' writes .*: name such a file"):
        FILE.read(path)
    with pytest.raises(CheckpointError, match=r"cannot be read \(No such file.*: name a file of 'lifted points'"):
        FILE.read(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ([1, "a"], tuple[float, str], (1, "a")),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([[1], []], Sequence[Sequence[int]], [[1], []]),
        (None, float | None, None),
        ("BLUE", Colour, Colour.BLUE),
    ],
)
def test_decoded_values(value: Any, hint: Any, expected: Any) -> None:
    assert decode(value, hint) == expected


@pytest.mark.parametrize(("value", "hint"), [(True, int), (float("inf"), float), ([1, "a"], tuple[int, ...]), (1, str)])
def test_values_of_other_types_are_refused(value: Any, hint: Any) -> None:
    with pytest.raises(ValueError, match="'the file' is"):
        decode(value, hint)
