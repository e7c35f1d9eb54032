"""Checks on predictions and targets, made before any loss is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from lifted_bregman.activations import Activation
from lifted_bregman.errors import DomainError, SettingError, TensorError

Reduction = Literal["mean", "sum", "none"]
LABEL_DTYPES = (
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)


def require_reduction(reduction: str) -> Reduction:
    """Returns `reduction`; raises `SettingError` unless it is "mean", "sum" or "none"."""
    if reduction not in ("mean", "sum", "none"):
        raise SettingError(f"reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'.")
    return reduction  # type: ignore[return-value]


def reduce(values: Tensor, reduction: Reduction) -> Tensor:
    """The mean or sum over samples of one value per sample, or the values themselves."""
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


def require_predictions(z: Tensor) -> None:
    """Raises unless z is a non-empty batch of float32 or float64 predictions, (..., features)."""
    if not isinstance(z, Tensor) or z.dtype not in (torch.float32, torch.float64):
        given = z.dtype if isinstance(z, Tensor) else type(z).__name__
        raise TensorError(f"the predictions are of type {given}; they must be a tensor of float32 or float64.")
    if z.ndim < 2 or z.numel() == 0:
        raise TensorError(
            f"the predictions have shape {tuple(z.shape)}; they must be (samples, features) with at least one of each."
        )


def require_targets(target: Tensor, z: Tensor, activation: Activation, takes_labels: bool = False) -> Tensor:
    """`target` in z's dtype, or an error that names the first sample outside the domain of Ψ.

    takes_labels: whether the loss takes integer labels of (samples,) too, for the message about another shape.
    """
    if not isinstance(target, Tensor):
        raise TensorError(
            f"the targets are {type(target).__name__}; they must be a tensor: use torch.as_tensor(targets)."
        )
    # Shape, device and type
    if target.shape != z.shape:
        raise TensorError(
            f"the targets are {target.dtype} of shape {tuple(target.shape)} and the predictions have shape "
            f"{tuple(z.shape)}; {_remedy(target, z, activation, takes_labels)}."
        )
    if target.device != z.device:
        raise TensorError(
            f"the targets are on {target.device} and the predictions on {z.device}; move them with "
            f"targets.to({str(z.device)!r})."
        )
    if target.dtype.is_complex:
        raise TensorError(f"the targets are of {target.dtype}; they must be real numbers.")
    # Values: finite, and in the domain of Ψ
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


def _remedy(target: Tensor, z: Tensor, activation: Activation, takes_labels: bool) -> str:
    """What to do about targets y that have not the shape of the predictions."""
    samples, features = z.shape[0], z.shape[-1]
    if z.ndim != 2 or target.shape not in ((samples,), (samples, 1)):
        return "they must be equal: one target vector for each predicted vector"
    if features == 1:
        return "for one number for each sample use y.unsqueeze(1)"
    integers = target.dtype in LABEL_DTYPES
    y = ("y" if target.ndim == 1 else "y.squeeze(1)") + ("" if integers else ".long()")
    if not takes_labels:
        return f"for class labels use rows, torch.nn.functional.one_hot({y}, {features})"
    labels = f"class labels must be integers of shape ({samples},): use {y}"
    if activation.joint:
        return labels
    return f"{labels}; for one number for each sample give the model 1 output and use y.unsqueeze(1)"


def first_offender(x: Tensor, offends: Callable[[Tensor], Tensor]) -> int | None:
    """Index along the first dimension of the first sample of which `offends` is true, or None."""
    bad = offends(x).reshape(x.shape[0], -1).any(-1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


def _show(x: Tensor, sample: int) -> str:
    values = x[sample].reshape(-1)[:4].tolist()
    return ", ".join(f"{value:.4g}" for value in values)
