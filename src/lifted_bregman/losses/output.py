"""Squared error (Ψ = 0) and cross-entropy (softmax) as Bregman losses."""

from __future__ import annotations

from numbers import Real

import torch
from torch import Tensor

from lifted_bregman.activations import Identity, Softmax
from lifted_bregman.errors import SettingError, TensorError
from lifted_bregman.losses._targets import LABEL_DTYPES, first_offender, require_targets
from lifted_bregman.losses.bregman import BregmanLoss


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """Integer labels as one-hot vectors with the shape and dtype of `like`, or an error that names the label.

    labels  (samples,), or (samples, ...) for predictions (samples, ..., classes) at several places of each sample
    """
    classes = like.shape[-1]
    if labels.shape != like.shape[:-1]:
        raise TensorError(
            f"the labels have shape {tuple(labels.shape)} for predictions of {tuple(like.shape)}; there must be one "
            "integer for each predicted vector."
        )
    labels = labels.long()
    bad = first_offender(labels, lambda values: (values < 0) | (values >= classes))
    if bad is not None:
        raise TensorError(
            f"the label of sample {bad}{_position(labels[bad], classes)} is {_outside(labels[bad], classes)}; with "
            f"{classes} outputs, labels run from 0 to {classes - 1}: give the model one output for each class, or "
            "number the classes from 0."
        )
    return torch.zeros_like(like).scatter_(-1, labels.unsqueeze(-1), 1.0)


def _position(labels: Tensor, classes: int) -> str:
    """For messages: the position of a sample's first label that is no class; empty for samples with one label."""
    if labels.ndim == 0:
        return ""
    first = ((labels < 0) | (labels >= classes)).nonzero()[0].tolist()
    return f" at position {first[0] if len(first) == 1 else tuple(first)}"


def _outside(labels: Tensor, classes: int) -> int:
    """The first of a sample's labels that is no class."""
    return int(labels[(labels < 0) | (labels >= classes)].flatten()[0])


def are_labels(target: Tensor, like: Tensor) -> bool:
    """Whether `target` holds one integer, rather than one vector, for each predicted vector."""
    return isinstance(target, Tensor) and target.dtype in LABEL_DTYPES and target.ndim == like.ndim - 1


class SquaredError(BregmanLoss):
    """½‖y - z‖², summed over features, by default averaged over samples: the Bregman loss of Ψ = 0.

    Integer labels are taken as one-hot targets where there is more than one output.  torch's MSELoss, a mean over
    features too, is 2/features times this.

    Example:
        >>> loss = lb.SquaredError()
        >>> loss(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2, 2))
        tensor(6.2500)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(Identity(), reduction)

    def encode(self, target: Tensor, like: Tensor) -> Tensor:
        """The targets as float vectors, in the form of the predictions `like`; integer labels become one-hot rows."""
        if are_labels(target, like) and like.shape[-1] > 1:  # with one output they are numbers in the wrong shape
            target = one_hot(target, like)
        return require_targets(target, like, self.activation, takes_labels=True)


class CrossEntropy(BregmanLoss):
    """log Σ e^{z_j} - <y, z> + Σ y_j log y_j: the Bregman loss of softmax.

    For one-hot targets and integer labels this is torch's CrossEntropyLoss.  For soft targets it is smaller by the
    entropy of y, so that its minimum is 0: the Kullback-Leibler divergence of y from softmax(z).

    With label smoothing ε an integer label of K classes stands for the soft target y = (1 - ε) onehot + ε/K.  The
    gradient softmax(z) - y is that of torch's CrossEntropyLoss(label_smoothing=ε); the value is smaller by the entropy
    of y, which is the same for every label.  Targets that are vectors are not smoothed; one-hot vectors raise an error.

    Args:
        reduction: "mean" over samples, "sum", or "none" for one value per sample.
        label_smoothing: 0 <= ε < 1.

    Example:
        >>> loss = lb.CrossEntropy()
        >>> loss(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        tensor(0.6931)
        >>> loss(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))
        tensor(0.)
    """

    def __init__(self, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(Softmax(), reduction)
        number = isinstance(label_smoothing, Real) and not isinstance(label_smoothing, bool)
        if not number or not 0.0 <= label_smoothing < 1.0:
            raise SettingError(f"label_smoothing is {label_smoothing!r}; it must be a number in [0, 1).")
        self.label_smoothing = float(label_smoothing)

    def encode(self, target: Tensor, like: Tensor) -> Tensor:
        """Targets as points of the simplex; integer labels as one-hot rows, smoothed.

        Targets that are encoded already are returned unchanged.
        """
        epsilon, labels = self.label_smoothing, are_labels(target, like)
        target = one_hot(target, like) if labels else target
        y = require_targets(target, like, self.activation, takes_labels=True)
        if epsilon == 0.0:
            return y
        if labels:
            return torch.lerp(y, torch.full_like(y, 1.0 / y.shape[-1]), epsilon)
        if y.shape[-1] > 1 and bool((y.count_nonzero(-1) == 1).all()):
            raise TensorError(
                f"the targets are one-hot vectors, and label_smoothing={epsilon:g} is for integer labels: give "
                "targets.argmax(-1), or smooth the vectors and leave label_smoothing out."
            )
        return y

    def extra_repr(self) -> str:
        """The settings, for repr."""
        return super().extra_repr() + (f", label_smoothing={self.label_smoothing}" if self.label_smoothing else "")
