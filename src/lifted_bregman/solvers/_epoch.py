"""The batches of the present epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lifted_bregman.solvers.batches import Source
from lifted_bregman.solvers.interface import Batch

_FROM_START: Mapping[str, Any] = {}


class EpochBatches:
    """An open iterator over one epoch of a `Source`.

    A stream can be closed in the middle of an epoch and opened again at the same batch.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.begin()

    def begin(self, position: Mapping[str, Any] = _FROM_START) -> None:
        """Starts a new epoch, or continues a stream's epoch at a `position` from `state_dict`."""
        self._iterator: Iterator[Batch] | None = None
        self._exhausted = False
        self._position = position

    def open(self, epoch: int, done: int) -> None:
        """Opens the iterator at batch `done` of the epoch, unless it is open."""
        if self._iterator is None:
            self._iterator = self.source.epoch(epoch, done, self._position)

    def fetch(self) -> Batch | None:
        """The next batch; None at the end of the epoch."""
        assert self._iterator is not None
        batch = next(self._iterator, None)
        self._exhausted = batch is None
        return batch

    def is_over(self, done: int) -> bool:
        """Whether no batch is left after `done`.  For a stream this is known only when the next batch is fetched."""
        return self._exhausted or (not self.source.streamed and done == self.source.batches)

    def suspend(self, done: int) -> None:
        """Closes a stream after batch `done`; `open` continues there."""
        if self._iterator is not None and not self._exhausted:
            self._position, self._iterator = self.source.state_dict(done), None

    def close(self) -> None:
        """Drops the iterator."""
        self._iterator = None

    def state_dict(self, done: int) -> Mapping[str, Any]:
        """The position of a stream after batch `done`."""
        return self._position if self._iterator is None else self.source.state_dict(done)
