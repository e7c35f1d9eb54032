"""The preparation of a network's inputs from raw images, and its inverse."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lifted_bregman.data.transforms import Transform, from_records
from lifted_bregman.errors import DataError

DTYPES = {"float32": torch.float32, "float64": torch.float64}
FAR_ABOVE_ONE = 10.0  # pixels on the scale from 0 to 1, with usual noise, are below this


def is_whole(array: NDArray[Any]) -> bool:
    """Whether all numbers are whole, in any dtype."""
    return array.dtype.kind in "bui" or bool(np.array_equal(array, np.rint(array)))


def is_raw(array: NDArray[Any]) -> bool:
    """Whether numbers must be raw pixels: all are whole, in any dtype, and one is above 1."""
    return bool(array.size) and bool(array.max() > 1) and is_whole(array)


def shape_remedy(given: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Return what to do with pictures of shape `given` where `expected` is needed, each with or without channels."""
    channels, *size = given if len(given) == 3 else (1, *given)
    wanted, *wanted_size = expected if len(expected) == 3 else (1, *expected)
    first = ""
    if size != wanted_size and given[:-1] == tuple(wanted_size):
        channels, size, first = given[-1], list(given[:-1]), "put the channels first by X.transpose(0, 3, 1, 2)"
    if size != wanted_size:
        return "scale or crop them to that size"
    if channels == wanted:
        return first
    kinds = {1: "grey (1 channel)", 3: "colour (3 channels)"}
    has, needs = (kinds.get(count, f"{count} channels") for count in (channels, wanted))
    return f"{first}{' and ' if first else ''}convert them from {has} to {needs}"


def warn_of_scale(array: NDArray[Any], levels: float) -> None:
    """Warn of numbers that `is_raw` excludes and that may not be on the scale from 0 to 1.

    These are zeros and ones in an integer dtype, and numbers far above 1.  There is no warning for zeros only, which
    are the same on both scales, nor for booleans.
    """
    assumed = None
    if array.dtype.kind in "ui" and levels > 1 and array.max() == 1:
        assumed = "hold only 0 and 1, as whole numbers"
    elif array.max() > FAR_ABOVE_ONE:
        assumed = f"go up to {array.max():.4g} and are not whole"
    if assumed is not None:
        warnings.warn(
            f"the inputs {assumed}, and the network was trained on raw pixels from 0 to {levels:g}: they are taken as "
            f"numbers on the scale from 0 to 1. If they are raw pixels, divide them by {levels:g}.",
            RuntimeWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class Preparation:
    """Transforms new images like the inputs of a set: `preparation(images)`; `undo` returns images for display.

    Args:
        shape: of one image.
        levels: the value of a raw pixel that becomes 1.0.
        dtype: of the result.
        transforms: those of the set, of which Subset, Noise and OneHot do not change new inputs.

    Example:
        >>> digits = lb.data.load("digits-100").apply(lb.data.Scale(-1.0, 1.0))
        >>> digits.preparation(np.full((1, 8, 8), 16)).max().item()
        1.0
    """

    shape: tuple[int, ...]
    levels: int
    dtype: torch.dtype
    transforms: tuple[Transform, ...] = ()

    def __call__(self, images: NDArray[Any] | Tensor) -> Tensor:
        """Return inputs of the network (samples, features) from (samples, features), (samples, *shape) or one image.

        Whole numbers, in any dtype, of which one is above 1 are raw pixels from 0 to `levels` and are divided by it.
        Other numbers are taken as pixels from 0 to 1, with a warning for zeros and ones in an integer dtype.  Decimal
        numbers above `levels`/2 raise DataError.
        """
        # Checks: shape, dtype, finite values
        array = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
        features = math.prod(self.shape)
        if array.shape in (self.shape, (features,)):
            array = array[np.newaxis]
        if array.ndim < 2 or array.shape[1:] not in (self.shape, (features,), (1, *self.shape)) or not len(array):
            pictures = len(self.shape) in (2, 3) and array.ndim in (3, 4) and len(array)
            remedy = f": {shape_remedy(array.shape[1:], self.shape)}" if pictures else ""
            raise DataError(
                f"the images have the shape {array.shape}; expected (samples, {features}) or (samples, "
                f"{', '.join(map(str, self.shape))}), as in training{remedy}."
            )
        if array.dtype.kind not in "buif":
            raise DataError(f"the images are of type {array.dtype}; expected numbers.")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            first = int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))[0])
            raise DataError(f"image {first} holds NaN or infinity: remove or repair it.")
        # Checks: the range of raw pixels, or of numbers from 0 to 1
        raw = is_raw(array)
        if (raw or array.dtype.kind in "ui") and (array.min() < 0 or array.max() > self.levels):
            raise DataError(
                f"the images go from {array.min():g} to {array.max():g}; expected raw pixels from 0 to {self.levels}, "
                "or decimal numbers from 0 to 1."
            )
        if not raw and array.dtype.kind == "f" and self.levels > 1 and array.max() > self.levels / 2:
            raise DataError(
                f"the images go up to {array.max():.4g}, but the network was trained on pixels from 0 to 1: divide "
                f"them by {self.levels}, or save the raw pixels as whole numbers."
            )
        if not raw:
            warn_of_scale(array, self.levels)
        # x/levels for raw pixels, then the transforms of the set in order
        X = torch.from_numpy(array.reshape(len(array), -1).astype(np.float64)).to(self.dtype)
        if raw:
            X.div_(self.levels)
        for transform in self.transforms:
            X = transform.inputs(X)
        return X

    def undo(self, X: Tensor) -> Tensor:
        """Return inputs or reconstructions as images (samples, *shape), on the scale from 0 to 1."""
        for transform in reversed(self.transforms):
            X = transform.undo(X)
        return X.reshape(len(X), *self.shape)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Preparation:
        """Return the preparation of a `DataSet.record()`; the set itself is not needed."""
        try:
            shape, levels = tuple(record["shape"]), record["levels"]
            dtype, transforms = DTYPES[record["dtype"]], record["transforms"]
            if not all(isinstance(size, int) and size >= 1 for size in (*shape, levels)):
                raise ValueError("shape and levels must be whole numbers of at least 1")
            return cls(shape, levels, dtype, from_records(transforms))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"the record of the data is incomplete or wrong ({error!r}): give one that DataSet.record() has "
                "returned."
            ) from error
