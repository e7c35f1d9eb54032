"""Memory shared by the inner steps of one batch: norms, inputs and factorisations."""

from __future__ import annotations

import torch
from torch import Tensor

from lifted_bregman._linalg import GuardedFactor
from lifted_bregman.problem.curvature import FollowedMemory, PowerMemory


class BatchMemory(FollowedMemory):
    """The vectors of the power iterations, and factorisations that are valid for the present batch only."""

    def __init__(self, memory: PowerMemory) -> None:
        super().__init__(memory)
        self.factors: dict[int, tuple[Tensor, GuardedFactor]] = {}
        """x_{l-1} and the factor computed from it, by layer."""
        self.residual = torch.zeros(1)
        """d_L before the last move of Θ_L."""
        self.fallbacks = 0
        """The number of steps without a finite solution, which gradient steps replaced."""
