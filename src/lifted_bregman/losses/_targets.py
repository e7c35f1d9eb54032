"""Checks on predictions and targets, made before any loss is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from lifted_bregman.activations import Activation
from lifted_bregman.errors import DomainError, SettingError, TensorError

Reduction = Literal["mean", "sum", "none"]


def require_reduction(reduction: str) -> Reduction:
    """`reduction`, or an error unless it is one that torch losses know."""
    if reduction not in ("mean", "sum", "none"):
        raise SettingError(f"reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'.")
    return reduction  # type: ignore[return-value]


def reduce(values: Tensor, reduction: Reduction) -> Tensor:
    """The mean or sum over samples of one value per sample, or the values themselves."""
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


def require_predictions(z: Tensor) -> None:
    """An error unless z is a non-empty batch of float32 or float64 predictions, (..., features)."""
    if not isinstance(z, Tensor) or z.dtype not in (torch.float32, torch.float64):
        given = z.dtype if isinstance(z, Tensor) else type(z).__name__
        raise TensorError(f"the predictions are of type {given}; they must be a tensor of float32 or float64.")
    if z.ndim < 2 or z.numel() == 0:
        raise TensorError(
            f"the predictions have shape {tuple(z.shape)}; they must be (samples, features) with at least one of each."
        )


def require_targets(target: Tensor, z: Tensor, activation: Activation) -> Tensor:
    """`target` in z's dtype, or an error that names the first sample outside the domain of Ψ."""
    if not isinstance(target, Tensor):
        raise TensorError(
            f"the targets are {type(target).__name__}; they must be a tensor: use torch.as_tensor(targets)."
        )
    if target.shape != z.shape:
        raise TensorError(
            f"the targets have shape {tuple(target.shape)} and the predictions {tuple(z.shape)}; they must be equal: "
            "one target vector for each predicted vector."
        )
    if target.device != z.device:
        raise TensorError(
            f"the targets are on {target.device} and the predictions on {z.device}; move them with "
            f"targets.to({str(z.device)!r})."
        )
    if target.dtype.is_complex:
        raise TensorError(f"the targets are of {target.dtype}; they must be real numbers.")
    x = target.detach().to(z.dtype)
    first = first_offender(x, lambda rows: ~rows.isfinite().all(-1))
    if first is not None:
        raise TensorError(f"the target of sample {first} holds NaN or infinity; remove or repair it.")
    first = first_offender(x, lambda rows: ~activation.contains(rows))
    if first is not None:
        raise DomainError(
            f"the target of sample {first} is outside the domain of {activation!r} (first values: {_show(x, first)}), "
            "so its Bregman loss is infinite; rescale the targets into the range of the activation, or choose a loss "
            "whose activation can reach them."
        )
    return x


def first_offender(x: Tensor, offends: Callable[[Tensor], Tensor]) -> int | None:
    """Index along the first dimension of the first sample of which `offends` is true, or None."""
    bad = offends(x).reshape(x.shape[0], -1).any(-1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


def _show(x: Tensor, sample: int) -> str:
    values = x[sample].reshape(-1)[:4].tolist()
    return ", ".join(f"{value:.4g}" for value in values)
