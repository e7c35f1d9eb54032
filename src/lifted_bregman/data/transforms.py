"""Transforms of a set: frozen dataclasses that are recorded with the set and can be restored from the record.

dataset.apply(Subset(1000), Centre(), Noise(0.3))     # in this order
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from lifted_bregman._generators import named_generator
from lifted_bregman.data.samples import Part, Samples
from lifted_bregman.errors import DataError, SettingError

if TYPE_CHECKING:
    from lifted_bregman.data.dataset import DataSet

_NOISE_ROWS = 1000


class Transform(ABC):
    """A transform of a set.

    `fit` returns the transform with the statistics of the set, such as the mean image.  `samples` transforms the
    training or the test part, `inputs` new inputs, and `undo` is the inverse of `inputs`.
    """

    name: ClassVar[str]

    def fit(self, data: DataSet) -> Self:
        """Return this transform with the statistics of the set that it needs."""
        return self

    @abstractmethod
    def samples(self, samples: Samples, part: Part) -> Samples:
        """Return the transformed training or test part."""

    def inputs(self, X: Tensor) -> Tensor:
        """Return new inputs, transformed like those of the set."""
        return X

    def undo(self, X: Tensor) -> Tensor:
        """Return the inputs before `inputs` transformed them."""
        return X

    def record(self) -> dict[str, Any]:
        """Return the transform as a JSON object."""
        return {"transform": self.name} | {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()  # type: ignore[call-overload]
        }


@dataclass(frozen=True)
class Subset(Transform):
    """Keeps some samples of the training part, drawn without replacement, and the whole test part.

    With the same seed a smaller subset is the first part of a larger one.

    Args:
        size: samples to keep, from 1 to all.
        seed: of the draw, which also depends on the number of samples.

    Example:
        >>> len(lb.data.load("digits").apply(lb.data.Subset(50)).train)
        50
    """

    size: int
    seed: int = 0
    name: ClassVar[str] = "subset"

    def __post_init__(self) -> None:
        _require_whole("size", self.size, 1)
        _require_whole("seed", self.seed, 0)

    def fit(self, data: DataSet) -> Self:
        if self.size > len(data.train):
            raise DataError(
                f"a subset of {self.size:,} samples was asked for, but the training part of '{data.name}' has "
                f"{len(data.train):,}: ask for at most that many."
            )
        return self

    def samples(self, samples: Samples, part: Part) -> Samples:
        if part == "test":
            return samples
        return samples.select(torch.randperm(len(samples), generator=named_generator(self.seed, "subset"))[: self.size])


@dataclass(frozen=True)
class _OfInputs(Transform):
    """A transform that applies `inputs` to both parts, to clean inputs too, and to new inputs."""

    def samples(self, samples: Samples, part: Part) -> Samples:
        clean = None if samples.clean is None else self.inputs(samples.clean)
        return replace(samples, X=self.inputs(samples.X), clean=clean)


@dataclass(frozen=True)
class Centre(_OfInputs):
    """Subtracts the mean input of the training part from both parts: x - mean.

    Args:
        mean: one number per feature.  None for that of the training part, which `fit` computes in float64 and records,
            so that new inputs can be centred without the set.
        together: whether to subtract one number, the mean over all features.

    Example:
        >>> digits = lb.data.load("digits-100").apply(lb.data.Centre())
        >>> bool(digits.train.X.mean(0).abs().max() < 1e-6)
        True
    """

    mean: tuple[float, ...] | None = None
    together: bool = False
    name: ClassVar[str] = "centre"

    def __post_init__(self) -> None:
        if self.mean is not None and not all(map(_is_number, self.mean)):
            raise SettingError("the mean of Centre must be one finite number per feature, or None for the set's own.")
        if self.mean is not None and self.together and len(self.mean) != 1:
            raise SettingError(f"the mean of Centre(together=True) is one number, and {len(self.mean)} are given.")

    def __repr__(self) -> str:
        if self.mean is None:
            return "Centre(together=True)" if self.together else "Centre()"
        return "Centre(one mean)" if self.together else f"Centre(mean of {len(self.mean)} features)"

    def fit(self, data: DataSet) -> Self:
        X = data.train.X
        if self.mean is None:
            mean = np.mean(X.numpy(), axis=None if self.together else 0, dtype=np.float64)
            return replace(self, mean=tuple(mean.ravel().tolist()))
        if not self.together and len(self.mean) != X[0].numel():
            raise DataError(
                f"the mean of Centre has {len(self.mean)} numbers and a sample {X[0].numel()}: leave the mean out."
            )
        return self

    def inputs(self, X: Tensor) -> Tensor:
        return X - self._mean(X)

    def undo(self, X: Tensor) -> Tensor:
        return X + self._mean(X)

    def _mean(self, X: Tensor) -> Tensor:
        if self.mean is None:
            raise SettingError("Centre() has no mean: apply it to a set first.")
        mean = torch.tensor(self.mean, dtype=X.dtype, device=X.device)
        return mean if self.together else mean.reshape(X.shape[1:])


@dataclass(frozen=True)
class Scale(_OfInputs):
    """Maps [0, 1] to [low, high]: low + (high - low) x.  Scale(-1, 1) fits an output activation such as Tanh.

    Example:
        >>> digits = lb.data.load("digits-100").apply(lb.data.Scale(-1.0, 1.0))
        >>> digits.train.X.min().item(), digits.train.X.max().item()
        (-1.0, 1.0)
    """

    low: float
    high: float
    name: ClassVar[str] = "scale"

    def __post_init__(self) -> None:
        if not (_is_number(self.low) and _is_number(self.high) and self.low < self.high):
            raise SettingError(f"Scale has low {self.low!r} and high {self.high!r}; give two numbers with low < high.")

    def inputs(self, X: Tensor) -> Tensor:
        return X * (self.high - self.low) + self.low

    def undo(self, X: Tensor) -> Tensor:
        return (X - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Unflatten(_OfInputs):
    """Gives each input a shape, such as (1, 28, 28) for a network that begins with a convolution.

    Example:
        >>> lb.data.load("digits-100").apply(lb.data.Unflatten((1, 8, 8))).train.X.shape
        torch.Size([100, 1, 8, 8])
    """

    shape: tuple[int, ...]
    name: ClassVar[str] = "unflatten"

    def __post_init__(self) -> None:
        for size in self.shape:
            _require_whole("each entry of shape", size, 1)

    def fit(self, data: DataSet) -> Self:
        if math.prod(self.shape) != data.train.X[0].numel():
            raise DataError(
                f"Unflatten asks for the shape {self.shape}, but a sample of '{data.name}' has "
                f"{data.train.X[0].numel()} values, an image of {data.shape}: give a shape of as many."
            )
        return self

    def inputs(self, X: Tensor) -> Tensor:
        return X.reshape(len(X), *self.shape)

    def undo(self, X: Tensor) -> Tensor:
        return X.flatten(1)


@dataclass(frozen=True)
class Noise(Transform):
    """Adds Gaussian noise to the inputs of both parts and keeps the clean ones: x + level ε, with ε of N(0, 1).

    Values are not clipped.  The noise is drawn in float64, so that float32 and float64 sets get the same.  New inputs
    do not change.

    Args:
        level: the standard deviation, above 0.
        seed: of the noise, which also depends on the part and the index of the sample.

    Example:
        >>> digits = lb.data.load("digits-100").apply(lb.data.Noise(0.5))
        >>> round((digits.train.X - digits.train.clean).std().item(), 1)
        0.5
    """

    level: float
    seed: int = 0
    name: ClassVar[str] = "noise"

    def __post_init__(self) -> None:
        if not (_is_number(self.level) and self.level > 0):
            raise SettingError(f"the noise level is {self.level!r}; it must be a number above 0.")
        _require_whole("seed", self.seed, 0)

    def samples(self, samples: Samples, part: Part) -> Samples:
        noisy = samples.X.clone()
        for number, rows in enumerate(noisy.split(_NOISE_ROWS)):
            generator = named_generator(self.seed, f"noise {part}", number)
            rows.add_(
                torch.randn(rows.shape, generator=generator, dtype=torch.float64).to(rows.dtype), alpha=self.level
            )
        return replace(samples, X=noisy, clean=samples.X if samples.clean is None else samples.clean)


@dataclass(frozen=True)
class OneHot(Transform):
    """Turns each label into a row with a one at its class, in the inputs' dtype.

    Args:
        classes: the length of a row; None for the number of classes of the set.

    Example:
        >>> lb.data.load("digits-100").apply(lb.data.OneHot()).train.y.shape
        torch.Size([100, 10])
    """

    classes: int | None = None
    name: ClassVar[str] = "one-hot"

    def __post_init__(self) -> None:
        if self.classes is not None:
            _require_whole("classes", self.classes, 1)

    def fit(self, data: DataSet) -> Self:
        if self.classes is not None and self.classes < len(data.classes):
            raise DataError(
                f"OneHot has {self.classes} classes, but '{data.name}' has {len(data.classes)}: leave it out."
            )
        return self if self.classes is not None else replace(self, classes=len(data.classes))

    def samples(self, samples: Samples, part: Part) -> Samples:
        assert self.classes is not None
        rows = torch.nn.functional.one_hot(samples.labels, self.classes).to(samples.X.dtype)
        return replace(samples, y=rows)


KINDS: dict[str, type[Transform]] = {kind.name: kind for kind in (Subset, Centre, Scale, Unflatten, Noise, OneHot)}


def from_records(records: Sequence[Mapping[str, Any]]) -> tuple[Transform, ...]:
    """Return the transforms of these records; raise DataError for an unknown kind or wrong entries."""
    found = []
    for entry in records:
        kind = KINDS.get(str(entry.get("transform"))) if isinstance(entry, Mapping) else None
        if kind is None:
            raise DataError(f"the record of a transform is {entry!r}; expected one of {', '.join(KINDS)}.")
        known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        given = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items() if key != "transform"}
        try:
            if extra := set(given) - known:
                raise SettingError(f"it has the unknown entries {sorted(extra)}.")
            found.append(kind(**given))
        except (SettingError, TypeError) as error:
            raise DataError(f"the record of the transform '{kind.name}' is wrong: {error}") from error
    return tuple(found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require_whole(what: str, value: object, least: int) -> None:
    if not (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        raise SettingError(f"{what} is {value!r}; it must be a whole number of at least {least}.")
