"""A batch in parts that follow each other through the layers."""

from __future__ import annotations

from itertools import pairwise


def micro_batches(samples: int, count: int) -> list[slice]:
    """The rows in `count` parts whose sizes differ by at most one, or in as many as there are samples; at least one."""
    count = max(1, min(count, samples))
    ends = [samples * number // count for number in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
