"""Streams: batches of a loader, epoch by epoch, with one batch in memory at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from lifted_bregman._arguments import whole
from lifted_bregman.data._seeding import kept_generators, seed_all, seeded
from lifted_bregman.data._worker_signals import deaf_to_interrupts, give_child_handler, take_child_handler
from lifted_bregman.data.tensors import as_pair, collate, moved, to_device
from lifted_bregman.errors import LiftedBregmanError, SettingError, StreamError, TensorError
from lifted_bregman.graph import InputTensors
from lifted_bregman.graph.inputs import input_tensors
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers.batches import Source, epoch_order
from lifted_bregman.solvers.interface import Batch

_BATCH_SIZE = 100
_NO_STATE: Mapping[str, Any] = {}
_END = object()


class Stream(Source):
    """The batches of a `DataLoader`, or of any iterable that yields batches (x, y) in each iteration.

    Every random draw is a function of seed, epoch and batch.  The generators of the loader and its samplers are seeded
    at the start of an epoch, which also seeds worker processes.  The global generators of torch, NumPy and Python, and
    generators that the data set holds, are seeded for each batch; the global ones are restored after it.  `set_epoch`
    of samplers and data sets is called with the epoch.

    To resume within an epoch, the batches before are read again.  A loader with `load_state_dict` and without worker
    processes loads its state instead; with worker processes such a state lacks their generators.

    problem  checks each batch
    loader   the iterable of batches
    name     the name of the data in messages
    seed     the seed of the run
    fixed    whether every epoch has the random draws of the first, as for a validation set

    epoch_steps  the most batches of an epoch; None for all of the loader's
    """

    def __init__(
        self,
        problem: LiftedProblem,
        loader: Any,
        name: str = "data",
        *,
        seed: int = 0,
        fixed: bool = False,
        epoch_steps: int | None = None,
    ) -> None:
        if isinstance(loader, DataLoader) and loader.batch_sampler is None:
            if isinstance(loader.sampler, RandomSampler | SequentialSampler):
                raise SettingError(
                    f"{name} is a DataLoader with batch_size=None, which yields single samples; fit takes batches: "
                    "give the loader a batch_size=, or give fit the Dataset."
                )
        if getattr(loader, "num_workers", 0) and not getattr(loader, "in_order", True):
            raise SettingError(
                f"{name} is a DataLoader with in_order=False, whose batches come as workers finish, so that no run "
                "can be repeated or resumed: use in_order=True."
            )
        self._problem, self._loader, self._name = problem, loader, name
        self._seed, self._fixed, self._epoch_steps = seed, fixed, epoch_steps
        self._like: Tensor = next(problem.model.parameters())
        self._first: Batch | None = None
        self._dtypes: tuple[Any, ...] = ()  # of the first batch of the loader
        self._shapes = ""
        self._kept: list[Any] = []  # generators that the data set holds
        self._ahead: Iterator[Any] | None = None  # epoch 1 after its first batch, which has not been yielded yet
        self._batches: Iterator[Any] | None = None
        self._handler: Any = None  # torch's handler of SIGCHLD, removed during an epoch
        self._fetched = 0  # batches read in this epoch, -1 while unknown
        self._counted: int | None = None  # batches of the last complete epoch
        self.labels = False
        """Whether the targets are integer class labels, as in the first batch."""

    @property
    def first(self) -> Batch:
        if self._first is None:
            batches = self._open(1)
            raw = self._fetch(batches, 1, 1)
            if raw is _END:
                raise TensorError(
                    f"{self._name} is empty: give at least one sample, and of a DataLoader with drop_last=True at "
                    "least one whole batch."
                )
            self._first, Y = self._prepared(raw)
            self.labels = Y.ndim == 1 and not Y.is_floating_point()
            self._shapes = _shapes(self._first.X, Y)
            self._ahead = batches
        return self._first

    @property
    def batches(self) -> int | None:
        try:
            own = len(self._loader)
        except (TypeError, NotImplementedError):
            return self._epoch_steps
        return own if self._epoch_steps is None else min(own, self._epoch_steps)

    def fingerprint(self) -> dict[str, Any]:
        """Return numbers of batches, samples and workers, which must be those of the checkpoint in a resumed run."""
        data: Any = getattr(self._loader, "dataset", None)
        samples = len(data) if hasattr(data, "__len__") and not isinstance(data, IterableDataset) else None
        return {"batches": self.batches, "samples": samples, "workers": getattr(self._loader, "num_workers", 0)}

    def epoch(self, number: int, done: int = 0, state: Mapping[str, Any] = _NO_STATE) -> Iterator[Batch]:
        number = 1 if self._fixed else number
        first, ahead = self.first, self._ahead
        self.close()
        if ahead is not None and (number, done) == (1, 0):  # reuse the first batch, which has been read
            self._batches, self._fetched, self._handler = ahead, 1, take_child_handler()
            return self._given(ahead, number, first)
        self._batches = self._open(number, state)
        if not state:
            for batch in range(1, done + 1):
                if self._fetch(self._batches, number, batch) is _END:
                    raise StreamError(
                        f"epoch {number} of {self._name} has {batch - 1} batches, and {done} were done when the "
                        "checkpoint was saved: continue with the same data."
                    )
        self._fetched, self._handler = done, take_child_handler()
        return self._given(self._batches, number)

    def state_dict(self, done: int) -> dict[str, Any]:
        if self._fetched != done or not self._has_state:
            return {}
        state = self._loader.state_dict()
        return {"loader": state} if _storable(state) else {}

    def close(self) -> None:
        give_child_handler(self._handler)
        self._batches, self._ahead, self._fetched, self._handler = None, None, -1, None

    @property
    def _has_state(self) -> bool:
        """Whether the loader can resume within an epoch from its state, random draws included."""
        methods = hasattr(self._loader, "state_dict") and hasattr(self._loader, "load_state_dict")
        return methods and not getattr(self._loader, "num_workers", 0)

    def _given(self, batches: Iterator[Any], epoch: int, first: Batch | None = None) -> Iterator[Batch]:
        if first is not None:
            yield first
        done = self._fetched
        while self._epoch_steps is None or done < self._epoch_steps:
            number, self._fetched = done + 1, -1
            raw = self._fetch(batches, epoch, number)
            if raw is _END:
                break
            try:
                batch, _ = self._prepared(raw)
            except LiftedBregmanError as error:
                where = f"batch {number} of epoch {epoch} of {self._name}"
                raise StreamError(f"{where}: {error} The first batch of epoch 1 had {self._shapes}.") from error
            done = self._fetched = number
            yield batch
        self._count(epoch, done)

    def _count(self, epoch: int, batches: int) -> None:
        """Raise an error for an empty epoch, and warn of one with another number of batches than before."""
        if batches == 0:
            raise StreamError(
                f"epoch {epoch} of {self._name} has no batch: every iter(...) over it must begin anew, which an "
                "exhausted generator does not: give an object with __iter__."
            )
        expected = self.batches if self.batches is not None else self._counted
        if expected not in (None, batches) and self._counted != batches:
            which = "an earlier one had" if self.batches is None else "its length or epoch_steps says"
            warnings.warn(
                f"epoch {epoch} of {self._name} had {batches} batches, and {which} {expected}.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._counted = batches

    def _open(self, epoch: int, state: Mapping[str, Any] = _NO_STATE) -> Iterator[Any]:
        """Return an iterator of the loader, after seeding its generators for the epoch."""
        loader, parts = self._loader, _parts(self._loader)
        if getattr(loader, "persistent_workers", False):
            loader._iterator = None  # persistent workers would keep the generators of the last epoch
        for part in {id(part): part for part in (loader, *parts)}.values():
            if callable(tell := getattr(part, "set_epoch", None)):
                tell(epoch)
        orders = [part for part in parts if part is not getattr(loader, "dataset", None)]
        seed_all(kept_generators(orders), self._seed, f"{self._name}: order", epoch)
        self._kept = kept_generators([getattr(loader, "dataset", loader), getattr(loader, "collate_fn", None)])
        if state:
            loader.load_state_dict(state["loader"])
        started = deaf_to_interrupts() if getattr(loader, "num_workers", 0) else nullcontext()
        with self._seeded(epoch, 0), _named_errors(f"{self._name} raised at the beginning of epoch {epoch}:"), started:
            return iter(loader)

    def _fetch(self, batches: Iterator[Any], epoch: int, number: int) -> Any:
        """Return batch `number` of the loader, counted from 1; `_END` after the last."""
        with self._seeded(epoch, number), _named_errors(f"{self._name} raised at batch {number} of epoch {epoch}:"):
            return next(batches, _END)

    def _seeded(self, epoch: int, number: int) -> Any:
        name = f"{self._name}: epoch {epoch}"
        seed_all(self._kept, self._seed, name, number)
        return seeded(self._seed, name, number, self._like.device)

    def _prepared(self, raw: Any) -> tuple[Batch, Tensor]:
        """Return a checked batch on the model's device, and its targets before the loss encodes them."""
        network, like = self._problem.network, self._like
        parts = _split(raw, self._name, [own.name for own in network.inputs])
        found = _dtypes(parts)
        if self._first is not None and found != self._dtypes:
            shown = [", ".join(str(dtype) for dtype in dtypes) for dtypes in (found, self._dtypes)]
            raise TensorError(f"it holds {shown[0]}, but the first batch {shown[1]}: give the same in every batch.")
        self._dtypes = found
        X, Y = as_pair(*parts, self._name, like, network)
        given = tuple(moved(x, like, i, network) for i, x in enumerate(input_tensors(X)))
        Y = to_device(Y, like, like.dtype if Y.is_floating_point() else Y.dtype)
        if len(given[0]) == 1 and network.couples_samples:
            raise SettingError(
                "it has one sample, but batch normalisation in training mode needs at least two for a variance: give "
                "the DataLoader drop_last=True or another batch_size."
            )
        return Batch.whole(self._problem, InputTensors(given) if len(given) > 1 else given[0], Y), Y


