"""How the samples of a table are scaled, learned from its training part and recorded with the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lifted_bregman.data.preparation import as_raw
from lifted_bregman.errors import DataError


@dataclass(frozen=True)
class Scaling:
    """x -> (x / divisor - mean) / deviation, for samples of a shape.

    The divisor is 255 for a table of pixels, whole numbers of one byte.  Numbers given to such a scaling that are not
    all whole are pixels that were divided already, and those that cannot have been are refused.
    """

    shape: tuple[int, ...]
    divisor: float
    mean: tuple[float, ...] | None
    deviation: tuple[float, ...] | None
    dtype: str

    @classmethod
    def fit(cls, X: NDArray[Any], prepare: str, dtype: str) -> Scaling:
        """The scaling that makes X centred or standardised; a constant feature is only centred."""
        divisor = 255.0 if X.dtype == np.uint8 and X.max() > 1 else 1.0
        flat = X.reshape(len(X), -1).astype(np.float64) / divisor
        mean = deviation = None
        if prepare != "none":
            mean = tuple(flat.mean(0).tolist())
        if prepare == "standardise":
            spread = flat.std(0)
            deviation = tuple(np.where(spread > 0.0, spread, 1.0).tolist())
        return cls(tuple(X.shape[1:]), divisor, mean, deviation, dtype)

    def __call__(self, X: NDArray[Any]) -> Tensor:
        features = math.prod(self.shape)
        if X.shape in (self.shape, (features,)) and X.ndim:
            X = X[np.newaxis]
        if X.shape[1:] not in (self.shape, (features,)):
            raise DataError(f"the samples have the shape {X.shape[1:]}; expected {self.shape}, as in training.")
        divided = self.divisor != 1.0 and as_raw(X).dtype.kind == "f"
        if divided and X.max() > self.divisor / 2:
            raise DataError(
                f"the samples go up to {X.max():.4g}, but the network was trained on pixels from 0 to 1: divide them "
                f"by {self.divisor:g}, or save the raw pixels as whole numbers."
            )
        scaled = X.reshape(len(X), -1).astype(np.float64) / (1.0 if divided else self.divisor)
        scaled = scaled if self.mean is None else scaled - np.array(self.mean)
        scaled = scaled if self.deviation is None else scaled / np.array(self.deviation)
        return torch.from_numpy(scaled).to(getattr(torch, self.dtype))

    def undo(self, X: Tensor) -> Tensor:
        values = X.double()
        values = values if self.deviation is None else values * torch.tensor(self.deviation, dtype=torch.float64)
        values = values if self.mean is None else values + torch.tensor(self.mean, dtype=torch.float64)
        return (values * self.divisor).to(X.dtype).reshape(len(X), *self.shape)

    def record(self) -> dict[str, Any]:
        listed = {"mean": self.mean, "deviation": self.deviation, "shape": self.shape}
        return {"divisor": self.divisor} | {k: None if v is None else list(v) for k, v in listed.items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], dtype: str) -> Scaling:
        mean, deviation = (None if record[k] is None else tuple(map(float, record[k])) for k in ("mean", "deviation"))
        return cls(tuple(map(int, record["shape"])), float(record["divisor"]), mean, deviation, dtype)
