"""The folder of a demonstration: what `lifted demo` leaves and `lifted report` reads.

settings.json           what was run, where, and how each method ended; until the end, only that it is a demonstration
METHOD.jsonl            the rows of one method's history, the first one from before training
pictures.safetensors    some digits, and each method's reconstructions and codes of them
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.experiments._write import write_whole

KIND = "lifted demo, format 2"
SIDE = 28  # pixels of a digit
NOT_TUNED = "not tuned"
_NEEDED = ("epoch", "seconds", "objective", "sparsity", "validation_error")
_SETTINGS, _PICTURES = "settings.json", "pictures.safetensors"
PAGE = "index.html"


@dataclass(frozen=True)
class MethodRecord:
    """What was run, and how it ended.

    Args:
        key: names its files.
        name: as people read it.
        settings: the solver, and the setting that was chosen from a grid if one was; the others are its defaults.
        solver: the solver with all its settings.
        grid: the values that were tried, or `NOT_TUNED`.
        command: how `lifted train` makes the same run.
        load: processes that wanted to run in the method's last minute, on average.
        outcome: how it ended, in a word.
        message: how it ended, in a sentence.
    """

    key: str
    name: str
    settings: str
    solver: str
    grid: str
    command: str
    load: float
    outcome: str
    message: str

    def __post_init__(self) -> None:
        _require_types(self)
        if not self.key.isidentifier():
            raise ValueError(f"'key' is {self.key!r}")


@dataclass(frozen=True)
class DemoRecord:
    """What all methods had in common.

    Args:
        seconds: of training for each method.
        seed: of digits, initial weights and order of the samples.
        samples: digits for training.
        validation_samples: digits that no method has seen.
        batch_size: samples per step.
        alpha: the threshold of the code, and the weight of its penalty.
        source: where the digits came from.
        seconds_in_all: of the whole demonstration but for the page.
        environment: versions, threads, hardware.
    """

    seconds: float
    seed: int
    samples: int
    validation_samples: int
    batch_size: int
    alpha: float
    source: str
    seconds_in_all: float
    environment: dict[str, str]

    def __post_init__(self) -> None:
        _require_types(self)


@dataclass(frozen=True, eq=False)
class Demo:
    """A demonstration as it is stored.

    Args:
        record: what all methods had in common.
        methods: what differs between them.
        rows: by method's key, the history; the first row is from before training, and "validation_error" is the mean
            squared error per pixel.
        pictures: "train" and "validation" (digits), "KEY/train" and "KEY/validation" (reconstructions), "KEY/codes" (of
            the validation digits); each (count, 28, 28), from 0 to 1 but for codes.
    """

    record: DemoRecord
    methods: tuple[MethodRecord, ...]
    rows: Mapping[str, list[dict[str, float]]]
    pictures: Mapping[str, Tensor]


def begin(folder: Path, keys: tuple[str, ...]) -> None:
    """A folder for a new demonstration, known as such from now on, so that one that breaks off can be replaced."""
    clear(folder, keys)
    _write_settings(folder, {})


def clear(folder: Path, keys: tuple[str, ...]) -> None:
    """Makes the folder, and removes an earlier demonstration from it; an error if such files are of another origin."""
    if (folder / "checkpoints").exists():
        raise CheckpointError(f"{folder} holds a run of `lifted train`: choose another folder with --out.")
    names = (_SETTINGS, _PICTURES, *(f"{key}.jsonl" for key in keys))
    try:
        found = [name for name in (*names, PAGE) if os.path.lexists(folder / name)]
        if found and not _is_of_a_demo(folder / _SETTINGS):
            raise SettingError(
                f"{folder} holds {found[0]}, which no earlier demonstration wrote: choose another folder with --out."
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise SettingError(
            f"{folder} cannot be written to ({error.strerror}): choose another folder with --out."
        ) from error


def _is_of_a_demo(settings: Path) -> bool:
    """Whether a demonstration of any version wrote the file."""
    try:
        entries = json.loads(settings.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return False
    return isinstance(entries, dict) and str(entries.get("kind")).startswith(KIND.rstrip("0123456789"))


def append_row(folder: Path, key: str, row: Mapping[str, float]) -> None:
    """Adds a row to a method's history."""
    with (folder / f"{key}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def save(folder: Path, record: DemoRecord, methods: tuple[MethodRecord, ...], pictures: Mapping[str, Tensor]) -> None:
    """Writes what was not written on the way; the demonstration is whole from then on."""
    from safetensors.torch import save as as_bytes

    tensors = {name: images.reshape(-1, SIDE, SIDE).contiguous() for name, images in pictures.items()}
    write_whole(folder / _PICTURES, as_bytes(tensors))
    _write_settings(folder, {**asdict(record), "methods": [asdict(method) for method in methods]})


def _write_settings(folder: Path, entries: Mapping[str, Any]) -> None:
    write_whole(folder / _SETTINGS, (json.dumps({"kind": KIND, **entries}, indent=1) + "\n").encode())


def is_demo(folder: Path) -> bool:
    """Whether the folder holds a demonstration that came to its end."""
    return (folder / _SETTINGS).is_file() and (folder / _PICTURES).is_file()


def load(folder: Path) -> Demo:
    """The demonstration in a folder; CheckpointError if it is not whole."""
    from safetensors import SafetensorError
    from safetensors.torch import load as load_tensors

    try:
        entries = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        if entries.pop("kind") != KIND:
            raise ValueError(f"{_SETTINGS} is of another kind or version")
        methods = tuple(MethodRecord(**entry) for entry in entries.pop("methods"))
        rows = {method.key: _rows(folder / f"{method.key}.jsonl") for method in methods}
        pictures = load_tensors((folder / _PICTURES).read_bytes())
        for name in ("train", "validation", *(f"{m.key}/{part}" for m in methods for part in _PARTS)):
            if pictures[name].shape[1:] != (SIDE, SIDE):
                raise ValueError(f"{_PICTURES} holds '{name}' in another shape")
        return Demo(DemoRecord(**entries), methods, rows, pictures)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        again = f"lifted demo --out {shlex.quote(str(folder))}"
        raise CheckpointError(f"{folder} holds no whole demonstration ({error}): run `{again}` again.") from error


_PARTS = ("train", "validation", "codes")


def _rows(path: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        for name in (*_NEEDED, *row):
            if not isinstance(row[name], int | float):
                raise ValueError(f"{path.name} holds '{name}' that is no number")
    if not rows:
        raise ValueError(f"{path.name} is empty")
    return rows


def _require_types(record: Any) -> None:
    kinds = {"str": (str,), "int": (int,), "float": (float, int), "dict[str, str]": (dict,)}
    for field in fields(record):
        value = getattr(record, field.name)
        entries = value.values() if isinstance(value, dict) else ()
        if not isinstance(value, kinds[str(field.type)]) or not all(isinstance(entry, str) for entry in entries):
            raise ValueError(f"'{field.name}' is {value!r}")
