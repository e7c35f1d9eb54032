"""Vectorised scalar equations: Newton's method from a start that makes it monotone, and compensated products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ITERATION_LIMIT = 24
"""Newton iterations that suffice for every activation, |z| <= 1e6 and 1e-6 <= scale <= 1e6 (tests count them)."""

# Convergence is quadratic: a step below the square root of the rounding unit leaves an error below the unit itself.
_LAST_STEP = {torch.float32: 2.0**-14, torch.float64: 2.0**-27}


def newton(
    step: Callable[[Tensor], Tensor],
    root: Tensor,
    precision: torch.dtype,
    floor: float = 0.0,
    limit: int = ITERATION_LIMIT,
) -> Tensor:
    """Iterates root ← root - step(root) in place, in float64, for a result of the given precision.

    It ends when |step| <= 2⁻²⁷ (|root| + floor), for float32 results 2⁻¹⁴ (|root| + floor), or after `limit` steps.
    `step` is F/F' for an increasing F.  Where F is concave and the start lies left of the root, or convex and right of
    it, the iterates move towards the root without passing it: no safeguard is needed, and the callers choose their
    start that way.
    """
    last_step = _LAST_STEP[precision]
    for _ in range(limit if root.numel() else 0):
        move = step(root)
        root.sub_(move)
        if float(move.abs_().sub_(root.abs(), alpha=last_step).max()) <= last_step * floor:
            break
    return root


def product_minus(factor: float, a: Tensor, b: Tensor) -> Tensor:
    """factor·a - b in float64, with the rounding error of the product put back (Dekker's product).

    Needed where factor·a and b agree in almost all digits and the difference decides the result.
    """
    splitter = 134217729.0  # 2^27 + 1
    factor_high = factor * splitter - (factor * splitter - factor)
    factor_low = factor - factor_high
    shifted = a * splitter
    a_high = shifted - (shifted - a)
    a_low = a - a_high
    product = factor * a
    error = ((factor_high * a_high - product) + factor_high * a_low + factor_low * a_high) + factor_low * a_low
    return (product - b) + error
