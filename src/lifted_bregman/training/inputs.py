"""The forms in which `fit` takes data, all made into tensors that the problem's checks accept."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, default_collate
from torch.utils.data.sampler import BatchSampler, RandomSampler

from lifted_bregman.errors import DataError, SettingError, TensorError
from lifted_bregman.graph import InputTensors, ModelInput, Network
from lifted_bregman.graph.inputs import input_tensors
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.data_checks import require_all_inputs, require_plain
from lifted_bregman.solvers import Batch

_FLOATS: dict[torch.dtype, type[np.floating[Any]]] = {torch.float32: np.float32, torch.float64: np.float64}


class Inputs(NamedTuple):
    """Samples as tensors, and what else their form says."""

    X: ModelInput
    Y: Tensor
    batch_size: int | None = None
    """Of a DataLoader."""
    drop_last: bool = False
    """Of a DataLoader: whether an epoch leaves out its last batch where that has fewer samples than the others."""

    @property
    def labels(self) -> bool:
        """Whether the targets are integer class labels."""
        return self.Y.ndim == 1 and not self.Y.is_floating_point()

    def batch(self, problem: LiftedProblem, weights: Any = None) -> Batch:
        """Everything as one checked batch."""
        like = next(problem.model.parameters())
        w = None if weights is None else as_tensor(weights, "sample_weights", like.dtype, like.device)
        return Batch.whole(problem, self.X, self.Y, w)


def read_inputs(problem: LiftedProblem, data: Any, name: str = "data") -> Inputs:
    """Tensors from (X, Y) of tensors or arrays, a Dataset, a DataLoader, samples of a data set, or a set's name.

    `Inputs` that were read before are returned as they are.
    """
    like = next(problem.model.parameters())
    if isinstance(data, Inputs):
        return data
    if isinstance(data, str):
        from lifted_bregman import data as sets

        return _named(problem, sets.load(data, dtype=like.dtype).train, data, like)
    if isinstance(data, DataLoader):
        return _loader(data, name, like, problem.network)
    if isinstance(data, Dataset):  # what it gives need not be what its attributes hold
        return _dataset(data, name, like, problem.network)
    if isinstance(data, tuple | list) and not hasattr(data, "_fields"):
        if len(data) != 2:
            inputs = problem.network.inputs
            pair = f"(({', '.join(own.name for own in inputs)}), Y)" if len(inputs) > 1 else "(X, Y)"
            raise TensorError(
                f"{name} has {len(data)} parts; expected {pair}. Weights of samples are given as sample_weights=, and "
                "a validation set as validation=."
            )
        return _pair(data[0], data[1], name, like, problem.network)
    if hasattr(data, "X") and hasattr(data, "y"):
        return _pair(data.X, data.y, name, like, problem.network)
    raise TensorError(
        f"{name} is a {type(data).__name__}; expected (X, Y) of tensors or arrays, a Dataset, a DataLoader or the name "
        "of a data set."
    )


def as_tensor(
    value: Any, name: str, dtype: torch.dtype, device: torch.device, targets: bool = False, whole: bool = False
) -> Tensor:
    """A tensor as it is, and an array in the model's dtype and on its device.

    Arrays of whole numbers become int64 where they are targets, or an input that takes them (`whole`).
    """
    if isinstance(value, Tensor):
        require_plain(value, name)
        return value
    array = _numbers(value, name, targets)
    # A tensor can share the memory of an array that is writable, contiguous and of the machine's byte order.
    wanted: type[Any] = np.int64 if (targets or whole) and array.dtype.kind in "biu" else _FLOATS[dtype]
    if whole and array.dtype.kind == "b":
        wanted = np.bool_
    with np.errstate(over="ignore"):  # infinity is found by the checks of X and Y
        return torch.from_numpy(np.require(array, wanted, ["C", "W"])).to(device)


def _numbers(value: Any, name: str, targets: bool = False) -> NDArray[Any]:
    """`value` as an array of real numbers, of which none is masked."""
    variable = name.split()[0]
    if np.ma.is_masked(value):
        masked = int(np.ma.getmaskarray(value).sum())
        raise TensorError(
            f"{name} is a masked array, and {masked} of the {value.size} entries are masked; expected a number in "
            f"every place: leave such samples out, or choose a number for them by {variable}.filled(number)."
        )
    array, reason = None, ""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:  # rows of different lengths, tensors of another device, ...
        reason = str(error)
    if array is not None and array.dtype.kind in "biuf":
        return array
    if array is not None:
        first = array.flat[0] if array.size else None
        if isinstance(first, str | bytes):
            remedy = f"convert them with {variable}.astype(float), or encode them as numbers"
            if targets:
                remedy = "number the classes, as classes, y = numpy.unique(y, return_inverse=True) does"
            raise TensorError(f"{name} holds strings such as {str(first)!r}; expected numbers: {remedy}.")
        kinds = {"c": "complex numbers", "O": f"objects such as {type(first).__name__}"}
        reason = (
            f"it holds {kinds.get(array.dtype.kind, f'values of type {array.dtype}')}" if array.size else "it is empty"
        )
    raise TensorError(
        f"{name} is a {type(value).__name__} that cannot be made a tensor: {reason}; give a tensor or an array of real "
        "numbers."
    )


def _pair(X: Any, Y: Any, name: str, like: Tensor, network: Network) -> Inputs:
    targets = as_tensor(Y, f"Y of {name}", like.dtype, like.device, targets=True)
    if len(network.inputs) == 1:
        if isinstance(X, tuple) and X and all(isinstance(x, Tensor) for x in X):
            require_all_inputs(network.inputs, X)  # which raises the error
        return Inputs(_input(X, 0, name, like, network), targets)
    given = X.tensors if isinstance(X, InputTensors) else X
    if not isinstance(given, tuple | list) or len(given) != len(network.inputs):
        require_all_inputs(network.inputs, X)  # which raises the error
    return Inputs(InputTensors(tuple(_input(x, i, name, like, network) for i, x in enumerate(given))), targets)


def _input(x: Any, place: int, name: str, like: Tensor, network: Network) -> Tensor:
    """One tensor that the model takes."""
    own = network.inputs[place]
    whole = network.takes_indices(place) or (own.dtype is not None and not own.dtype.is_floating_point)
    return as_tensor(x, f"{own.name} of {name}", like.dtype, like.device, whole=whole)


def _named(problem: LiftedProblem, samples: Any, name: str, like: Tensor) -> Inputs:
    if len(problem.network.inputs) > 1:
        raise DataError(f"{name} has one tensor of inputs and the model takes {len(problem.network.inputs)}.")
    pair = _pair(samples.X, samples.y, name, like, problem.network)
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


def _loader(loader: DataLoader[Any], name: str, like: Tensor, network: Network) -> Inputs:
    """The loader's data set, collated by the loader; the order of the samples is fit's own."""
    if isinstance(loader.dataset, IterableDataset):
        raise TensorError(f"{name} is a DataLoader over an iterable set; fit needs one of known length: use a Dataset.")
    batches = loader.batch_sampler
    if batches is None:
        raise SettingError(
            f"{name} is a DataLoader with batch_size=None, which gives samples one by one; fit takes batches: give "
            "the loader a batch_size=, or give fit the Dataset."
        )
    order = batches.sampler if type(batches) is BatchSampler else batches
    whole = isinstance(order, RandomSampler | SequentialSampler) and len(order) == len(loader.dataset)  # type: ignore[arg-type]
    if type(batches) is not BatchSampler or not whole or getattr(order, "replacement", False):
        raise SettingError(
            f"{name} is a DataLoader with a {type(order).__name__} of its own; fit draws the order itself, as a "
            "function of seed and epoch, so that runs can be continued: give the Dataset, and weights as "
            "sample_weights=."
        )
    collate = partial(_collate, name) if loader.collate_fn is default_collate else loader.collate_fn
    in_order = DataLoader(
        loader.dataset, batch_size=batches.batch_size, collate_fn=collate, num_workers=loader.num_workers
    )
    return _gathered(in_order, name, like, network)._replace(batch_size=batches.batch_size, drop_last=batches.drop_last)


def _dataset(data: Dataset[Any], name: str, like: Tensor, network: Network) -> Inputs:
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise TensorError(f"{name} is a data set without a length; fit needs to know it: use a map-style Dataset.")
    if not len(data):
        raise TensorError(f"{name} is empty: give at least one sample.")
    return _gathered(DataLoader(data, batch_size=256, collate_fn=partial(_collate, name)), name, like, network)


def _collate(name: str, samples: list[Any]) -> Any:
    """torch's `default_collate`, also of arrays that torch cannot share memory with."""
    if all(isinstance(sample, tuple | list) and len(sample) > 1 for sample in samples):
        samples = [tuple(_plain_part(part, name) for part in sample) for sample in samples]
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError) as error:
        raise TensorError(
            f"the samples of {name} cannot be stacked into a batch: {error}; give samples of the same shape and type, "
            "or a DataLoader with a collate_fn."
        ) from error


