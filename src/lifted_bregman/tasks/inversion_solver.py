"""The interface of inversion solvers: frozen settings, `init`, `step` and `progress`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from lifted_bregman.tasks._inverse_problem import InverseProblem


@dataclass
class InversionState:
    """The variables of an inversion; each solver's subclass adds the values that its steps need."""

    u: Tensor
    """The input, (samples, ...)."""
    hidden: list[Tensor]
    """x_1 .. x_{L-1}."""


S = TypeVar("S", bound=InversionState)


@dataclass(frozen=True)
class InversionProgress:
    """Energy, distance and certificate of a state, each (samples,)."""

    energies: Tensor
    """E(u, X)."""
    distance: Tensor
    """The number that the tolerance bounds: a relative gap, or the change of the variables in a step.

    Infinity if it is not known, as for a sample that the last step left in place.
    """
    gap: Tensor | None = None
    """E(u) - E(v) <= gap·max(1, ‖v - u‖/radius) for every input v; None if no bound is known."""
    radius: Tensor | None = None
    """The radius in that bound; infinity if the factor is 1."""


class InversionSolver(ABC, Generic[S]):
    """An algorithm for min_u,X E(u, X)."""

    def require(self, inverse: InverseProblem) -> None:
        """Raise CompatibilityError unless the algorithm can solve the problem."""

    @abstractmethod
    def init(self, inverse: InverseProblem, start: Tensor) -> S:
        """Return the state at a guess of the input and the hidden variables of its forward pass."""

    @abstractmethod
    def step(self, inverse: InverseProblem, state: S) -> S:
        """Return the next state."""

    @abstractmethod
    def progress(self, inverse: InverseProblem, state: S) -> InversionProgress:
        """Return energies, distances and certificates of a state."""
