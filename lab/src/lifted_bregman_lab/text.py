"""Tables as text, and numbers with their nouns."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""A table as text: a header, and rows with as many cells."""


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with aligned columns, numbers to the right and words to the left."""
    cells = pd.DataFrame([header, *rows])
    for column, texts in cells.items():
        number = texts[1:].str.match(r"\d").any()
        cells[column] = texts.str.pad(int(texts.str.len().max()), side="left" if number else "right")
    return ["  ".join(line).rstrip() for line in cells.to_numpy()]


def markdown(table: Rows) -> str:
    """Return the table in Markdown, without a final newline."""
    header, rows = table
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def count(number: int, noun: str) -> str:
    """Return the number with its noun, such as "1 seed" and "2 seeds"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
