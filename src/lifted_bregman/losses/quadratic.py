"""The quadratic penalty ½‖x - σ(z)‖² of MAC-QP (eq. 6), which the Bregman loss replaces."""

from __future__ import annotations

from torch import Tensor, nn

from lifted_bregman.activations import Activation
from lifted_bregman.losses._targets import reduce, require_predictions, require_reduction


class QuadraticPenalty(nn.Module):
    """½‖x - σ(z)‖², summed over features, by default averaged over samples.

    Unlike the Bregman loss it is not convex in z.  Its gradient in z, σ'(z)(σ(z) - x), vanishes where σ is flat.
    Autograd differentiates the activation, so that it raises under `forbid_activation_derivatives`.

    Example:
        >>> penalty = lb.QuadraticPenalty(lb.activations.ReLU())
        >>> penalty(torch.tensor([[-2.0]]), torch.tensor([[1.0]]))
        tensor(0.5000)
    """

    def __init__(self, activation: Activation, reduction: str = "mean") -> None:
        super().__init__()
        self.sigma = activation.as_module()
        self.reduction = require_reduction(reduction)

    @property
    def activation(self) -> Activation:
        """The activation σ."""
        return self.sigma.activation

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """½‖x - σ(z)‖² for z and x (samples, ..., features), reduced over all but the features; differentiable in both.

        Returns a number; with reduction="none" a tensor (samples, ...).
        """
        require_predictions(z)
        return reduce(self.per_sample(z, x), self.reduction)

    def per_sample(self, z: Tensor, x: Tensor) -> Tensor:
        """½‖x - σ(z)‖² of each sample, (samples, ...)."""
        u: Tensor = self.sigma(z)
        return 0.5 * (x - u).square().sum(-1)
