"""Checks of the estimators' settings, made when training begins: scikit-learn wants constructors that only store."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array  # type: ignore[import-untyped]

from lifted_bregman.activations import Activation
from lifted_bregman.activations._base import whole
from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.solvers import Solver


def widths(hidden: Any) -> tuple[int, ...]:
    """The widths of the hidden layers."""
    try:
        if isinstance(hidden, Iterator):
            raise TypeError("it can be read only once")
        return tuple(whole(width, "a width") for width in ((hidden,) if isinstance(hidden, Integral) else hidden))
    except (SettingError, TypeError) as error:
        raise SettingError(
            f"hidden is {hidden!r}; it must hold a whole number of at least 1 for each hidden layer, such as (64, 64)."
        ) from error


def activation(value: Any) -> Activation:
    """An activation of this library."""
    if not isinstance(value, Activation):
        raise SettingError(f"activation is {value!r}; it must be one of lb.activations, such as lb.activations.ReLU().")
    return value


def solver(value: Any) -> Solver[Any]:
    """A solver of this library."""
    if not isinstance(value, Solver):
        raise SettingError(f"solver is {value!r}; it must be a solver such as lb.ImplicitSGD(), or None.")
    return value


def not_negative(value: Any, name: str) -> float:
    """A finite number of at least 0."""
    if not _is_number(value) or not 0.0 <= value < math.inf:
        raise SettingError(f"{name} is {value!r}; it must be a finite number of at least 0.")
    return float(value)


def tolerance(value: Any) -> float | None:
    """What counts as an improvement; None for anything."""
    return None if value is None else not_negative(value, "tol")


def fraction(value: Any) -> float:
    """The part of the samples to hold out."""
    if not _is_number(value) or not 0.0 < value < 1.0:
        raise SettingError(f"validation_fraction is {value!r}; it must be between 0 and 1.")
    return float(value)


def float_types(dtype: Any) -> Any:
    """What X is turned into: the given dtype, or for None that of X if it is float32 or float64, else float64."""
    if dtype is None:
        return [np.float64, np.float32]
    try:
        given = np.dtype(dtype)
    except TypeError:
        given = None
    if given not in (np.float32, np.float64):
        raise SettingError(f"dtype is {dtype!r}; it must be 'float32', 'float64', or None for that of X.")
    return given


def positive_weights(sample_weight: Any, X: NDArray[Any]) -> tuple[NDArray[Any] | None, NDArray[Any] | slice]:
    """The weights above 0, or None, and the samples that have them: a sample of weight 0 is left out."""
    if sample_weight is None:
        return None, slice(None)
    w: NDArray[Any] = check_array(sample_weight, ensure_2d=False, dtype=X.dtype, input_name="sample_weight")
    if w.shape != (len(X),):
        raise DataError(f"sample_weight has the shape {w.shape}; expected ({len(X)},), one number for each sample.")
    kept = w > 0.0
    if (w < 0.0).any() or not kept.any():
        raise DataError(
            "sample_weight has negative values or nothing but zeros: weights are 0 or above, one of them > 0."
        )
    return w[kept], kept


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
