"""Tables of text, for a terminal and as Markdown, and the sentence about where their numbers were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Table = Sequence[Sequence[str]]


def plain(table: Table) -> str:
    """Columns side by side."""
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = ("  ".join(f"{cell:{width}s}" for cell, width in zip(line, widths, strict=True)) for line in table)
    return "\n".join(line.rstrip() for line in lines)


def markdown(table: Table) -> str:
    """The first line is the head."""
    head, *lines = ["| " + " | ".join(line) + " |" for line in table]
    return "\n".join([head, "|" + "---|" * len(table[0]), *lines])


def place(result: Mapping[str, Any]) -> str:
    """Processor, threads, version, rounds, and how busy the machine was."""
    where, rounds = result["environment"], result["rounds"]
    return (
        f"{where['processor']}, {where['threads']} {'thread' if where['threads'] == '1' else 'threads'}, torch "
        f"{where['torch']}; {rounds} {'round' if rounds == 1 else 'rounds'}, load before the run "
        f"{result['load_before']:.2f}."
    )
