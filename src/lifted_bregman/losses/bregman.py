"""The Bregman loss B_Ψ(x, z) = φ(x) + φ*(z) - <x, z> (eq. 12), as a function and as a PyTorch loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lifted_bregman.activations import Activation
from lifted_bregman.errors import SettingError, TensorError
from lifted_bregman.losses._targets import reduce, require_predictions, require_reduction, require_targets


def bregman_loss(x: Tensor, z: Tensor, activation: Activation) -> Tensor:
    """B_Ψ(x, z), one value per sample, in the paper's argument order.

    Non-negative, at least ½‖x - σ(z)‖², zero exactly when x = σ(z), convex in x and in z (Theorem 10), and
    differentiable in z with gradient σ(z) - x: `bregman_loss(x, z, act).sum().backward()` fills z.grad and never
    differentiates the activation.  Infinite where x is outside the domain of Ψ.

    Args:
        x: the layer's output, (..., n).
        z: its pre-activation, same shape and dtype.
        activation: σ = prox_Ψ.

    Example:
        >>> act = lb.activations.ReLU()
        >>> z = torch.tensor([[-2.0, 3.0]], requires_grad=True)
        >>> loss = lb.bregman_loss(torch.tensor([[1.0, 3.0]]), z, act)
        >>> loss.item()
        2.5
        >>> loss.sum().backward()
        >>> z.grad
        tensor([[-1.,  0.]])
    """
    _require_activation(activation)
    if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
        raise TensorError(
            "x requires a gradient; the Bregman loss is differentiable only in z (Ψ may be non-smooth): pass "
            "x.detach(), and update x by the proximal map of its activation."
        )
    value: Tensor = _BregmanFunction.apply(x, z, activation)  # type: ignore[no-untyped-call]
    return value


def _require_activation(activation: object) -> None:
    if not isinstance(activation, Activation):
        given = f"{type(activation).__module__}.{type(activation).__qualname__}"
        raise SettingError(f"activation is a {given}; it must be one of lb.activations, such as lb.activations.ReLU().")


class _BregmanFunction(torch.autograd.Function):
    """B_Ψ(x, z) with ∇_z B = σ(z) - x (Lemma 8), which contains no derivative of σ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(x, z)
        ctx.activation = activation
        return activation.bregman(x, z)

    @staticmethod
    @once_differentiable  # a second derivative would be that of the activation
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        x, z = ctx.saved_tensors
        return None, gradients[0].unsqueeze(-1) * (ctx.activation(z) - x), None


class BregmanLoss(nn.Module):
    """The Bregman loss as a PyTorch loss: `BregmanLoss(act)(z, target)`, prediction first.

    `z` is the pre-activation: the final activation belongs to the loss.  Values are summed over features and, by
    default, averaged over samples.  Targets are checked: one outside the domain of Ψ is an error that names the sample.

    Args:
        activation: σ = prox_Ψ of the output.
        reduction: "mean" over samples, "sum", or "none" for one value per sample.

    Example:
        >>> loss = lb.BregmanLoss(lb.activations.ReLU())
        >>> z = torch.tensor([[-2.0], [3.0]], requires_grad=True)
        >>> loss(z, torch.tensor([[1.0], [3.0]]))
        tensor(1.2500, grad_fn=<MeanBackward0>)
        >>> loss(z, torch.tensor([[1.0], [3.0]])).backward()
        >>> z.grad
        tensor([[-0.5000],
                [ 0.0000]])
    """

    def __init__(self, activation: Activation, reduction: str = "mean") -> None:
        super().__init__()
        _require_activation(activation)
        self.activation = activation
        self.reduction = require_reduction(reduction)

    def forward(self, z: Tensor, target: Tensor) -> Tensor:
        """The loss of predictions z for the targets; differentiable in z with gradient σ(z) - target."""
        require_predictions(z)
        return reduce(self.per_sample(z, self.encode(target, z)), self.reduction)

    def encode(self, target: Tensor, like: Tensor) -> Tensor:
        """`target` as a point of Ψ's domain with the shape, dtype and device of the predictions `like`, or an error."""
        return require_targets(target, like, self.activation)

    def per_sample(self, z: Tensor, target: Tensor) -> Tensor:
        """B_Ψ(target, z) of each sample, for targets that `encode` returned (not checked again)."""
        return bregman_loss(target, z, self.activation)

    def extra_repr(self) -> str:
        """The settings, for repr."""
        return f"{self.activation!r}, reduction={self.reduction!r}"
