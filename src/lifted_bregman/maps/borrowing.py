"""A map some of whose parameters belong to another term, as with tied weights and unrolled recurrences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from torch import Tensor, nn

from lifted_bregman._linalg import PowerIteration
from lifted_bregman.maps.base import Inputs, LayerMap, PullBack
from lifted_bregman.maps.sites import Site


class Borrowing(LayerMap):
    """`base` without the parameters that it borrows from a term below, their owner.

    A parameter that occurs in several terms is updated once, in the block of its owner, with the sum of the gradients
    of all these terms.  `parameters` are those of `base` that are not borrowed.

    base     the map with all of its parameters
    lenders  {name in `base`: (term of the owner, name in the owner's map)} of each borrowed parameter
    """

    def __init__(self, base: LayerMap, lenders: Mapping[str, tuple[int, str]]) -> None:
        self.base, self.lenders = base, dict(lenders)
        self.affine, self.channels_first = base.affine, base.channels_first

    @property
    def couples_samples(self) -> bool:  # type: ignore[override]
        """Whether `base` couples samples."""
        return self.base.couples_samples

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Whether `base` is random."""
        return self.base.random

    @property
    def sites(self) -> Sequence[Site]:
        return self.base.sites

    def index_limit(self, which: int = 0) -> int | None:
        return self.base.index_limit(which)

    def require_pure(self) -> None:
        self.base.require_pure()

    def frozen(self) -> AbstractContextManager[None]:
        """The context `frozen` of `base`."""
        return self.base.frozen()

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.base.parameters.items() if name not in self.lenders}

    def unit_rows(self, weight: Tensor) -> Tensor:
        return self.base.unit_rows(weight)

    def from_unit_rows(self, matrix: Tensor, weight: Tensor) -> Tensor:
        return self.base.from_unit_rows(matrix, weight)

    def apply(self, x: Inputs) -> Tensor:
        return self.base.apply(x)

    def linearise(self, x: Inputs) -> tuple[Tensor, PullBack]:
        """z and the pull-back of `base`, which includes borrowed parameters."""
        return self.base.linearise(x)

    def evaluate(self, x: Inputs) -> Tensor:
        return self.base.evaluate(x)

    def pull_back_input(self, x: Inputs, d: Tensor) -> Inputs:
        return self.base.pull_back_input(x, d)

    def pull_back_parameters(self, x: Inputs, d: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        if not self.parameters:
            return {}
        pulled = self.base.pull_back_parameters(x, d, scale)
        return {name: value for name, value in pulled.items() if name not in self.lenders}

    def pull_back_borrowed(self, x: Inputs, d: Tensor, owner: int, scale: float = 1.0) -> dict[str, Tensor]:
        """scale·J_Θᵀ d for the parameters borrowed from term `owner`, by their names in the owner's map."""
        pulled = self.base.pull_back_parameters(x, d, scale)
        found: dict[str, Tensor] = {}
        for name, (lender, there) in self.lenders.items():
            if lender == owner and name in pulled:
                found[there] = found[there] + pulled[name] if there in found else pulled[name]
        return found

    def input_curvature(
        self, x: Inputs, power: PowerIteration | None = None, upper: bool = False, which: int = 0
    ) -> float:
        return self.base.input_curvature(x, power, upper, which)

    def parameter_curvature(self, x: Inputs, power: PowerIteration | None = None, upper: bool = False) -> float:
        """‖J_Θ‖₂² of `base` with all of its parameters, a bound of that without the borrowed ones."""
        return self.base.parameter_curvature(x, power, upper) if self.parameters else 0.0
