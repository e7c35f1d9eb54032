"""`GaussianNoise`, the additive counterpart of `nn.Dropout`, and dense networks with both."""

from __future__ import annotations

import math
from collections import OrderedDict
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman.errors import SettingError, TensorError


class GaussianNoise(nn.Module):
    """x ↦ x + s n with independent standard normal n in training mode; the identity in evaluation mode.

    As the first module of a model it is input noise.  `lift` reads it as it reads `nn.Dropout`: a step of a solver
    draws n once, from the seed of the run and the number of the step, and keeps it until the step has ended.  In a
    training loop that you write, each call draws from torch's default generator.

    For a dense layer with squared error the noise adds exactly (s²/2)‖W‖² to the expected loss: the ridge penalty
    `SquaredL2(s²)` on its weights.

    Args:
        std: s >= 0, the standard deviation, in the units of x; 0 for the identity.

    Example:
        >>> noise = lb.GaussianNoise(0.1)
        >>> x = torch.zeros(10000)
        >>> round(noise(x).std().item(), 2), noise.eval()(x).std().item()
        (0.1, 0.0)
    """

    std: float

    def __init__(self, std: float) -> None:
        super().__init__()
        if not _is_number(std) or not 0.0 <= std < math.inf:
            raise SettingError(f"std is {std!r}; the standard deviation of noise must be a finite number >= 0.")
        self.std = float(std)

    def forward(self, x: Tensor) -> Tensor:
        """x + s n in training mode."""
        return x + self.draw(x) if self.training and self.std > 0.0 else x

    def draw(self, x: Tensor) -> Tensor:
        """Draws the noise s n, n ~ N(0, I), in the shape, dtype and device of x, from torch's default generator."""
        if not x.is_floating_point():
            raise TensorError(
                f"GaussianNoise was given numbers of type {x.dtype}, which are indices and no quantities: put it after "
                "the embedding."
            )
        return torch.randn_like(x, requires_grad=False).mul_(self.std)

    def extra_repr(self) -> str:
        return f"std={self.std:g}"


def insert_noise(network: nn.Sequential, *, dropout: float = 0.0, input_noise: float = 0.0) -> nn.Sequential:
    """Dense layers with Gaussian noise on their input, and dropout of their hidden layers, in training mode.

    The modules are those of `network` under the names that they have there, so that both have the same parameters and
    the same `state_dict`.

    Args:
        network: nn.Linear and activations in turns.
        dropout: the fraction of the units of each hidden layer that are 0 in a step, in [0, 1); the others are divided
            by 1 - dropout.
        input_noise: the standard deviation of the noise, >= 0.
    """
    dropout, input_noise = check_noise(dropout, input_noise)
    modules: dict[str, nn.Module] = {"input_noise": GaussianNoise(input_noise)} if input_noise > 0.0 else {}
    linear = 0
    for name, module in network.named_children():
        if isinstance(module, nn.Linear):
            if dropout > 0.0 and linear > 0:
                modules[f"dropout_{linear}"] = nn.Dropout(dropout)
            linear += 1
        modules[name] = module
    if dropout > 0.0 and linear < 2:
        raise SettingError(
            f"dropout is {dropout:g}, and the network has no hidden layer whose units could be 0: leave it out, or "
            "give hidden layers or input_noise."
        )
    return nn.Sequential(OrderedDict(modules))


def check_noise(dropout: Any, input_noise: Any) -> tuple[float, float]:
    """Both as floats; an error unless dropout is in [0, 1) and input_noise is finite and not negative."""
    if not _is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise SettingError(
            f"dropout is {dropout!r}; it must be a number of at least 0 and below 1, the part of the units that are 0 "
            "in a step."
        )
    if not _is_number(input_noise) or not 0.0 <= input_noise < math.inf:
        raise SettingError(
            f"input_noise is {input_noise!r}; it must be a finite number of at least 0, the standard deviation of the "
            "noise."
        )
    return float(dropout), float(input_noise)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
