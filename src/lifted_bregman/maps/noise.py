"""`GaussianNoise`: a module that adds random numbers in training mode, as `nn.Dropout` multiplies by them."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor, nn

from lifted_bregman.errors import SettingError, TensorError


class GaussianNoise(nn.Module):
    """x ↦ x + s n with independent standard normal n in training mode; the identity in evaluation mode.

    As the first module of a model it is input noise.  `lift` reads it as it reads `nn.Dropout`: a step of a solver
    draws n once, from the seed of the run and the number of the step, and keeps it until the step has ended.  In a
    loop of your own each call draws from torch's generator.

    For a dense layer with squared error the noise adds exactly (s²/2)‖W‖² to the expected loss: the ridge penalty
    `SquaredL2(s²)` on its weights.

    Args:
        std: s >= 0, the standard deviation, in the units of x; 0 for the identity.
    """

    std: float

    def __init__(self, std: float) -> None:
        super().__init__()
        if not isinstance(std, Real) or isinstance(std, bool) or not 0.0 <= std < math.inf:
            raise SettingError(f"std is {std!r}; the standard deviation of noise must be a finite number >= 0.")
        self.std = float(std)

    def forward(self, x: Tensor) -> Tensor:
        """x + s n in training mode."""
        return x + self.draw(x) if self.training and self.std > 0.0 else x

    def draw(self, x: Tensor) -> Tensor:
        """s n in the shape, dtype and device of x, from torch's generator."""
        if not x.is_floating_point():
            raise TensorError(
                f"GaussianNoise was given numbers of type {x.dtype}, which are indices and no quantities: put it after "
                "the embedding."
            )
        return torch.randn_like(x, requires_grad=False).mul_(self.std)

    def extra_repr(self) -> str:
        return f"std={self.std:g}"
