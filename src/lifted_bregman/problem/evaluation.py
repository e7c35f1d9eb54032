"""One point of the lifted problem with what every block update reads from it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from lifted_bregman.graph import Network
from lifted_bregman.problem.blocks import above, below, hidden_layers, layers
from lifted_bregman.problem.state import LiftedState
from lifted_bregman.problem.work import Work


class Evaluation:
    """x_0 .. x_L with z_l = f_l(x_{l-1}, Θ_l), σ_l(z_l) and the residuals d_l = σ_l(z_l) - x_l, each computed once.

    Values belong to the parameters at the time they were computed.  A sweep that moves a block says so with
    `set_variable` or `parameters_changed`; exactly what that block touches is computed again when next read.
    """

    __slots__ = ("_network", "_residual", "_sigma", "_work", "_z", "weights", "x")

    def __init__(
        self, network: Network, x: Iterable[Tensor], work: Work | None = None, weights: Tensor | None = None
    ) -> None:
        self._network = network
        self._work = work or Work()
        self.x = list(x)
        """x_0 (the input), x_1 .. x_{L-1} (the variables), x_L (the target)."""
        self.weights = weights
        """w_i, (s,), by which each sample's energy counts; None for all equal to 1."""
        self._z: list[Tensor | None] = [None] * len(self.x)
        self._sigma: list[Tensor | None] = [None] * len(self.x)
        self._residual: list[Tensor | None] = [None] * len(self.x)

    @property
    def samples(self) -> int:
        """s, the number of samples."""
        return len(self.x[0])

    @property
    def state(self) -> LiftedState:
        """x_1 .. x_{L-1} as they stand now."""
        return LiftedState(self.x[l] for l in hidden_layers(len(self._network)))

    def z(self, layer: int) -> Tensor:
        """z_l = f_l(x_{l-1}, Θ_l)."""
        value = self._z[layer]
        if value is None:
            value = self._z[layer] = self._network[layer].map.apply(self.x[below(layer)])
            self._work.forward_maps += 1
        return value

    def sigma(self, layer: int) -> Tensor:
        """σ_l(z_l)."""
        value = self._sigma[layer]
        if value is None:
            value = self._sigma[layer] = self._network[layer].activate(self.z(layer))
            self._work.prox_maps += 1
        return value

    def residual(self, layer: int) -> Tensor:
        """d_l = σ_l(z_l) - x_l, the gradient of B_l(x_l, z_l) in z_l."""
        value = self._residual[layer]
        if value is None:
            value = self._residual[layer] = self.sigma(layer) - self.x[layer]
        return value

    def weigh(self, rows: Tensor) -> Tensor:
        """w_i v_i for rows v_i, one of each sample; the rows themselves where there are no weights."""
        if self.weights is None:
            return rows
        return rows * self.weights.view(-1, *[1] * (rows.ndim - 1))

    def complete(self) -> Evaluation:
        """Computes whatever has not been computed yet."""
        for layer in layers(len(self._network)):
            self.residual(layer)
        return self

    def set_variable(self, layer: int, value: Tensor) -> None:
        """Replaces x_l: d_l and everything of layer l + 1 become stale."""
        self.x[layer] = value
        self._residual[layer] = None
        self.parameters_changed(above(layer))

    def parameters_changed(self, layer: int) -> None:
        """Θ_l was changed in place: everything of layer l becomes stale."""
        self._z[layer] = self._sigma[layer] = self._residual[layer] = None
