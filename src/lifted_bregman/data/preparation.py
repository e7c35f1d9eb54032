"""From raw images to what a network was trained on, and back."""

from __future__ import annotations

import math
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


def as_raw(array: NDArray[Any]) -> NDArray[Any]:
    """Decimal numbers that are all whole, with one above 1, as whole numbers: raw pixels that went through text."""
    if array.dtype.kind == "f" and array.size and array.max() > 1.0 and np.array_equal(array, np.rint(array)):
        return array.astype(np.int64)
    return array


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

        Whole numbers are raw pixels from 0 to `levels` and are divided by it, also where they are stored as decimal
        numbers and one is above 1.  Other numbers are taken as they are, usually from 0 to 1; numbers that can only be
        raw pixels are refused.
        """
        array = as_raw(images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images))
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
        if array.dtype.kind == "f":
            if not np.isfinite(array).all():
                first = int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))[0])
                raise DataError(f"image {first} holds NaN or infinity: remove or repair it.")
            if array.max() > self.levels / 2:
                raise DataError(
                    f"the images go up to {array.max():.4g}, but the network was trained on pixels from 0 to 1: divide "
                    f"them by {self.levels}, or save the raw pixels as whole numbers."
                )
        elif array.dtype.kind != "b" and (array.min() < 0 or array.max() > self.levels):
            raise DataError(
                f"the images go from {array.min()} to {array.max()}; expected raw pixels from 0 to {self.levels}, or "
                "decimal numbers from 0 to 1."
            )
        X = torch.from_numpy(array.reshape(len(array), -1).astype(np.float64)).to(self.dtype)
        if array.dtype.kind in "ui":
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
