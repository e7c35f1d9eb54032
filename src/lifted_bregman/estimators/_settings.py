"""Checks of the estimators' settings at the start of training: scikit-learn's constructors only store them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse  # type: ignore[import-untyped]
from sklearn.utils import check_array  # type: ignore[import-untyped]
from sklearn.utils.class_weight import compute_class_weight  # type: ignore[import-untyped]

from lifted_bregman._arguments import whole
from lifted_bregman.activations import Activation, Sigmoid
from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.experiments import specs
from lifted_bregman.solvers import Solver

ENOUGH_TO_HOLD_OUT = 10_000
"""early_stopping="auto" holds samples out if there are at least this many; with fewer, training on all is better."""

_NAMES: dict[str, type[Activation]] = {**specs.ACTIVATIONS, "logistic": Sigmoid}  # as scikit-learn calls it


def widths(hidden: Any) -> tuple[int, ...]:
    """Return the widths of the hidden layers."""
    try:
        if isinstance(hidden, Iterator):
            raise TypeError("it can be read only once")
        return tuple(whole(width, "a width") for width in ((hidden,) if isinstance(hidden, Integral) else hidden))
    except (SettingError, TypeError) as error:
        raise SettingError(
            f"hidden is {hidden!r}; it must hold a whole number of at least 1 for each hidden layer, such as (64, 64)."
        ) from error


def activation(value: Any) -> Activation:
    """Return an activation of this library, given as an object or by its name."""
    if isinstance(value, str):
        return specs.activation(value, _NAMES)
    if not isinstance(value, Activation):
        raise SettingError(
            f"activation is {value!r}; it must be one of lb.activations, such as lb.activations.ReLU(), or a name such "
            "as 'relu'."
        )
    return value


def solver(value: Any) -> Solver[Any]:
    """Return the solver; raise an error unless it is one of this library."""
    if not isinstance(value, Solver):
        raise SettingError(f"solver is {value!r}; it must be a solver such as lb.ImplicitSGD(), or None.")
    return value


def verbose(value: Any) -> bool:
    """Whether to show progress."""
    if not isinstance(value, Integral | bool | np.bool_) or value < 0:
        raise SettingError(f"verbose is {value!r}; it must be 0 for nothing, or 1 for a line an epoch.")
    return bool(value)


def not_negative(value: Any, name: str) -> float:
    """Return the value as a float; raise an error unless it is finite and at least 0."""
    if not _is_number(value) or not 0.0 <= value < math.inf:
        raise SettingError(f"{name} is {value!r}; it must be a finite number of at least 0.")
    return float(value)


def tolerance(value: Any) -> float | None:
    """Return the least decrease that counts as an improvement; None if every decrease counts."""
    return None if value is None else not_negative(value, "tol")


def fraction(value: Any) -> float:
    """Return the fraction of the samples to hold out."""
    if not _is_number(value) or not 0.0 < value < 1.0:
        raise SettingError(f"validation_fraction is {value!r}; it must be between 0 and 1.")
    return float(value)


def holds_out(value: Any, samples: int) -> bool:
    """Whether `early_stopping` holds samples out; "auto" does so from `ENOUGH_TO_HOLD_OUT` samples on."""
    if isinstance(value, str) and value == "auto":
        return samples >= ENOUGH_TO_HOLD_OUT
    return flag(value, "early_stopping", "True, False or 'auto'")


def flag(value: Any, name: str, expected: str = "True or False") -> bool:
    """Return the value as a bool; raise an error unless it is one."""
    if not isinstance(value, bool | np.bool_):
        raise SettingError(f"{name} is {value!r}; it must be {expected}.")
    return bool(value)


def float_types(dtype: Any) -> Any:
    """Return the dtypes that X may have: the given one, or for None float64 (the default) and float32."""
    if dtype is None:
        return [np.float64, np.float32]
    try:
        given = np.dtype(dtype)
    except TypeError:
        given = None
    if given not in (np.float32, np.float64):
        raise SettingError(f"dtype is {dtype!r}; it must be 'float32', 'float64', or None for that of X.")
    return given


def dense(X: Any) -> NDArray[Any]:
    """Return X as a dense array."""
    array: NDArray[Any] = X.toarray() if issparse(X) else X
    return array


def require_memory(X: Any) -> None:
    """Raise an error for a sparse matrix that as a dense array exceeds this machine's memory."""
    if not issparse(X) or not hasattr(os, "sysconf"):
        return
    needed, there = math.prod(X.shape) * X.dtype.itemsize, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise DataError(
            f"X is a sparse matrix of {X.shape[0]:,} x {X.shape[1]:,}, which training makes dense: it needs "
            f"{needed / 1e9:,.0f} GB, and this machine has {there / 1e9:,.0f}: give partial_fit some rows at a time, "
            "or use "
            "fewer features."
        )


def require_finite(X: NDArray[Any]) -> None:
    """Raise DataError if X (samples, features) holds NaN or infinity; scikit-learn's error has several sentences."""
    finite = np.isfinite(X)
    if not finite.all():
        sample, feature = (int(place[0]) for place in np.nonzero(~finite))
        infinity = "infinity" if X.dtype == np.float64 else f"infinity or a number too large for {X.dtype}"
        kind = "NaN" if np.isnan(X[sample, feature]) else infinity
        raise DataError(
            f"X holds {kind} in sample {sample}, feature {feature}: leave such samples out, or fill in a number."
        )


def refuse_masked(value: Any, name: str) -> None:
    """Raise an error for a masked array, because scikit-learn would use the masked entries."""
    if np.ma.isMaskedArray(value):
        raise DataError(
            f"{name} is a masked array, whose masked entries would be used: give {name}.filled(value), or leave these "
            "samples out."
        )


def class_weights(class_weight: Any, classes: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Return the weight of each class by scikit-learn's rules: None, "balanced" or a dict."""
    if isinstance(class_weight, Mapping):
        for label, weight in class_weight.items():
            if not _is_number(weight) or not 0.0 <= weight < math.inf:
                raise SettingError(f"class_weight gives {label!r} the weight {weight!r}; it must be finite and >= 0.")
    elif not (class_weight is None or (isinstance(class_weight, str) and class_weight == "balanced")):
        raise SettingError(
            f"class_weight is {class_weight!r}; it must be None, 'balanced' or a dict from classes to weights."
        )
    try:
        weights: NDArray[Any] = compute_class_weight(class_weight, classes=classes, y=y)
    except ValueError as error:
        raise SettingError(str(error)) from error
    return weights


def positive_weights(sample_weight: Any, X: NDArray[Any]) -> tuple[NDArray[Any] | None, NDArray[Any] | slice]:
    """Return the positive weights, or None, and which samples have them; samples of weight 0 are left out."""
    if sample_weight is None:
        return None, slice(None)
    refuse_masked(sample_weight, "sample_weight")
    w: NDArray[Any] = check_array(sample_weight, ensure_2d=False, dtype=X.dtype, input_name="sample_weight")
    if w.shape != (len(X),):
        raise DataError(f"sample_weight has the shape {w.shape}; expected ({len(X)},), one number for each sample.")
    kept = w > 0.0
    if (w < 0.0).any() or not kept.any():
        raise DataError("sample_weight has negative values or only zeros: give weights >= 0, at least one of them > 0.")
    return w[kept], kept


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
