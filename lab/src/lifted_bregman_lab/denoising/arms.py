"""Three ways to train one network, from the same weights and on the same batches."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch
from lifted_bregman.solvers.gram import GramSweepState

RATE = 1e-3
"""Rate of AdamW for both arms that use it, from {1e-3, 2e-3, 3e-3, 1e-2} by back-propagation on Set12."""
NUDGE = 0.5
"""ν of both lifted arms, the library's default."""


def rate_share(done: float) -> float:
    """Return the factor of the rate after a fraction `done` of the time: linear up to 1/20, then a cosine to 0."""
    return min(1.0, 20.0 * done + 0.01) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


class Arm(ABC):
    """A way to train a model."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self.model = model

    @abstractmethod
    def step(self, noisy: Tensor, clean: Tensor, done: float) -> None:
        """Make one step on a batch, after a fraction `done` of the time."""


class BackPropagation(Arm):
    """AdamW with autograd, on half the squared error of a patch, averaged over the batch."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        super().__init__(model, example)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)

    def step(self, noisy: Tensor, clean: Tensor, done: float) -> None:
        """One step of AdamW."""
        for group in self._optimizer.param_groups:
            group["lr"] = RATE * rate_share(done)
        self._optimizer.zero_grad()
        (0.5 * (self.model(noisy) - clean).square().sum() / len(noisy)).backward()
        self._optimizer.step()


class LiftedBackward(BackPropagation):
    """The same loop after `lb.lifted_backward(model)`."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        super().__init__(lb.lifted_backward(model, nudge=NUDGE, example=example), example)


class LiftedSweep(Arm):
    """`lb.GramSweep`; its total number of steps is estimated from the time of the steps so far."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        super().__init__(model, example)
        self._problem = lb.lift(model, loss=lb.SquaredError(), example=example)
        self._solver = lb.GramSweep(nudge=NUDGE)
        self._state: GramSweepState | None = None

    def step(self, noisy: Tensor, clean: Tensor, done: float) -> None:
        """One step of the solver."""
        batch = Batch.whole(self._problem, noisy, clean)
        if self._state is None:
            self._state = self._solver.init(self._problem, batch)
        k = self._state.steps
        total = max(k + 1, round(k / done)) if k and done > 0.0 else 1000
        solver = dataclasses.replace(self._solver, total_steps=total)
        with lb.forbid_activation_derivatives():
            self._state = solver.step(self._problem, self._state, batch)


BASELINE = "back-propagation"
ARMS: Mapping[str, Callable[[nn.Module, Tensor], Arm]] = {
    BASELINE: BackPropagation,
    "lifted backward": LiftedBackward,
    "lifted sweep": LiftedSweep,
}
"""By name; the others are compared with the first."""
