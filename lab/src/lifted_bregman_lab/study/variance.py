"""Shares of the variance of errors by factor: a two-way analysis of variance with seeds as blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution  # type: ignore[import-untyped]

from lifted_bregman.errors import DataError

FACTORS = ("optimiser", "architecture", "seed")
BOTH = "optimiser x architecture"
REST = "rest"


@dataclass(frozen=True)
class Effect:
    """One line of the table.

    source   a factor, the interaction of both, or the residual
    degrees  of freedom
    squares  its part of the sum of squared deviations from the mean of all
    share    η²: that part divided by the whole sum
    beyond   ω²: the share beyond what chance alone would give, which is degrees · mean square of the rest; below 0 if
             it is less than that.  None for the rest
    F        mean square divided by that of the rest; None for the rest
    p        probability of an F as large, were there no effect; None for the rest
    """

    source: str
    degrees: int
    squares: float
    share: float
    beyond: float | None = None
    F: float | None = None
    p: float | None = None


def explain_variance(errors: NDArray[Any]) -> list[Effect]:
    """Return the analysis of variance of a balanced design.

    Errors have the shape (optimisers, architectures, seeds), each at least 2:

        e_ijk = m + a_i + b_j + (ab)_ij + c_k + r_ijk

    The effects of a, b and c sum to 0; r is the residual.
    """
    if errors.ndim != 3 or min(errors.shape) < 2 or not np.isfinite(errors).all():
        raise DataError(
            f"the errors have shape {errors.shape}; expected finite ones for at least 2 optimisers, 2 architectures "
            "and 2 seeds."
        )
    deviations = errors - errors.mean()
    whole = float(np.square(deviations).sum())
    effects: dict[tuple[int, ...], NDArray[Any]] = {
        (axis,): deviations.mean(tuple(other for other in range(3) if other != axis), keepdims=True)
        for axis in range(3)
    }
    effects[0, 1] = deviations.mean(2, keepdims=True) - effects[0,] - effects[1,]
    rest = deviations - sum(effects.values())
    free = {axes: int(np.prod([errors.shape[axis] - 1 for axis in axes])) for axes in effects}
    rest_degrees = errors.size - 1 - sum(free.values())
    rest_squares = float(np.square(rest).sum())
    mean_square = rest_squares / rest_degrees
    table = []
    for axes, effect in sorted(effects.items(), key=lambda item: (item[0] == (2,), len(item[0]), item[0])):
        squares = float(np.square(np.broadcast_to(effect, errors.shape)).sum())
        ratio = squares / free[axes] / mean_square if mean_square > 0.0 else float("inf")
        beyond = (squares - free[axes] * mean_square) / (whole + mean_square)
        p = float(f_distribution.sf(ratio, free[axes], rest_degrees))
        name = BOTH if len(axes) == 2 else FACTORS[axes[0]]
        table.append(Effect(name, free[axes], squares, squares / whole, beyond, ratio, p))
    return [*table, Effect(REST, rest_degrees, rest_squares, rest_squares / whole)]
