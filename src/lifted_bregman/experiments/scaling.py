"""How the samples of a table are scaled, learned from its training part and recorded with the run."""

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

from lifted_bregman.data.preparation import FAR_ABOVE_ONE, is_raw, is_whole, warn_of_scale
from lifted_bregman.errors import DataError


@dataclass(frozen=True)
class Scaling:
    """x -> (x / divisor - mean) / deviation, for samples of a shape.

    Args:
        shape: of one sample.
        divisor: 255 for a table of pixels, whole numbers of one byte of which one is above 1; else 1.
        mean: of each feature, None for 0.
        deviation: of each feature, None for 1.
        dtype: of the result.
        low: the smallest number in the training part, before the division; None if an older version recorded the run.
        high: the largest number in the training part, likewise.
        whole: whether all numbers in the training part were whole.

    Numbers given to a scaling with the divisor 255 that are not raw pixels (`is_raw`) were divided already, and those
    that cannot have been are refused.
    """

    shape: tuple[int, ...]
    divisor: float
    mean: tuple[float, ...] | None
    deviation: tuple[float, ...] | None
    dtype: str
    low: float | None = None
    high: float | None = None
    whole: bool | None = None

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
        low, high = float(X.min()), float(X.max())
        return cls(tuple(X.shape[1:]), divisor, mean, deviation, dtype, low, high, is_whole(X))

    def __call__(self, X: NDArray[Any]) -> Tensor:
        features = math.prod(self.shape)
        if X.shape in (self.shape, (features,)) and X.ndim:
            X = X[np.newaxis]
        if X.shape[1:] not in (self.shape, (features,)):
            raise DataError(f"the samples have the shape {X.shape[1:]}; expected {self.shape}, as in training.")
        divided = self.divisor != 1.0 and not is_raw(X)
        if divided and X.max() > self.divisor / 2:
            raise DataError(
                f"the samples go up to {X.max():.4g}, but the network was trained on pixels from 0 to 1: divide them "
                f"by {self.divisor:g}, or save the raw pixels as whole numbers."
            )
        if divided:
            warn_of_scale(X, self.divisor)
        scaled = X.reshape(len(X), -1).astype(np.float64) / (1.0 if divided else self.divisor)
        scaled = scaled if self.mean is None else scaled - np.array(self.mean)
        scaled = scaled if self.deviation is None else scaled / np.array(self.deviation)
        return torch.from_numpy(scaled).to(getattr(torch, self.dtype))

    def warn_of_another_scale(self, X: NDArray[Any]) -> None:
        """Warns of new samples that seem to be on the scale from 0 to 1 and those of training not, or the reverse.

        A scaling with a divisor needs no warning: `__call__` recognises samples that were divided before.
        """
        if self.low is None or self.high is None or self.divisor != 1.0:
            return
        low, high = float(X.min()), float(X.max())
        divided_then, divided_now = (
            0.0 <= least and most <= 1.0 for least, most in ((self.low, self.high), (low, high))
        )
        enlarged = divided_then and (is_raw(X) or high > FAR_ABOVE_ONE)
        reduced = bool(self.whole) and self.low >= 0.0 and self.high > 1.0 and divided_now and not is_whole(X)
        if enlarged or reduced:
            how = f"go up to {high:.4g}" if enlarged else f"go from {low:.4g} to {high:.4g} and are not whole"
            was = "numbers" if enlarged else "whole numbers"
            warnings.warn(
                f"the samples {how}, and the network was trained on {was} from {self.low:.4g} to {self.high:.4g}: they "
                "are taken as they are; if they are on another scale, save them on that of the training data.",
                RuntimeWarning,
                stacklevel=2,
            )

    def undo(self, X: Tensor) -> Tensor:
        values = X.double()
        values = values if self.deviation is None else values * torch.tensor(self.deviation, dtype=torch.float64)
        values = values if self.mean is None else values + torch.tensor(self.mean, dtype=torch.float64)
        return (values * self.divisor).to(X.dtype).reshape(len(X), *self.shape)

    def record(self) -> dict[str, Any]:
        listed = {"mean": self.mean, "deviation": self.deviation, "shape": self.shape}
        values = {"divisor": self.divisor, "low": self.low, "high": self.high, "whole": self.whole}
        return values | {k: None if v is None else list(v) for k, v in listed.items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], dtype: str) -> Scaling:
        mean, deviation = (None if record[k] is None else tuple(map(float, record[k])) for k in ("mean", "deviation"))
        low, high = (None if record.get(k) is None else float(record[k]) for k in ("low", "high"))
        shape, divisor = tuple(map(int, record["shape"])), float(record["divisor"])
        return cls(shape, divisor, mean, deviation, dtype, low, high, record.get("whole"))
