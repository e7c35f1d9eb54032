"""Inputs and labels of one part of a set, and the pairs (X, Y) of each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from lifted_bregman.errors import DataError, TensorError

Part = Literal["train", "test"]
Task = Literal["classify", "regress", "autoencode", "denoise"]
TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """Inputs, labels and clean inputs of samples.

    Args:
        X: the inputs, (samples, features), or (samples, ...) after `Unflatten`.
        y: the labels, int64 of (samples,), or rows of (samples, classes) after `OneHot`.
        clean: the inputs before noise was added, of X's shape; None where X itself is clean.

    Example:
        >>> samples = lb.data.Samples(torch.zeros(3, 4), torch.tensor([0, 1, 1]))
        >>> len(samples), samples.select(torch.tensor([0])).y
        (3, tensor([0]))
    """

    X: Tensor
    y: Tensor
    clean: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.y) != len(self.X) or (self.clean is not None and self.clean.shape != self.X.shape):
            raise TensorError(
                f"X is {tuple(self.X.shape)}, y is {tuple(self.y.shape)} and clean is "
                f"{None if self.clean is None else tuple(self.clean.shape)}: give one label and one clean input for "
                "every sample."
            )

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        noisy = "" if self.clean is None else ", noisy"
        return f"Samples(X: {tuple(self.X.shape)} of {self.X.dtype}{noisy}, y: {tuple(self.y.shape)} of {self.y.dtype})"

    @property
    def labels(self) -> Tensor:
        """The labels as int64 of (samples,), also after `OneHot`."""
        return self.y if self.y.ndim == 1 else self.y.argmax(1)

    def select(self, places: Tensor) -> Samples:
        """Return a copy of the samples at the indices `places`, in that order."""
        clean = None if self.clean is None else self.clean.index_select(0, places)
        return Samples(self.X.index_select(0, places), self.y.index_select(0, places), clean)

    def pair(self, task: Task) -> tuple[Tensor, Tensor]:
        """Return (X, Y), inputs and targets, of a task.

        | task | X | Y |
        |---|---|---|
        | classify | the inputs | the labels, or one-hot rows after `OneHot` |
        | regress | the inputs | the labels as numbers, (samples, 1), or one-hot rows after `OneHot` |
        | autoencode | the inputs | the inputs |
        | denoise | the noisy inputs | the clean ones; needs `Noise` |
        """
        if task == "classify":
            return self.X, self.y
        if task == "regress":
            return self.X, self.y.to(self.X.dtype) if self.y.ndim > 1 else self.y.to(self.X.dtype).unsqueeze(1)
        if task == "autoencode":
            return self.X, self.X
        if task == "denoise":
            if self.clean is None:
                raise DataError(
                    "the task is 'denoise', but the inputs have no noise: apply Noise(level) to the set first."
                )
            return self.X, self.clean
        raise DataError(f"the task is {task!r}; it must be one of {', '.join(TASKS)}.")
