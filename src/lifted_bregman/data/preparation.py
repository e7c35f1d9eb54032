"""From raw images to what a network was trained on, and back."""

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
FAR_ABOVE_ONE = 10.0  # numbers on the scale from 0 to 1 stay below this, usual noise included


def is_whole(array: NDArray[Any]) -> bool:
    """Whether all numbers are whole, however they are stored."""
    return array.dtype.kind in "bui" or bool(np.array_equal(array, np.rint(array)))


def is_raw(array: NDArray[Any]) -> bool:
    """Whether numbers can only be raw pixels: all are whole and one is above 1.  How they are stored has no say."""
    return bool(array.size) and bool(array.max() > 1) and is_whole(array)


def warn_of_scale(array: NDArray[Any], levels: float) -> None:
    """Warns of numbers that are no raw pixels by `is_raw` and perhaps not on the scale from 0 to 1 either.

    Those are zeros and ones that are stored as whole numbers, and numbers far above 1.  Nothing is said of zeros alone,
    which are the same on both scales, nor of truth values.
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
    """Does to new images what was done to the inputs of a set: `preparation(images)`, and `undo` for showing them.

    Args:
        shape: of one image.
        levels: the value of a raw pixel that becomes 1.0.
        dtype: of the result.
        transforms: those of the set; the ones that do not concern new inputs (Subset, Noise, OneHot) do nothing.
    """

    shape: tuple[int, ...]
    levels: int
    dtype: torch.dtype
    transforms: tuple[Transform, ...] = ()

    def __call__(self, images: NDArray[Any] | Tensor) -> Tensor:
        """(samples, features) ready for the network, from (samples, features), (samples, *shape) or one image.

        Whole numbers of which one is above 1 are raw pixels from 0 to `levels` and are divided by it, also where they
        are stored as decimal numbers.  Other numbers are taken as they are, usually from 0 to 1; a warning says so of
        zeros and ones that are stored as whole numbers.  Numbers that can only be raw pixels are refused.
        """
        array = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
        features = math.prod(self.shape)
        if array.shape in (self.shape, (features,)):
            array = array[np.newaxis]
        if array.ndim < 2 or array.shape[1:] not in (self.shape, (features,), (1, *self.shape)) or not len(array):
            raise DataError(
                f"the images have the shape {array.shape}; expected (samples, {features}) or (samples, "
                f"{', '.join(map(str, self.shape))}), as in training."
            )
        if array.dtype.kind not in "buif":
            raise DataError(f"the images are of type {array.dtype}; expected numbers.")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            first = int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))[0])
            raise DataError(f"image {first} holds NaN or infinity: remove or repair it.")
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
        X = torch.from_numpy(array.reshape(len(array), -1).astype(np.float64)).to(self.dtype)
        if raw:
            X.div_(self.levels)
        for transform in self.transforms:
            X = transform.inputs(X)
        return X

    def undo(self, X: Tensor) -> Tensor:
        """Inputs or reconstructions as images (samples, *shape), on the scale from 0 to 1."""
        for transform in reversed(self.transforms):
            X = transform.undo(X)
        return X.reshape(len(X), *self.shape)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Preparation:
        """From what `DataSet.record` gave; the set itself is not needed."""
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
                f"the record of the data is incomplete or wrong ({error!r}): it was not made here."
            ) from error
