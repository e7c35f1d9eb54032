"""The data of a run, ready for `fit`, and the record by which new inputs are prepared in the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lifted_bregman import data as sets
from lifted_bregman._generators import named_generator
from lifted_bregman.data import DownloadProgress, Preparation, Samples
from lifted_bregman.errors import DataError
from lifted_bregman.experiments import tables
from lifted_bregman.experiments.scaling import Scaling
from lifted_bregman.experiments.settings import Settings

Pair = tuple[Tensor, Tensor]
_TEST_PART = 0.2  # of a file without a test part


@dataclass(frozen=True, eq=False)
class RunData:
    """Training and validation data of a run.

    Args:
        train: (X, Y).
        validation: (X, Y), or None.
        record: JSON from which `NewInputs` prepares samples that are not in the set.
        source: a sentence that says where the samples came from.

    Example:
        >>> from lifted_bregman.experiments import Settings, load_data
        >>> data = load_data(Settings(data="digits-100").resolved())
        >>> data.train[0].shape
        torch.Size([100, 64])
    """

    train: Pair
    validation: Pair | None
    record: dict[str, Any]
    source: str

    @property
    def inputs(self) -> int:
        """Features of a sample."""
        return int(self.train[0].shape[1])

    @property
    def outputs(self) -> int:
        """Outputs of the network."""
        classes = self.record["classes"]
        return int(self.train[1].shape[1]) if classes is None else len(classes)


def load_data(settings: Settings, progress: DownloadProgress | None = None) -> RunData:
    """The training and validation data of resolved settings.

    Example:
        >>> from lifted_bregman.experiments import Settings, load_data
        >>> data = load_data(Settings(data="digits-100").resolved())
        >>> data.inputs, data.outputs
        (64, 10)
    """
    if settings.own_file or settings.data in tables.NAMED_TABLES:
        return _of_table(settings)
    loaded = sets.load(
        settings.data,
        data_dir=settings.data_dir,
        dtype=getattr(torch, settings.dtype),
        seed=settings.seed,
        progress=progress,
    )
    if isinstance(settings.validation, float):
        kept, held_out = _split(len(loaded.train), settings.validation, settings)
        loaded = replace(loaded, train=loaded.train.select(kept), test=loaded.train.select(held_out))
    if settings.task == "classify":
        _require_classes(loaded.train.y, loaded.classes)
    transforms: list[sets.Transform] = []
    if settings.prepare != "none":
        transforms.append(sets.Centre(together=settings.prepare == "centre-together"))
    transforms += [] if settings.noise is None else [sets.Noise(settings.noise, settings.seed)]
    loaded = loaded.apply(*transforms)
    train, test = loaded.pairs(settings.task)
    record = {
        "kind": "set",
        "classes": list(loaded.classes) if settings.task == "classify" else None,
        "inputs": loaded.train.X.shape[1],
        "outputs": len(loaded.classes) if settings.task == "classify" else train[1].shape[1],
        "set": loaded.record(),
    }
    return RunData(train, None if settings.validation == "none" else test, record, loaded.source)


class NewInputs:
    """Prepares new inputs by a run's record, as the inputs of the set were prepared."""

    def __init__(self, record: Mapping[str, Any], dtype: str) -> None:
        try:
            self.classes: tuple[str, ...] | None = None if record["classes"] is None else tuple(record["classes"])
            self.inputs, self.outputs = int(record["inputs"]), int(record["outputs"])
            self._preparation: Preparation | Scaling
            self.columns: tuple[str, ...] | None = None
            self._target: Scaling | None = None
            if record["kind"] == "set":
                self._preparation = Preparation.from_record(record["set"])
            else:
                self.columns = None if record["columns"] is None else tuple(record["columns"])
                self._preparation = Scaling.from_record(record["scaling"], dtype)
                self._target = None if record["target"] is None else Scaling.from_record(record["target"], dtype)
            self._require_consistent()
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise DataError(
                f"the record of the data is incomplete or wrong ({error!r}): it was not made here."
            ) from error

    def _require_consistent(self) -> None:
        """ValueError unless the entries of the record fit each other; a record without a hash may be damaged."""
        outputs = self.outputs if self.classes is None else len(self.classes)
        names = (*(self.classes or ()), *(self.columns or ()))
        columns = self.inputs if self.columns is None else len(self.columns)
        if min(self.inputs, self.outputs) < 1 or (outputs, columns) != (self.outputs, self.inputs):
            raise ValueError("the numbers of inputs, columns, classes and outputs differ")
        if not all(isinstance(name, str) for name in names):
            raise ValueError("the name of a class or column is no text")
        if math.prod(self._preparation.shape) != self.inputs:
            raise ValueError("the shape of a sample is another")
        for scaling, width in ((self._preparation, self.inputs), (self._target, self.outputs)):
            if isinstance(scaling, Scaling):
                _require_scaling(scaling, width)
        if isinstance(self._preparation, Preparation):
            self._preparation(np.zeros((1, self.inputs)))  # its transforms take a sample of this width

    def read(self, path: Path) -> Tensor:
        """The inputs in a file, (samples, features), ready for the network."""
        array = tables.read_new_inputs(path, self.columns)
        if isinstance(self._preparation, Scaling):
            self._preparation.warn_of_another_scale(array)
        return self._preparation(array)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample of the set before it is flattened, such as (28, 28)."""
        return tuple(self._preparation.shape)

    def read_outputs(self, path: Path) -> Tensor:
        """Outputs in a file as the network returns them: (samples, outputs), or labels (samples,) of classes.

        Those of a regression are in the targets' own units, as `targets` gives them.
        """
        array = tables.read_new_inputs(path)
        if self.classes is not None and array.dtype.kind in "bui" and array.ndim == 1:
            return torch.from_numpy(array.astype(np.int64))
        if array.dtype.kind not in "buif":
            raise DataError(f"{path} holds text; outputs are numbers.")
        numbers = array.reshape(len(array), -1) if array.ndim > 1 else array.reshape(-1, 1)
        if numbers.shape[1] != self.outputs:
            raise DataError(
                f"{path} holds {numbers.shape[1]} numbers for each sample; expected {self.outputs}, the outputs of the "
                "network."
            )
        if self._target is not None:
            return self._target(numbers)
        return torch.from_numpy(numbers.astype(np.float64))

    def images(self, X: Tensor) -> NDArray[Any]:
        """Outputs of an autoencoder in the shape and on the scale of the inputs."""
        return self._preparation.undo(X).numpy()

    def targets(self, Y: Tensor) -> NDArray[Any]:
        """Outputs of a regression in the targets' own units."""
        return (Y if self._target is None else self._target.undo(Y)).numpy()


