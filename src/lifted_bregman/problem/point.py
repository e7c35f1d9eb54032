"""A point of the lifted problem, with the values that block updates read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.graph import Network
from lifted_bregman.maps.base import Inputs
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.problem.shard import WHOLE, Shard
from lifted_bregman.problem.state import LiftedState
from lifted_bregman.problem.work import Work


class Point:
    """x_0 .. x_L with z_l = f_l(x_u, x_w, ..; Θ_l), σ_l(z_l) and the residuals d_l = σ_l(z_l) - x_l, computed once.

    Values belong to the parameters at the time they were computed.  After a block has moved, `set_variable` or
    `parameters_changed` marks the values that depend on it; they are computed again when next read.
    """

    __slots__ = ("_network", "_pulled", "_residual", "_sigma", "_work", "_z", "shard", "weights", "x")

    def __init__(
        self,
        network: Network,
        x: Iterable[Any],
        work: Work | None = None,
        weights: Tensor | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        self._network = network
        self._work = work or Work()
        self.x: list[Any] = list(x)
        """x_0 (the input, `InputTensors` where there are several), x_1 .. x_{L-1} (the variables), x_L (the target)."""
        self.weights = weights
        """w_i of this rank's samples, the weights of their energies; None for all equal to 1."""
        self.shard = shard
        """Which rows of the batch this rank holds, and the sums over all ranks."""
        self._z: list[Tensor | None] = [None] * len(self.x)
        self._sigma: list[Tensor | None] = [None] * len(self.x)
        self._residual: list[Tensor | None] = [None] * len(self.x)
        self._pulled: dict[int, tuple[Tensor, ...]] = {}

    @property
    def samples(self) -> int:
        """s, the number of samples of the whole batch."""
        return self.shard.samples(len(self.x[0]))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of variables and targets; the input may hold whole numbers."""
        target: Tensor = self.x[-1]
        return target.dtype

    @property
    def state(self) -> LiftedState:
        """x_1 .. x_{L-1} as they stand now."""
        return LiftedState(self.x[l] for l in hidden_layers(len(self._network)))

    def read(self, layer: int) -> Inputs:
        """The argument of f_l: x_{l-1} in a chain, a tuple if f_l reads several variables."""
        return self._network.read(self.x, layer)

    def z(self, layer: int) -> Tensor:
        """z_l = f_l(x_u, x_w, ..; Θ_l)."""
        value = self._z[layer]
        if value is None:
            value = self._z[layer] = self._network[layer].map.apply(self.read(layer))
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

    def set_residual(self, layer: int, value: Tensor) -> None:
        """Puts a signal such as a dual variable in place of d_l, until a block that d_l depends on moves."""
        self._residual[layer] = value
        self._pulled.pop(layer, None)

    def pulled(self, layer: int) -> tuple[Tensor, ...]:
        """J_xᵀ d_l for each of the several variables that f_l reads, from one pull-back."""
        if layer not in self._pulled:
            self._pulled[layer] = self._network[layer].map.pull_back_input(self.read(layer), self.residual(layer))
            self._work.adjoints += 1
        return self._pulled[layer]

    def weigh(self, rows: Tensor) -> Tensor:
        """w_i v_i for rows v_i, one for each sample; the rows themselves without weights."""
        if self.weights is None:
            return rows
        return rows * self.weights.view(-1, *[1] * (rows.ndim - 1))

    def means(self, terms: Iterable[Tensor]) -> list[Tensor]:
        """(1/s) Σ_i w_i v_i over the whole batch, for tensors v with one number for each of this rank's samples."""
        sums = [self.weigh(term).sum() for term in terms]
        self.shard.all_sum(*sums)
        return [total.div_(self.samples) for total in sums]

    def complete(self) -> Point:
        """Computes all z_l, σ_l(z_l) and d_l that have not been computed yet."""
        for layer in layers(len(self._network)):
            self.residual(layer)
        return self

    def set_variable(self, layer: int, value: Tensor) -> None:
        """Replaces x_l; d_l, and all values of the terms that read x_l, are computed again when next read."""
        self.x[layer] = value
        self._residual[layer] = None
        self._pulled.pop(layer, None)
        for reader in self._network.links.readers[layer]:
            self._forget(reader)

    def parameters_changed(self, layer: int) -> None:
        """Call this after Θ_l was changed in place: values of the terms in which it occurs are computed again."""
        for user in self._network.links.users[layer]:
            self._forget(user)

    def _forget(self, term: int) -> None:
        self._z[term] = self._sigma[term] = self._residual[term] = None
        self._pulled.pop(term, None)
