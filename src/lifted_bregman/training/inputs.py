"""The forms in which `fit` takes data, all made into tensors that the problem's checks accept."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler
from torch.utils.data.sampler import BatchSampler, RandomSampler

from lifted_bregman.errors import DataError, SettingError, TensorError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers import Batch


class Inputs(NamedTuple):
    """Samples as tensors, and what else their form says."""

    X: Tensor
    Y: Tensor
    batch_size: int | None = None
    """Of a DataLoader."""

    @property
    def labels(self) -> bool:
        """Whether the targets are integer class labels."""
        return self.Y.ndim == 1 and not self.Y.is_floating_point()

    def batch(self, problem: LiftedProblem, weights: Any = None) -> Batch:
        """Everything as one checked batch."""
        w = None if weights is None else as_tensor(weights, "sample_weights", self.X.dtype, self.X.device)
        return Batch.whole(problem, self.X, self.Y, w)


def read_inputs(problem: LiftedProblem, data: Any, name: str = "data") -> Inputs:
    """Tensors from (X, Y) of tensors or arrays, a Dataset, a DataLoader, samples of a data set, or a set's name."""
    like = next(problem.model.parameters())
    if isinstance(data, str):
        from lifted_bregman import data as sets

        return _named(problem, sets.load(data, dtype=like.dtype).train, data, like)
    if isinstance(data, DataLoader):
        return _loader(data, name, like)
    if isinstance(data, tuple | list) and not hasattr(data, "_fields"):
        if len(data) != 2:
            raise TensorError(
                f"{name} has {len(data)} parts; expected (X, Y). Weights of samples are given as sample_weights=, and "
                "a validation set as validation=."
            )
        return _pair(data[0], data[1], name, like)
    if hasattr(data, "X") and hasattr(data, "y"):
        return _pair(data.X, data.y, name, like)
    if isinstance(data, Dataset):
        return _dataset(data, name, like)
    raise TensorError(
        f"{name} is a {type(data).__name__}; expected (X, Y) of tensors or arrays, a Dataset, a DataLoader or the name "
        "of a data set."
    )


def as_tensor(value: Any, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor as it is; an array in the model's dtype and on its device, integer arrays of labels as int64."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise TensorError(f"{name} is a sparse tensor; give {name.split()[0]}.to_dense().")
        return value
    try:
        array = np.asarray(value)
        if array.dtype.kind == "c":
            raise TypeError("it holds complex numbers")
        if array.dtype == object:
            raise TypeError(f"it holds objects such as {type(array.flat[0]).__name__}" if array.size else "it is empty")
        if array.dtype.kind in "iub":
            return torch.as_tensor(array.astype(np.int64), device=device)
        return torch.as_tensor(array, device=device).to(dtype)
    except (TypeError, ValueError) as error:
        raise TensorError(
            f"{name} is a {type(value).__name__} that cannot be made a tensor: {error}; give a tensor or an array of "
            "numbers."
        ) from error


def _pair(X: Any, Y: Any, name: str, like: Tensor) -> Inputs:
    inputs = as_tensor(X, f"X of {name}", like.dtype, like.device)
    if not isinstance(X, Tensor):
        inputs = inputs.to(like.dtype)
    return Inputs(inputs, as_tensor(Y, f"Y of {name}", like.dtype, like.device))


def _named(problem: LiftedProblem, samples: Any, name: str, like: Tensor) -> Inputs:
    pair = _pair(samples.X, samples.y, name, like)
    outputs, classes = _output_features(problem, pair.X), int(pair.Y.max()) + 1
    if pair.labels and outputs is not None and outputs < classes:
        raise DataError(
            f"{name} has {classes} classes and the model has {outputs} outputs: give it one for each class."
        )
    if pair.labels and outputs == pair.X[0].numel() != classes:
        raise DataError(
            f"{name} stands for images and their labels, and the model's {outputs} outputs are as many as its inputs: "
            f"to train an autoencoder load the set and give (X, X)."
        )
    return pair


def _output_features(problem: LiftedProblem, X: Tensor) -> int | None:
    try:
        with torch.no_grad():
            return int(problem.model(X[:1].to(next(problem.model.parameters()).device)).flatten(1).shape[1])
    except (RuntimeError, ValueError, IndexError):
        return None  # the problem's own checks say what does not fit


def _loader(loader: DataLoader[Any], name: str, like: Tensor) -> Inputs:
    """The loader's data set, collated by the loader; the order of the samples is fit's own."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise TensorError(f"{name} is a DataLoader over an iterable set; fit needs one of known length: use a Dataset.")
    own = loader.sampler if type(loader.batch_sampler) is BatchSampler else loader.batch_sampler
    whole = isinstance(own, RandomSampler | SequentialSampler) and len(own) == len(loader.dataset)  # type: ignore[arg-type]
    if not whole or getattr(own, "replacement", False):
        raise SettingError(
            f"{name} is a DataLoader with a {type(own).__name__} of its own; fit draws the order itself, as a function "
            "of seed and epoch, so that runs can be continued: give the Dataset, and weights as sample_weights=."
        )
    order = DataLoader(
        loader.dataset, batch_size=loader.batch_size, collate_fn=loader.collate_fn, num_workers=loader.num_workers
    )
    return _gathered(order, name, like)._replace(batch_size=loader.batch_size)


def _dataset(data: Dataset[Any], name: str, like: Tensor) -> Inputs:
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise TensorError(f"{name} is a data set without a length; fit needs to know it: use a map-style Dataset.")
    if not len(data):
        raise TensorError(f"{name} is empty: give at least one sample.")
    return _gathered(DataLoader(data, batch_size=256), name, like)


def _gathered(batches: DataLoader[Any], name: str, like: Tensor) -> Inputs:
    """All batches in memory: every solver may ask for the whole set."""
    parts = []
    for batch in batches:
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise TensorError(
                f"{name} gives {type(batch).__name__} samples; expected pairs (x, y) of input and target."
            )
        parts.append(_pair(batch[0], batch[1], name, like))
    if not parts:
        raise TensorError(f"{name} is empty: give at least one sample.")
    X, Y = torch.cat([part.X for part in parts]), torch.cat([part.Y for part in parts])
    return Inputs(X.to(like.device, like.dtype), Y.to(like.device, like.dtype if Y.is_floating_point() else Y.dtype))