def _require_scaling(scaling: Scaling, width: int) -> None:
    mean = (0.0,) * width if scaling.mean is None else scaling.mean
    deviation = (1.0,) * width if scaling.deviation is None else scaling.deviation
    if not len(mean) == len(deviation) == width == math.prod(scaling.shape):
        raise ValueError("mean, deviation and shape are not of one length")
    if not all(map(math.isfinite, (scaling.divisor, *mean, *deviation))) or min(scaling.divisor, *deviation) <= 0.0:
        raise ValueError("the divisor and each deviation must be finite and above 0, and each mean finite")


def _of_table(settings: Settings) -> RunData:
    # The table: a file of the user or one of the named tables
    classify, supervised = settings.task == "classify", not settings.autoencoder
    if settings.own_file:
        table = tables.read_table(Path(settings.data), settings.target, supervised, classify)
    else:
        table = tables.NAMED_TABLES[settings.data]()
        if classify:
            raise DataError(f"the targets of '{settings.data}' are numbers and not classes: take --task regress.")
    # Training and test part, with labels from 0 or float64 targets
    X, y, X_test, y_test = _parts(table, settings)
    classes: tuple[str, ...] | None = None
    if supervised:
        assert y is not None
        if classify:
            y, y_test, classes = _as_classes(y, y_test)
        else:
            y, y_test = _as_numbers(y), None if y_test is None else _as_numbers(y_test)
    if X_test is not None and X_test.shape[1:] != X.shape[1:]:
        raise DataError(
            f"X holds samples of shape {X.shape[1:]} and X_test of {X_test.shape[1:]}: give the same to both."
        )
    # Scalings of inputs and targets, fitted to the training part
    assert settings.prepare is not None
    scaling = Scaling.fit(X, settings.prepare, settings.dtype)
    target = None
    if supervised and not classify:
        assert y is not None
        target = Scaling.fit(y, "standardise", settings.dtype)
    train = _pair(X, y, "train", scaling, target, settings)
    validation = None
    if X_test is not None and settings.validation != "none":
        validation = _pair(X_test, y_test, "test", scaling, target, settings)
    # The record from which `NewInputs` prepares new samples
    record = {
        "kind": "table",
        "classes": None if classes is None else list(classes),
        "inputs": train[0].shape[1],
        "outputs": train[1].shape[1] if classes is None else len(classes),
        "columns": None if table.columns is None else list(table.columns),
        "scaling": scaling.record(),
        "target": None if target is None else target.record(),
        "sha256": table.sha256,
    }
    return RunData(train, validation, record, f"The samples are from {table.source}.")


