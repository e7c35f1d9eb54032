"""The folder of a demonstration: `lifted demo` writes it and `lifted report` reads it.

settings.json           settings, machine and outcome of each method; until the end, only the kind of the folder
METHOD.jsonl            the rows of one method's history, the first one from before training
pictures.safetensors    some digits, and each method's reconstructions and codes of them
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.experiments._checked import checked_fields
from lifted_bregman.experiments.files import write_whole

_KIND = "lifted demo, format 2"
SIDE = 28  # pixels of a digit
NOT_TUNED = "not tuned"
_NEEDED = ("epoch", "seconds", "objective", "sparsity", "validation_error")
_SETTINGS, _PICTURES = "settings.json", "pictures.safetensors"
PAGE = "index.html"


@dataclass(frozen=True)
class MethodRecord:
    """One method: its settings and outcome.

    Args:
        key: the first part of its file names.
        name: its name in charts and tables.
        settings: the solver, and the setting that was chosen from a grid if one was; the others are its defaults.
        solver: the solver with all its settings.
        grid: the values that were tried, or `NOT_TUNED`.
        command: how `lifted train` makes the same run.
        load: the load average of the method's last minute (mean number of runnable processes).
        outcome: how it ended, in a word.
        message: how it ended, in a sentence.
    """

    key: str
    name: str
    settings: str
    solver: str
    grid: str
    command: str
    load: Annotated[float, Field(allow_inf_nan=True)]
    outcome: str
    message: str

    def __post_init__(self) -> None:
        checked_fields(type(self), vars(self))
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
        seconds_in_all: duration of the whole demonstration, without writing the page.
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
        checked_fields(type(self), vars(self))


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


def begin_demo(folder: Path, keys: tuple[str, ...]) -> None:
    """Marks the folder as a demonstration, so that one that was interrupted can be replaced."""
    clear_demo(folder, keys)
    _write_settings(folder, {})


def clear_demo(folder: Path, keys: tuple[str, ...]) -> None:
    """Makes the folder and removes an earlier demonstration; SettingError if its files are of another origin."""
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
    return isinstance(entries, dict) and str(entries.get("kind")).startswith(_KIND.rstrip("0123456789"))


def append_row(folder: Path, key: str, row: Mapping[str, float]) -> None:
    """Adds a row to a method's history."""
    with (folder / f"{key}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def save_demo(
    folder: Path, record: DemoRecord, methods: tuple[MethodRecord, ...], pictures: Mapping[str, Tensor]
) -> None:
    """Writes pictures and settings, the last files of a demonstration."""
    from safetensors.torch import save as as_bytes

    tensors = {name: images.reshape(-1, SIDE, SIDE).contiguous() for name, images in pictures.items()}
    write_whole(folder / _PICTURES, as_bytes(tensors))
    _write_settings(folder, {**asdict(record), "methods": [asdict(method) for method in methods]})


def _write_settings(folder: Path, entries: Mapping[str, Any]) -> None:
    write_whole(folder / _SETTINGS, (json.dumps({"kind": _KIND, **entries}, indent=1) + "\n").encode())


def is_demo(folder: Path) -> bool:
    """Whether the folder holds a finished demonstration."""
    return (folder / _SETTINGS).is_file() and (folder / _PICTURES).is_file()


def load_demo(folder: Path) -> Demo:
    """The demonstration in a folder; CheckpointError if it is not whole."""
    from safetensors import SafetensorError
    from safetensors.torch import load as load_tensors

    try:
        entries = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        if entries.pop("kind") != _KIND:
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
