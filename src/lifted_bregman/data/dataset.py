"""A data set in memory: training and test part, origin, and the transforms applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from lifted_bregman.data.preparation import Preparation
from lifted_bregman.data.samples import Samples, Task
from lifted_bregman.data.transforms import Transform


@dataclass(frozen=True, eq=False)
class DataSet:
    """Images with labels, ready for training.  `load` returns one; `apply` returns a transformed copy.

    Args:
        name: the name given to `load`, such as "mnist-1k".
        train: the training part; X is (samples, features), from 0 to 1 before any transform.
        test: the test part.
        shape: of one image, such as (28, 28) or (3, 32, 32).
        classes: the name of each label.
        levels: the value of a raw pixel that became 1.0.
        source: a sentence with the origin of the bytes.
        sha256: of the decompressed bytes of each file.
        transforms: those applied, in order.

    Example:
        >>> digits = lb.data.load("digits-100")
        >>> digits.train.X.shape, digits.shape, digits.classes[:3]
        (torch.Size([100, 64]), (8, 8), ('0', '1', '2'))
    """

    name: str
    train: Samples
    test: Samples
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    levels: int
    source: str
    sha256: Mapping[str, str] = field(repr=False)
    transforms: tuple[Transform, ...] = ()

    def apply(self, *transforms: Transform) -> DataSet:
        """Return the set after these transforms, in this order; this set does not change."""
        data = self
        for transform in transforms:
            fitted = transform.fit(data)
            data = replace(
                data,
                train=fitted.samples(data.train, "train"),
                test=fitted.samples(data.test, "test"),
                transforms=(*data.transforms, fitted),
            )
        return data

    def pairs(self, task: Task) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return (X, Y) of the training part and (X, Y) of the test part for a task, which `Samples.pair` defines."""
        return self.train.pair(task), self.test.pair(task)

    @property
    def preparation(self) -> Preparation:
        """The transforms of this set's inputs, for new images."""
        return Preparation(self.shape, self.levels, self.train.X.dtype, self.transforms)

    def record(self) -> dict[str, Any]:
        """Return a JSON object that identifies this set, stored with a run; `from_record` makes the set from it."""
        return {
            "name": self.name,
            "samples": [len(self.train), len(self.test)],
            "shape": list(self.shape),
            "classes": list(self.classes),
            "levels": self.levels,
            "dtype": str(self.train.X.dtype).removeprefix("torch."),
            "source": self.source,
            "sha256": dict(self.sha256),
            "transforms": [transform.record() for transform in self.transforms],
        }