def _parts(table: tables.SampleTable, settings: Settings) -> tuple[Any, Any, Any, Any]:
    """Training and test part.  A fraction, or the test part that a file does not have, is drawn by the seed."""
    X, y = table.X, table.y
    fraction = settings.validation if isinstance(settings.validation, float) else None
    if settings.validation == "test" and table.X_test is None:
        fraction = _TEST_PART
    if fraction is None:
        return X, y, table.X_test, table.y_test
    kept, held_out = (places.numpy() for places in _split(len(X), fraction, settings))
    return X[kept], None if y is None else y[kept], X[held_out], None if y is None else y[held_out]


def _split(samples: int, fraction: float, settings: Settings) -> tuple[Tensor, Tensor]:
    count = max(1, round(samples * fraction))
    if count >= samples:
        raise DataError(
            f"the training part has {samples} samples, too few to hold out {fraction:g} of it: take --validation none."
        )
    order = torch.randperm(samples, generator=named_generator(settings.seed, "validation"))
    return order[count:].sort().values, order[:count].sort().values


def _as_classes(y: Any, y_test: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """Labels from 0 and the names of the classes, which are those of the training part."""
    if y.ndim == 2 and y.shape[1] == 1:
        y, y_test = y[:, 0], None if y_test is None else y_test[:, 0]
    if y.ndim != 1:
        raise DataError(f"the labels have the shape {y.shape}; expected one class for each sample.")
    if y.dtype.kind == "f" and not (y == np.round(y)).all():
        wrong = float(y[np.flatnonzero(y != np.round(y))[0]])
        raise DataError(
            f"a label is {wrong:g}; classes must be whole numbers or names: take --task regress for numbers."
        )
    found = np.unique(y)
    if len(found) < 2:
        raise DataError(f"every sample is of the class '{_name(found[0])}': give samples of at least two classes.")
    if y_test is not None:
        unknown = np.setdiff1d(y_test, found)
        if len(unknown):
            raise DataError(
                f"the class '{_name(unknown[0])}' has no sample in the training part: give more samples of it, another "
                "seed, or take --validation none."
            )
    labels, tested = (None if part is None else np.searchsorted(found, part).astype(np.int64) for part in (y, y_test))
    return labels, tested, tuple(map(_name, found))


def _as_numbers(y: Any) -> Any:
    if y.dtype.kind not in "buif":
        raise DataError(f"the targets are text such as '{y[0]}'; a regression needs numbers: take --task classify.")
    return y.astype(np.float64).reshape(len(y), -1)


def _name(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    number = float(value)
    return str(int(number)) if number.is_integer() else repr(number)


def _require_classes(labels: Tensor, classes: tuple[str, ...]) -> None:
    empty = (torch.bincount(labels, minlength=len(classes)) == 0).nonzero().flatten().tolist()
    if empty:
        raise DataError(
            f"the class '{classes[empty[0]]}' has no sample among the {len(labels)} of the training part: ask for more "
            "samples, or for another seed."
        )


def _pair(X: Any, y: Any, part: Any, scaling: Scaling, target: Scaling | None, settings: Settings) -> Pair:
    """(X, Y) of the task, from `Samples.pair`, after scaling and, for the task denoise, with noise."""
    inputs = scaling(X)
    if y is None:
        y = np.zeros(len(X), np.int64)
    labels = torch.from_numpy(y) if target is None else target(y)
    samples = Samples(inputs, labels)
    if settings.noise is not None:
        samples = sets.Noise(settings.noise, settings.seed).samples(samples, part)
    return samples.pair(settings.task)
