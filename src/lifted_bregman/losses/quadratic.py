"""The quadratic penalty ½‖x - σ(z)‖² of MAC-QP (eq. 6): what the Bregman loss replaces."""

from __future__ import annotations

from torch import Tensor, nn

from lifted_bregman.activations import Activation
from lifted_bregman.losses._targets import reduce, require_predictions, require_reduction


class QuadraticPenalty(nn.Module):
    """½‖x - σ(z)‖², summed over features, by default averaged over samples.

    Unlike the Bregman loss it is not convex in z, vanishes in gradient where σ is flat, and its gradient in z is
    σ'(z)(σ(z) - x): autograd differentiates the activation, so it raises under `forbid_activation_derivatives`.
    """

    def __init__(self, activation: Activation, reduction: str = "mean") -> None:
        super().__init__()
        self.sigma = activation.as_module()
        self.reduction = require_reduction(reduction)

    @property
    def activation(self) -> Activation:
        """σ."""
        return self.sigma.activation

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """The penalty of pre-activations z against outputs x; differentiable in both."""
        require_predictions(z)
        return reduce(self.per_sample(z, x), self.reduction)

    def per_sample(self, z: Tensor, x: Tensor) -> Tensor:
        """½‖x - σ(z)‖² of each sample."""
        u: Tensor = self.sigma(z)
        return 0.5 * (x - u).square().sum(-1)
