"""What the inner steps of one batch share: norms, inputs, and factorisations."""

from __future__ import annotations

import torch
from torch import Tensor

from lifted_bregman._linalg import GuardedFactor, PowerMemory
from lifted_bregman.maps.base import Inputs


class BatchMemory(dict[str, list[Tensor]]):
    """The vectors of the power iterations, a `PowerMemory`, with what holds for the present batch only."""

    def __init__(self, memory: PowerMemory) -> None:
        super().__init__(memory)
        self.norms: dict[str, float] = {}
        """The last curvature of each Θ_l, by the name of its power iteration."""
        self.inputs: dict[str, Inputs] = {}
        """The x_{l-1} to which a curvature of Θ_l belongs, by the same name."""
        self.factors: dict[int, tuple[Tensor, GuardedFactor]] = {}
        """x_{l-1} and the factor computed from it, by layer."""
        self.residual = torch.zeros(1)
        """d_L before the last move of Θ_L."""
        self.fallbacks = 0
        """How many steps had no finite solution and were replaced by gradient steps."""
