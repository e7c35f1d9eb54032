"""What a solver of inversions is: frozen settings, `init` and `step`, and a measure of how far it still is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from lifted_bregman.tasks._inverse_problem import InverseProblem


@dataclass
class InversionState:
    """Where a solver stands."""

    u: Tensor
    """The input, (samples, ...)."""
    hidden: list[Tensor]
    """x_1 .. x_{L-1}."""


S = TypeVar("S", bound=InversionState)


@dataclass(frozen=True)
class Progress:
    """How good a state is, one number per sample each."""

    energies: Tensor
    """E(u, X)."""
    distance: Tensor
    """What the tolerance is compared with."""
    gap: Tensor | None = None
    """E(u) - E(v) <= gap·max(1, ‖v - u‖/radius) for every input v; None where nothing is certified."""
    radius: Tensor | None = None
    """Of that certificate; infinity where it holds without the factor."""


class InversionSolver(ABC, Generic[S]):
    """An algorithm for min_u,X E(u, X)."""

    def require(self, inverse: InverseProblem) -> None:
        """An error unless the algorithm fits the problem."""

    @abstractmethod
    def init(self, inverse: InverseProblem, start: Tensor) -> S:
        """The state at a guess of the input; hidden variables are those of its forward pass."""

    @abstractmethod
    def step(self, inverse: InverseProblem, state: S) -> S:
        """The next state."""

    @abstractmethod
    def progress(self, inverse: InverseProblem, state: S) -> Progress:
        """How good a state is."""
