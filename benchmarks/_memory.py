"""Peak memory of a step, as bytes of live tensors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every tensor that is made inside it, for as long as anything refers to its memory.

    Views count once, with what they are views of.  What autograd keeps for a backward pass counts like the rest.  The
    allocator is not asked: what it rounds up or keeps in store does not count, nor does what a kernel needs for itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Bytes that are live."""
        self.peak = 0
        """The most that have been since the start or the last `reset_peak`."""
        self._sizes: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[UntypedStorage]] = {}

    def reset_peak(self) -> None:
        """Forgets the peak: it is what is live now."""
        gc.collect(1)  # what the last steps have left in cycles; the old generation takes long and holds none of it
        self.peak = self.now

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {key for key, _ in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for key, storage in _storages(result):
            if key in self._sizes or key not in given:  # else it is a view of something from before
                self._see(key, storage)
        return result

    def _see(self, key: int, storage: UntypedStorage) -> None:
        size = storage.nbytes()
        if key not in self._sizes:
            self._sizes[key] = 0
            self._alive[key] = weakref.ref(storage, lambda _: self._forget(key))
        self.now += size - self._sizes[key]  # what is written into with out= may have grown
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
        del self._alive[key]


def _storages(values: Any) -> Iterator[tuple[int, UntypedStorage]]:
    """The memory of each tensor among the values, with its address as a name."""
    for value in tree_iter(values):
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            yield storage._cdata, storage


def peak_of_a_step(make: Callable[[], Callable[[], object]], warm_up: int = 3) -> int:
    """The peak of one step after some others, with all that `make` has made for it: parameters, state, data."""
    with LiveBytes() as count:
        step = make()
        for _ in range(warm_up):
            step()
        count.reset_peak()
        step()
        return count.peak