def _plain_part(part: Any, name: str) -> Any:
    if isinstance(part, tuple | list) and any(isinstance(inner, np.ndarray) for inner in part):
        return tuple(_plain_part(inner, name) for inner in part)
    if not isinstance(part, np.ndarray):
        return part
    array = _numbers(part, f"x of a sample of {name}")
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W"])


def _gathered(batches: DataLoader[Any], name: str, like: Tensor, network: Network) -> Inputs:
    """All batches in memory: every solver may ask for the whole set."""
    parts = []
    several = len(network.inputs) > 1
    for batch in batches:
        if several and isinstance(batch, tuple | list) and len(batch) == len(network.inputs) + 1:
            batch = tuple(batch[:-1]), batch[-1]  # (a, b, y), as of a TensorDataset
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            names = ", ".join(own.name for own in network.inputs)
            expected = f"(({names}), y) of inputs and target" if several else "pairs (x, y) of input and target"
            raise TensorError(f"{name} gives {type(batch).__name__} samples; expected {expected}.")
        parts.append(_pair(batch[0], batch[1], name, like, network))
    if not parts:
        raise TensorError(f"{name} is empty: give at least one sample.")
    columns = zip(*(input_tensors(part.X) for part in parts), strict=True)
    found = tuple(_moved(torch.cat(column), like, i, network) for i, column in enumerate(columns))
    Y = torch.cat([part.Y for part in parts])
    targets = Y.to(like.device, like.dtype if Y.is_floating_point() else Y.dtype)
    return Inputs(InputTensors(found) if several else found[0], targets)


def _moved(x: Tensor, like: Tensor, place: int, network: Network) -> Tensor:
    """One input on the model's device, and in its dtype unless it holds whole numbers that the model takes as such."""
    whole = not x.is_floating_point() and (network.takes_indices(place) or len(network.inputs) > 1)
    return x.to(like.device) if whole else x.to(like.device, like.dtype)
