"""Converts the data that users give `fit` to tensors or streams of batches."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lifted_bregman._arguments import whole
from lifted_bregman.data.streams import Stream, as_loader, is_stream
from lifted_bregman.data.tensors import as_pair, as_tensor
from lifted_bregman.errors import DataError, LiftedBregmanError, SettingError, StreamError, TensorError
from lifted_bregman.graph import ModelInput
from lifted_bregman.graph.inputs import input_tensors
from lifted_bregman.maps import Convolution, Dense
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers import Batch

LARGE_ROOT_MEAN_SQUARE = 1e3
"""`warn_unless_standardised` warns of inputs whose root mean square is larger.  Raw pixels from 0 to 255 are below."""
FAR_RANGES = 10.0
"""It warns of a feature whose smallest modulus is more than this many times its range, largest minus smallest, and the
root mean square of all ranges: a nearly constant pixel among others does no harm."""
_FEWEST_ROWS = 10  # fewer say little about the range of a feature


class TensorData(NamedTuple):
    """Inputs and targets as tensors."""

    X: ModelInput
    Y: Tensor

    @property
    def labels(self) -> bool:
        """Whether the targets are integer class labels."""
        return self.Y.ndim == 1 and not self.Y.is_floating_point()

    def batch(self, problem: LiftedProblem, weights: Any = None) -> Batch:
        """All samples as one batch, checked by the problem."""
        like = next(problem.model.parameters())
        w = None if weights is None else as_tensor(weights, "sample_weights", like.dtype, like.device)
        return Batch.whole(problem, self.X, self.Y, w)


def warn_unless_standardised(problem: LiftedProblem, data: TensorData) -> None:
    """Warns of inputs of a dense layer or convolution that are far from standardised; reads each number twice."""
    if not isinstance(problem.network[1].map, Dense | Convolution):
        return  # the first layer may itself normalise its inputs
    for own, x in zip(problem.network.inputs, input_tensors(data.X), strict=True):
        if not x.is_floating_point() or len(x) < _FEWEST_ROWS:
            continue
        size = float(torch.linalg.vector_norm(x)) / math.sqrt(x.numel())
        low, high = (bound.flatten() for bound in torch.aminmax(x.reshape(len(x), -1), dim=0))
        nearest = torch.where((low > 0) == (high > 0), torch.minimum(low.abs(), high.abs()), 0.0)
        ranges = high - low
        typical = torch.linalg.vector_norm(ranges) / math.sqrt(ranges.numel())
        far = (low < high) & (nearest > FAR_RANGES * ranges.clamp(min=typical))
        if size > LARGE_ROOT_MEAN_SQUARE:
            found = f"its root mean square is {size:.4g}"
        elif far.any():
            first = int(far.nonzero()[0])
            found = f"feature {first} is between {float(low[first]):.6g} and {float(high[first]):.6g}"
        else:
            continue
        warnings.warn(
            f"{own.name} is far from standardised: {found}. Steps are made for features of mean 0 and standard "
            f"deviation 1: give ({own.name} - mean) / deviation, with mean and deviation of each feature.",
            RuntimeWarning,
            stacklevel=3,
        )


def read_stream(
    problem: LiftedProblem,
    data: Any,
    batch_size: int | None,
    seed: int,
    name: str = "data",
    weights: Any = None,
    fixed: bool = False,
    epoch_steps: int | None = None,
) -> Stream | None:
    """The stream of a DataLoader, a Dataset or another source of batches; None for data of any other form.

    Args:
        problem: its checks are applied to every batch.
        data: the `data` of `fit`, unchanged.
        batch_size: samples of a batch of a Dataset; a DataLoader has its own.
        seed: fixes the order of a Dataset's samples.
        name: of the argument, for errors.
        weights: weights of samples, which a stream cannot have: SettingError unless None.
        fixed: whether every epoch reads the same batches, as a validation set needs.
        epoch_steps: batches of an epoch; None for all that the stream gives.
    """
    if isinstance(data, TensorData | str) or not is_stream(data) or _has_pair(data):
        if epoch_steps is not None:
            raise SettingError("epoch_steps is for streams: an epoch of a set in memory has all its samples.")
        return None
    if weights is not None:
        raise SettingError(
            f"weights were given for {name}, a {type(data).__name__}, whose samples come and go: let a "
            f"WeightedRandomSampler draw them, or hold them in memory by lb.data.gathered({name})."
        )
    if getattr(data, "drop_last", False) and fixed:
        raise SettingError(
            f"{name} is a DataLoader with drop_last=True, and every sample is evaluated: give it without drop_last, or "
            "give its Dataset."
        )
    steps = None if epoch_steps is None else whole(epoch_steps, "epoch_steps")
    loader = as_loader(data, name, batch_size, seed)
    return Stream(problem, loader, name, seed=seed, fixed=fixed, epoch_steps=steps)


def read_validation(
    problem: LiftedProblem, data: Any, weights: Any, seed: int
) -> tuple[TensorData | Stream | None, Batch | Stream | None]:
    """The validation set twice: as tensors or a stream, which workers are sent, and as a checked batch or stream.

    Errors begin with "validation".  (None, None) without a validation set.
    """
    if data is None:
        if weights is not None:
            raise SettingError("validation_weights was given without validation: give both, or leave it out.")
        return None, None
    stream = read_stream(problem, data, None, seed, "validation", weights, fixed=True)
    read = read_inputs(problem, data, "validation") if stream is None else stream
    try:
        if isinstance(read, Stream):
            _ = read.first
            return read, read
        return read, read.batch(problem, weights)
    except StreamError:
        raise
    except LiftedBregmanError as error:
        raise type(error)(f"validation: {error}") from error


def _has_pair(data: Any) -> bool:
    """Whether the attributes X and y of an object are its samples.  A Dataset may transform what it stores."""
    return hasattr(data, "X") and hasattr(data, "y") and not isinstance(data, Dataset)


def read_inputs(problem: LiftedProblem, data: Any, name: str = "data") -> TensorData:
    """Tensors from (X, Y) of tensors or arrays, samples of a data set, or a set's name.

    `TensorData` that were read before are returned as they are.
    """
    like = next(problem.model.parameters())
    if isinstance(data, TensorData):
        return data
    if isinstance(data, str):
        from lifted_bregman import data as sets

        return _named(problem, sets.load(data, dtype=like.dtype).train, data, like)
    if isinstance(data, tuple | list) and not hasattr(data, "_fields"):
        if len(data) != 2:
            inputs = problem.network.inputs
            pair = f"(({', '.join(own.name for own in inputs)}), Y)" if len(inputs) > 1 else "(X, Y)"
            raise TensorError(
                f"{name} has {len(data)} parts; expected {pair}. Weights of samples are given as sample_weights=, and "
                "a validation set as validation=."
            )
        return TensorData(*as_pair(data[0], data[1], name, like, problem.network))
    if _has_pair(data):
        return TensorData(*as_pair(data.X, data.y, name, like, problem.network))
    raise TensorError(
        f"{name} is a {type(data).__name__}; expected (X, Y) of tensors or arrays, a Dataset, a DataLoader or the name "
        "of a data set."
    )


def _named(problem: LiftedProblem, samples: Any, name: str, like: Tensor) -> TensorData:
    if len(problem.network.inputs) > 1:
        raise DataError(f"{name} has one tensor of inputs and the model takes {len(problem.network.inputs)}.")
    pair = TensorData(*as_pair(samples.X, samples.y, name, like, problem.network))
    assert isinstance(pair.X, Tensor)
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
