"""The results of a benchmark in one JSON file: written whole, and read with errors that name the command."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.files import write_whole
from lifted_bregman_lab.decoding import decode

T = TypeVar("T")


@dataclass(frozen=True)
class StoredFile(Generic[T]):
    """The files of one benchmark.

    results  the dataclass that a file holds
    kind     first entry of the file, with the number of the format
    command  that writes such files, for errors
    lines    entries that are lists, written with a line for each element
    """

    results: type[T]
    kind: str
    command: str
    lines: tuple[str, ...] = ()

    def write(self, path: Path, found: T) -> None:
        """Write the file atomically."""
        entries: dict[str, Any] = asdict(found)  # type: ignore[call-overload]  # a dataclass
        lists = {name: ",\n".join(f"  {_json(entry)}" for entry in entries.pop(name)) for name in self.lines}
        head = _json({"kind": self.kind, **entries}, indent=1).removesuffix("\n}")
        parts = [head, *(f' "{name}": [\n{lines}\n ]' for name, lines in lists.items())]
        write_whole(path, (",\n".join(parts) + "\n}\n").encode())

    def read(self, path: Path) -> T:
        """Read a file that `write` wrote; CheckpointError names the command where it is none."""
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
            if entries.pop("kind") != self.kind:
                raise ValueError("another kind of file")
            found: T = decode(entries, self.results)
            return found
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}): name a file of '{self.command}'."
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not what '{self.command}' writes ({error}): name such a file.") from error


def _json(entry: dict[str, Any], indent: int | None = None) -> str:
    """As JSON, enums by the names of their members."""
    return json.dumps(entry, indent=indent, default=lambda member: member.name)
