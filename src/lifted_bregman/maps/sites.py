"""Batch normalisation, dropout and noise inside a map: drawn or measured once per step and kept until it ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifted_bregman.errors import TensorError
from lifted_bregman.maps.noise import GaussianNoise

DROPOUT_FUNCTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Dropout: F.dropout,
    nn.Dropout1d: F.dropout1d,
    nn.Dropout2d: F.dropout2d,
    nn.Dropout3d: F.dropout3d,
}


class Site(nn.Module):
    """A place in a map where batch normalisation, dropout or noise acts.

    A call in training mode draws random numbers or measures the batch; while `held`, it uses those of an earlier call.
    """

    frozen = False
    """Whether every call uses the numbers of the last one."""
    once = False
    """Whether all calls after `begin` use the numbers of the first one, so that a step has one energy."""
    evaluating = False
    """Whether calls act as in evaluation mode, also if the user's module is in training mode."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self._of = [of]  # in a list, so that the user's module is not registered as a submodule
        self._found = False

    def begin(self) -> None:
        """Starts a step: the next call draws or measures anew."""
        self._found = False

    @property
    def held(self) -> bool:
        """Whether a call uses the numbers of an earlier one."""
        return self.frozen or (self.once and self._found)

    @property
    def training_mode(self) -> bool:
        """Whether calls act as in training mode."""
        return bool(self.of.training) and not self.evaluating

    @property
    def of(self) -> nn.Module:
        """The user's module, whose settings and mode apply."""
        return self._of[0]

    @property
    def random(self) -> bool:
        """Whether a call draws random numbers, in the present mode."""
        return False

    @property
    def couples_samples(self) -> bool:
        """Whether a call mixes samples, in the present mode."""
        return False


class RandomSite(Site):
    """Dropout or noise: random numbers act on x in training mode; the identity in evaluation mode."""

    kind: ClassVar[str]
    """The name of what is drawn, for messages: "dropout" or "noise"."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__(of)
        self.drawn: Tensor | None = None
        """The random numbers of the last draw, in the shape of x."""

    def forward(self, x: Tensor) -> Tensor:
        """x with the random numbers of the step applied."""
        if not self.random:
            return x
        if self.drawn is None or not self.held:
            self.drawn = self.draw(x.detach())
            self._found = True
        if self.drawn.shape != x.shape:
            raise TensorError(
                f"{self.kind} was drawn for {tuple(self.drawn.shape)} and is applied to {tuple(x.shape)}; within one "
                "step a map keeps its random numbers: evaluate it on the samples of the step."
            )
        return self.act(x, self.drawn)

    @abstractmethod
    def draw(self, x: Tensor) -> Tensor:
        """Random numbers for x, from torch's generator."""

    @abstractmethod
    def act(self, x: Tensor, drawn: Tensor) -> Tensor:
        """x with the random numbers `drawn` applied."""


class NoiseSite(RandomSite):
    """x ↦ x + s n, with s n drawn by `module`."""

    kind = "noise"

    def __init__(self, module: GaussianNoise) -> None:
        super().__init__(module)
        self._noise = [module]

    @property
    def std(self) -> float:
        """s, the standard deviation of the noise."""
        return self._noise[0].std

    @property
    def random(self) -> bool:
        return self.training_mode and self.std > 0.0

    def draw(self, x: Tensor) -> Tensor:
        return self._noise[0].draw(x)

    def act(self, x: Tensor, drawn: Tensor) -> Tensor:
        return x + drawn

    def extra_repr(self) -> str:
        return f"std={self.std:g}"


class DropoutSite(RandomSite):
    """x ↦ m ⊙ x, with m drawn by `function` when `owner` is in training mode; the identity otherwise.

    p       in [0, 1], the fraction of the numbers that become 0; None takes owner.p
    always  whether dropout acts in evaluation mode too, as a function called with training=True
    """

    kind = "dropout"

    def __init__(
        self, function: Callable[..., Tensor], owner: nn.Module, p: float | None, always: bool = False
    ) -> None:
        super().__init__(owner)
        self.function, self.always = function, always
        self._given = p

    @property
    def p(self) -> float:
        """The fraction of the numbers that become 0."""
        return float(self.of.p) if self._given is None else self._given  # type: ignore[arg-type]

    @property
    def random(self) -> bool:
        active = (self.always and not self.evaluating) or self.training_mode
        return active and self.p > 0.0

    def draw(self, x: Tensor) -> Tensor:
        return self.function(torch.ones_like(x, requires_grad=False), self.p, True)

    def act(self, x: Tensor, drawn: Tensor) -> Tensor:
        return x * drawn

    def extra_repr(self) -> str:
        return f"p={self.p}"


class NormSite(Site):
    """Batch normalisation (or instance normalisation with running statistics) of `module`, without its parameters.

    In training mode a call normalises by the mean and variance of the batch and updates the running statistics.  While
    frozen it normalises by those of the last call, as constants, and updates nothing.
    """

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.statistics: tuple[Tensor, Tensor] | None = None
        self.instance = isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)

    @property
    def by_batch(self) -> bool:
        """Whether the statistics are those of the batch, in the present mode."""
        module: Any = self.of
        return self.training_mode or module.running_mean is None

    @property
    def couples_samples(self) -> bool:
        return self.by_batch and not self.instance

    def forward(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """weight · (x - mean) / √(variance + eps) + bias."""
        module: Any = self.of
        if self.instance:
            return self._instance(module, x, weight, bias)
        if not self.by_batch:
            return F.batch_norm(x, module.running_mean, module.running_var, weight, bias, False, 0.0, module.eps)
        if self.held and self.statistics is not None:
            return F.batch_norm(x, *self.statistics, weight, bias, False, 0.0, module.eps)
        if x.numel() == x.shape[1]:
            raise TensorError(
                "batch normalisation in training mode was given one number for each channel, whose variance is 0: give "
                "it more samples, or call model.eval()."
            )
        # momentum 1 leaves mean and variance of this batch in the two buffers
        mean, variance = x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1])
        z = F.batch_norm(x, mean, variance, weight, bias, True, 1.0, module.eps)
        count = x.numel() // x.shape[1]
        if not self.held and not self.evaluating and module.running_mean is not None:
            _update(module, mean, variance)
        self.statistics = mean, variance * ((count - 1) / count)
        self._found = True
        return z

    def _instance(self, module: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if not self.by_batch:
            return F.instance_norm(x, module.running_mean, module.running_var, weight, bias, False, 0.0, module.eps)
        mean, variance = (None, None) if self.held else (module.running_mean, module.running_var)
        momentum = 0.0 if module.momentum is None else module.momentum
        self._found = True
        z: Tensor = F.instance_norm(x, mean, variance, weight, bias, True, momentum, module.eps)
        return z


@torch.no_grad()
def _update(module: Any, mean: Tensor, variance: Tensor) -> None:
    """Running statistics ← (1 - momentum)·running + momentum·batch; momentum None averages all batches."""
    momentum = module.momentum
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(module.num_batches_tracked)
    module.running_mean.mul_(1.0 - momentum).add_(mean, alpha=momentum)
    module.running_var.mul_(1.0 - momentum).add_(variance, alpha=momentum)


class Fetch(nn.Module):
    """Reads a buffer of the user's module at every call, because `model.to(device)` replaces buffers."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self._module = [module]
        self.name = name

    def forward(self) -> Tensor:
        """The buffer."""
        buffer: Tensor = getattr(self._module[0], self.name)
        return buffer
