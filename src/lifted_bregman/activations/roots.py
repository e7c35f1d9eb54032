"""Roots of many increasing functions at once, from brackets and without derivatives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ROOT_LIMIT = 66
"""Evaluations within which `increasing_root` ends, whatever the function: both ends of the bracket and 64 steps."""


def increasing_root(
    function: Callable[[Tensor, Tensor], Tensor], low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Neighbouring float64 numbers low <= high between which an increasing function changes sign, for many at once.

    `low` and `high` (m,) bracket the roots of m functions; the ends of a bracket must not have opposite signs.
    `function(s, rows)` gives the values at s (k,) of the functions with indices `rows` (k,); they may be infinite.
    Returns both numbers and the values there.  Where a bracket holds no root, both are the end nearer to it; where a
    value is exactly 0, both are that point.

    The ITP method (Oliveira and Takahashi 2021): interpolate, truncate towards the middle, and stay where bisection
    would be in the worst case.  It is applied to the positions of numbers in the order of all float64 numbers, of which
    an interval of one sign has fewer than 2⁶³: neighbours are reached within 64 steps at any scale, and within about 8
    where the function is smooth.
    """
    rows = torch.arange(len(low), device=low.device)
    # Brackets as positions in the order of all float64 numbers.  The bits of a number >= 0, read as an integer, are its
    # position.  Brackets of negative numbers are reflected.
    flipped = (low < 0.0) | (high < 0.0)
    signs = sign = torch.where(flipped, -1.0, 1.0).to(low)
    near, far = torch.where(flipped, high, low).abs(), torch.where(flipped, low, high).abs()
    below, above = function(sign * near, rows) * sign, function(sign * far, rows) * sign
    left, right = near.view(torch.int64), far.view(torch.int64)
    root_is_left, root_is_right = below >= 0.0, above <= 0.0
    right, above = torch.where(root_is_left, left, right), torch.where(root_is_left, below, above)
    left, below = torch.where(root_is_right, right, left), torch.where(root_is_right, above, below)

    ends, first_width = [end.clone() for end in (left, right, below, above)], (right - left).double()
    steps = int(first_width.max()).bit_length() + 1 if len(low) else 0
    for step in range(steps):
        active = right - left > 1
        count = int(active.sum())
        if count == 0:
            break
        if count <= 0.7 * len(rows):  # drop the rows that are finished
            for whole, part in zip(ends, (left, right, below, above), strict=True):
                whole[rows] = part
            left, right, below, above, first_width, sign, rows = (
                part[active] for part in (left, right, below, above, first_width, sign, rows)
            )
        probe = _itp_probe(left, right, below, above, first_width, 2 ** min(steps - step - 1, 62))
        value = function(probe.view(torch.float64) * sign, rows) * sign
        is_above, is_below = value >= 0.0, value <= 0.0
        right, above = torch.where(is_above, probe, right), torch.where(is_above, value, above)
        left, below = torch.where(is_below, probe, left), torch.where(is_below, value, below)
    for whole, part in zip(ends, (left, right, below, above), strict=True):
        whole[rows] = part
    near, far = ends[0].view(torch.float64) * signs, ends[1].view(torch.float64) * signs
    below, above = ends[2] * signs, ends[3] * signs
    return (
        torch.where(flipped, far, near),
        torch.where(flipped, near, far),
        torch.where(flipped, above, below),
        torch.where(flipped, below, above),
    )


def _itp_probe(left: Tensor, right: Tensor, below: Tensor, above: Tensor, first_width: Tensor, allowed: int) -> Tensor:
    """The next position to evaluate; neither of the two parts that it makes is wider than `allowed`."""
    low, high, width = left.view(torch.float64), right.view(torch.float64), right - left
    middle = left + (width >> 1)
    guess = (low + (high - low) * (below / (below - above))).view(torch.int64)  # linear interpolation
    offset = middle - guess.clamp(left, right)
    truncation = (0.003 * width.double() * (width.double() / first_width)).long() + 1
    radius = allowed - ((width + 1) >> 1)
    distance = (offset.abs() - truncation).clamp(min=0).minimum(radius)
    return (middle - offset.sign() * distance).clamp(left + 1, right - 1).clamp(left, right)
