"""Conversion of arrays and samples to tensors that the problem's checks accept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from lifted_bregman.errors import TensorError
from lifted_bregman.graph import InputTensors, ModelInput, Network
from lifted_bregman.problem.data_checks import require_all_inputs, require_plain

_FLOATS: dict[torch.dtype, type[np.floating[Any]]] = {torch.float32: np.float32, torch.float64: np.float64}


def as_tensor(
    value: Any, name: str, dtype: torch.dtype, device: torch.device, targets: bool = False, whole: bool = False
) -> Tensor:
    """Return a tensor unchanged, and an array as a tensor of the model's dtype and on its device.

    Arrays of whole numbers become int64 if they are targets, or an input that takes whole numbers (`whole`).
    """
    if isinstance(value, Tensor):
        require_plain(value, name)
        return value
    array = _numbers(value, name, targets)
    # A tensor can share the memory of an array that is writable, contiguous and of the machine's byte order.
    wanted: type[Any] = np.int64 if (targets or whole) and array.dtype.kind in "biu" else _FLOATS[dtype]
    if whole and array.dtype.kind == "b":
        wanted = np.bool_
    with np.errstate(over="ignore"):  # the checks of X and Y find infinity
        return torch.from_numpy(np.require(array, wanted, ["C", "W"])).to(device)


def _numbers(value: Any, name: str, targets: bool = False) -> NDArray[Any]:
    """Return `value` as an array of real numbers; raise TensorError for masked entries and values of other types."""
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


def as_pair(X: Any, Y: Any, name: str, like: Tensor, network: Network) -> tuple[ModelInput, Tensor]:
    """Return inputs and targets as tensors by `as_tensor`; `InputTensors` if the model takes several inputs."""
    targets = as_tensor(Y, f"Y of {name}", like.dtype, like.device, targets=True)
    if len(network.inputs) == 1:
        if isinstance(X, tuple) and X and all(isinstance(x, Tensor) for x in X):
            require_all_inputs(network.inputs, X)  # which raises the error
        return _input(X, 0, name, like, network), targets
    given = X.tensors if isinstance(X, InputTensors) else X
    if not isinstance(given, tuple | list) or len(given) != len(network.inputs):
        require_all_inputs(network.inputs, X)  # which raises the error
    return InputTensors(tuple(_input(x, i, name, like, network) for i, x in enumerate(given))), targets


def _input(x: Any, place: int, name: str, like: Tensor, network: Network) -> Tensor:
    """Return one of the model's inputs as a tensor."""
    own = network.inputs[place]
    whole = network.takes_indices(place) or (own.dtype is not None and not own.dtype.is_floating_point)
    return as_tensor(x, f"{own.name} of {name}", like.dtype, like.device, whole=whole)


def moved(x: Tensor, like: Tensor, place: int, network: Network) -> Tensor:
    """Return an input on the model's device and in its dtype; whole numbers that the model takes keep their dtype."""
    whole = not x.is_floating_point() and (network.takes_indices(place) or len(network.inputs) > 1)
    return to_device(x, like, x.dtype if whole else like.dtype)


def to_device(x: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x on the device of `like`; a copy of pinned memory to an accelerator is asynchronous."""
    return x.to(like.device, dtype, non_blocking=like.device.type != "cpu")


def collate(name: str, samples: list[Any]) -> Any:
    """Stack samples by torch's `default_collate`; arrays may have any byte order and memory layout."""
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