class EpochOrder:
    """Batches of indices in the order of `fit` for a set in memory, a function of seed and epoch."""

    def __init__(self, samples: int, batch_size: int, seed: int) -> None:
        self._samples, self._batch_size, self._seed, self._epoch = samples, batch_size, seed, 1

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._epoch = epoch

    def __len__(self) -> int:
        return -(-self._samples // self._batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        if self._batch_size >= self._samples:  # one batch keeps the order of the set, as for a set in memory
            yield list(range(self._samples))
            return
        for places in epoch_order(self._samples, self._batch_size, self._seed, self._epoch):
            yield places.tolist()


def as_loader(data: Any, name: str, batch_size: int | None, seed: int) -> Any:
    """Return a loader of a `Dataset`; return other data, which must be loaders, unchanged."""
    if isinstance(data, Dataset):
        size = _BATCH_SIZE if batch_size is None else whole(batch_size, "batch_size")
        if isinstance(data, IterableDataset):
            return DataLoader(data, batch_size=size, collate_fn=partial(collate, name))
        if not hasattr(data, "__len__"):
            raise TensorError(f"{name} is a map-style Dataset without a length; give it __len__.")
        if not len(data):
            raise TensorError(f"{name} is empty: give at least one sample.")
        order: Any = EpochOrder(len(data), size, seed)
        return DataLoader(data, batch_sampler=order, collate_fn=partial(collate, name))
    if batch_size is not None:
        raise SettingError(
            f"batch_size is {batch_size!r}, but {name} is a {type(data).__name__}, which sets its own: leave it out."
        )
    if hasattr(data, "__next__"):
        raise TensorError(
            f"{name} is a {type(data).__name__}, which can be read only once, but every epoch reads "
            "it again: give a DataLoader, an IterableDataset, or an object with __iter__."
        )
    return data


def is_stream(data: Any) -> bool:
    """Whether `data` is a loader of batches or a `Dataset`, not a container of numbers."""
    return isinstance(data, DataLoader | Dataset) or (hasattr(data, "__iter__") and not hasattr(data, "__getitem__"))


def gathered(data: Any, dtype: torch.dtype | None = None, *, seed: int = 0) -> tuple[Any, Tensor]:
    """Read all samples of a `Dataset` or `DataLoader` once and return (X, Y), for solvers that need the whole set.

    Random augmentation is drawn once.  Where samples are ((a, b), y) or (a, b, y), X is a tuple.

    Args:
        data: a map-style `Dataset`, whose samples keep their order, or a loader of batches (x, y), in its own order.
        dtype: of floating-point numbers; torch's default dtype if None.
        seed: of the random draws.

    Example:
        >>> loader = torch.utils.data.DataLoader([(torch.ones(3), i) for i in range(10)], batch_size=4)
        >>> X, Y = lb.data.gathered(loader)
        >>> X.shape, Y.tolist()
        (torch.Size([10, 3]), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    name, dtype = "data", torch.get_default_dtype() if dtype is None else dtype
    if not is_stream(data):
        raise TensorError(f"{name} is a {type(data).__name__}; expected a Dataset or a DataLoader.")
    loader = DataLoader(data, batch_size=256, collate_fn=partial(collate, name)) if isinstance(data, Dataset) else data
    parts: list[tuple[Tensor, ...]] = []
    with seeded(seed, f"{name}: gathered", 0, torch.device("cpu")):
        seed_all(kept_generators(_parts(loader)), seed, f"{name}: gathered", 0)
        for batch in loader:
            inputs, Y = _split(batch, name)
            parts.append(tuple(torch.as_tensor(t) for t in (*(inputs if isinstance(inputs, tuple) else (inputs,)), Y)))
    if not parts:
        raise TensorError(f"{name} is empty: give at least one sample.")
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    *inputs, Y = (column.to(dtype) if column.is_floating_point() else column for column in columns)
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), Y


class _named_errors:
    """Turns an exception of the user's loader in the block into a `StreamError` that names epoch and batch."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, LiftedBregmanError) and not isinstance(error, StreamError):
            return  # its message is complete
        if isinstance(error, Exception):
            last = (str(error).strip().splitlines() or [""])[-1]  # an exception of a worker has its traceback as text
            sentence = f"{self._where} {type(error).__name__}: {last}"
            raise StreamError(sentence if sentence.endswith(".") else f"{sentence}.") from error


def _split(raw: Any, name: str, inputs: list[str] | None = None) -> tuple[Any, Any]:
    """Return (inputs, targets) of a batch; inputs is a tuple if there are several."""
    many = inputs is None or len(inputs) > 1
    if isinstance(raw, tuple | list) and len(raw) > 2 and many and (inputs is None or len(raw) == len(inputs) + 1):
        raw = tuple(raw[:-1]), raw[-1]  # (a, b, y), as of a TensorDataset
    if isinstance(raw, tuple | list) and len(raw) == 2:
        first = tuple(raw[0]) if many and isinstance(raw[0], tuple | list) else raw[0]
        return first, raw[1]
    expected = "pairs (x, y) of input and target"
    if inputs is not None and len(inputs) > 1:
        expected = f"(({', '.join(inputs)}), y) of inputs and target"
    given = f"{type(raw).__name__} batches"
    if isinstance(raw, Mapping):
        given = f"batches that are a {type(raw).__name__} with the keys {', '.join(map(repr, raw))}"
    elif isinstance(raw, tuple | list):
        given = f"batches of {len(raw)} parts"
    raise TensorError(f"{name} gives {given}; expected {expected}: give the DataLoader a collate_fn that returns them.")


def _parts(loader: Any) -> list[Any]:
    """Return the objects that determine order and content of the batches."""
    if not isinstance(loader, DataLoader):
        return [loader, *(getattr(loader, name) for name in ("dataset", "sampler") if hasattr(loader, name))]
    inner = getattr(loader.batch_sampler, "sampler", None)
    found = [loader.generator, loader.sampler, loader.batch_sampler, inner, loader.dataset]
    return list({id(part): part for part in found if part is not None}.values())


def _shapes(X: Any, Y: Tensor) -> str:
    """Return shapes and dtypes of inputs and targets in words, without the number of samples."""
    given = [("x", x) for x in input_tensors(X)] + [("y", Y)]
    return " and ".join(f"{name} {('samples', *t.shape[1:])} of {t.dtype}".replace("'", "") for name, t in given)


def _dtypes(raw: Any) -> tuple[Any, ...]:
    """Return the dtype of each tensor or array of a batch, in order."""
    if isinstance(raw, tuple | list):
        return tuple(dtype for part in raw for dtype in _dtypes(part))
    return (getattr(raw, "dtype", None),)


def _storable(value: Any) -> bool:
    """Whether a checkpoint can hold a loader's state."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str | int) and _storable(entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return all(_storable(entry) for entry in value)
    return value is None or isinstance(value, Tensor | bool | int | float | str)
