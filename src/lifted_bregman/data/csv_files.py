"""The lines of a .csv file, read with bounded memory; an error if commas do not separate the cells."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

from lifted_bregman._text import is_number
from lifted_bregman.data.files import opened_as_it_is
from lifted_bregman.errors import DataError

MOST_TEXT = 512 << 20  # bytes
MOST_CELLS = 1 << 20  # in one line
_MOST_LINE = 32 * MOST_CELLS  # characters
_OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}


def csv_lines(path: Path) -> Iterator[str]:
    """Yield the lines that are not blank, the first without a byte order mark.

    Raises DataError for pipes and devices, for files and lines that are too long, and if one of the first two lines has
    another delimiter than commas; UnicodeDecodeError if the text is not UTF-8.
    """
    with opened_as_it_is(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_TEXT:
            raise DataError(f"{path} has more than the {MOST_TEXT:,} bytes accepted for text: save it as .npy.")
        text, found = io.TextIOWrapper(file, encoding="utf-8-sig"), 0
        while line := text.readline(_MOST_LINE):
            if line.count(",") >= MOST_CELLS or len(line) == _MOST_LINE:
                raise DataError(
                    f"{path} has a line of more than the {MOST_CELLS:,} cells, or {_MOST_LINE:,} characters, that are "
                    "accepted: give one line for each sample, or save the array as .npy."
                )
            if not line.strip():
                continue
            found += 1
            if found <= 2:  # the headings, and the first sample
                _require_commas(line, path)
            yield line


def _require_commas(line: str, path: Path) -> None:
    for mark, name in _OTHER_DELIMITERS.items():
        cells = line.split(mark if mark != " " else None)
        if len(cells) == 1:
            continue
        plain = "," not in line and (mark != " " or all(map(is_number, cells)))
        if plain or (mark != " " and all(map(_is_decimal_with_comma, cells))):
            raise DataError(
                f"{path} separates its cells by {name}; expected commas: save it again with commas between the cells "
                "and points in decimal numbers."
            )


def _is_decimal_with_comma(cell: str) -> bool:
    """Whether a cell is a number, perhaps with a decimal comma such as 1,5."""
    return not cell.strip().endswith(",") and is_number(cell.replace(",", "."))
