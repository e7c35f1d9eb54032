"""Sources of batches.  The batches are a function of seed and epoch, so that a run can be resumed at any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lifted_bregman._generators import named_generator
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers.interface import Batch

_NO_STATE: Mapping[str, Any] = {}


class Source(ABC):
    """The batches of each epoch.  Repeated calls for one epoch give the same batches."""

    streamed: bool = True
    """Whether batches are read one at a time, without an index of their samples in a whole set."""

    @property
    @abstractmethod
    def first(self) -> Batch:
        """The first batch of epoch 1."""

    @property
    @abstractmethod
    def batches(self) -> int | None:
        """The number of batches of an epoch; None if only reading an epoch shows it."""

    @abstractmethod
    def epoch(self, number: int, done: int = 0, state: Mapping[str, Any] = _NO_STATE) -> Iterator[Batch]:
        """The batches of epoch `number`, from 1, after the first `done`; `state` is from `state_dict(done)`."""

    def state_dict(self, done: int) -> dict[str, Any]:
        """The position after `done` batches, from which `epoch` resumes; {} if it has to read them again."""
        return {}

    def require(self, problem: LiftedProblem) -> None:  # noqa: B027  # nothing by default
        """An error if the batches do not fit the problem.  A stream checks each batch when it is read."""

    def close(self) -> None:  # noqa: B027
        """Releases the resources of an open epoch, such as worker processes."""


class InMemory(Source):
    """A set in memory, in batches of `batch_size` samples in a fresh order each epoch; None for the whole set."""

    streamed = False

    def __init__(self, data: Batch, batch_size: int | None, seed: int) -> None:
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self._epoch, self._order = 0, (None,)  # type: tuple[int, tuple[Tensor | None, ...]]

    @property
    def first(self) -> Batch:
        return self._batch(self.order(1)[0])

    @property
    def batches(self) -> int:
        return len(self.order(1))

    @property
    def whole(self) -> bool:
        """Whether every batch is the whole set, in its own order."""
        return self.batch_size is None or self.batch_size >= len(self.data)

    def order(self, epoch: int) -> tuple[Tensor | None, ...]:
        """The indices of each batch's samples; None for a batch of the whole set."""
        if self.whole:
            return (None,)
        assert self.batch_size is not None
        if self._epoch != epoch:
            self._epoch, self._order = epoch, epoch_order(len(self.data), self.batch_size, self.seed, epoch)
        return self._order

    def epoch(self, number: int, done: int = 0, state: Mapping[str, Any] = _NO_STATE) -> Iterator[Batch]:
        return map(self._batch, self.order(number)[done:])

    def last(self, epoch: int, done: int) -> Batch:
        """The last finished batch; the first batch before any is finished."""
        return self._batch(self.order(epoch)[max(done, 1) - 1])

    def require(self, problem: LiftedProblem) -> None:
        """An error if batch normalisation would get a batch of one sample."""
        sizes = [len(self.data) if places is None else len(places) for places in self.order(1)]
        if not problem.network.couples_samples or min(sizes) > 1:
            return
        which = f"the last batch of an epoch has one sample ({len(self.data)} samples, batch_size {self.batch_size})"
        remedy = "choose another batch_size, or a DataLoader with drop_last=True"
        if len(self.data) == 1:
            which, remedy = "there is one sample", "give at least two, or call model.eval()"
        elif max(sizes) == 1:
            which, remedy = "batch_size is 1", "choose at least 2, or call model.eval()"
        raise SettingError(
            f"{which}, and batch normalisation in training mode needs the variance of at least two: {remedy}."
        )

    def _batch(self, places: Tensor | None) -> Batch:
        return self.data if places is None else self.data.select(places)


def epoch_order(samples: int, batch_size: int, seed: int, epoch: int) -> tuple[Tensor, ...]:
    """The indices of each batch's samples.  They depend on the arguments only: no generator state has to be saved."""
    if not (isinstance(batch_size, int) and 1 <= batch_size):
        raise SettingError(
            f"batch_size is {batch_size!r}; it must be a whole number of at least 1, or None for the whole set."
        )
    order = torch.randperm(samples, generator=named_generator(seed, "data order", epoch))
    return tuple(torch.split(order, batch_size))
