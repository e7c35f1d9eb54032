"""Batches in an order that is a function of seed and epoch alone, so that a run can be continued anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lifted_bregman._generators import named_generator
from lifted_bregman.errors import SettingError
from lifted_bregman.solvers._interface import Batch


def epoch_batches(data: Batch, batch_size: int | None, seed: int, epoch: int) -> Iterator[Batch]:
    """The batches of one epoch (from 1): the whole set if batch_size is None, else a fresh permutation cut into pieces.

    The last batch is smaller where the size does not divide the set; no sample is left out.
    """
    if batch_size is None:
        yield data
        return
    for places in epoch_order(len(data), batch_size, seed, epoch):
        yield data.select(places)


def epoch_order(samples: int, batch_size: int, seed: int, epoch: int, drop_last: bool = False) -> tuple[Tensor, ...]:
    """The places of each batch's samples, a function of its arguments: no generator has to be kept between epochs.

    drop_last leaves out the last batch where it has fewer samples than `batch_size`.
    """
    if not (isinstance(batch_size, int) and 1 <= batch_size):
        raise SettingError(
            f"batch_size is {batch_size!r}; it must be a whole number of at least 1, or None for the whole set."
        )
    order = torch.randperm(samples, generator=named_generator(seed, "data order", epoch))
    end = samples - samples % batch_size if drop_last else samples
    return tuple(order[start : start + batch_size] for start in range(0, end, batch_size))
