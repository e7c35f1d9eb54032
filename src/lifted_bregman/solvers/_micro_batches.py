"""The micro-batches of a pipeline through the layers."""

from __future__ import annotations

from itertools import pairwise


def micro_batches(samples: int, count: int) -> list[slice]:
    """min(count, samples) slices of the rows, at least one, whose sizes differ by at most one."""
    count = max(1, min(count, samples))
    ends = [samples * number // count for number in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
