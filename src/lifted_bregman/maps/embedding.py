"""The map of `nn.Embedding`, which looks up rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from lifted_bregman._linalg import PowerIteration
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError, UnsupportedModuleError
from lifted_bregman.maps.base import LayerMap


class EmbeddingMap(LayerMap):
    """z_i = W[x_i] for whole numbers x of any shape, with W of shape (entries, features).

        J_Wᵀ d = Σ_i e_{x_i} d_iᵀ        the rows A of z = A W are unit vectors, AᵀA = diag(counts)

    It is the dense map with weight Wᵀ, without bias, of one-hot inputs.  x is an index: there is no Jacobian in x, so
    that the map can read data, and no variable.  The row of padding_idx is looked up and never trained.

    Example:
        >>> from lifted_bregman.maps import EmbeddingMap
        >>> embedding = nn.Embedding(10, 4)
        >>> i = torch.tensor([[1, 2], [2, 3]])
        >>> torch.equal(EmbeddingMap(embedding).apply(i), embedding(i))
        True
    """

    affine = True

    def __init__(self, module: nn.Embedding) -> None:
        if type(module) is not nn.Embedding:
            raise UnsupportedModuleError(
                f"EmbeddingMap was given a {type(module).__name__}; it takes nn.Embedding itself: use lb.Map(module) "
                "for another differentiable map."
            )
        for name, given in (("max_norm", module.max_norm), ("scale_grad_by_freq", module.scale_grad_by_freq)):
            if given is not None and given is not False:
                raise UnsupportedModuleError(
                    f"the Embedding has {name}={given}, which changes its rows or gradients outside of the map: make "
                    f"it without {name}."
                )
        self.module = module

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        weight = self.module.weight
        return {"weight": weight} if isinstance(weight, nn.Parameter) and weight.requires_grad else {}

    def index_limit(self, which: int = 0) -> int | None:
        return self.module.num_embeddings

    def unit_rows(self, weight: Tensor) -> Tensor:
        """Wᵀ (features, entries), as the dense map of one-hot inputs has it."""
        return weight.t()

    def from_unit_rows(self, matrix: Tensor, weight: Tensor) -> Tensor:
        return matrix.t()

    @no_graph
    def apply(self, x: Tensor) -> Tensor:
        return embedding(x, self.module.weight)

    def evaluate(self, x: Tensor) -> Tensor:
        z: Tensor = self.module(x)
        return z

    def pull_back_input(self, x: Tensor, d: Tensor) -> NoReturn:
        """Raises `CompatibilityError`: an index is no variable."""
        self._refuse()

    @no_graph
    def accumulate_parameters(
        self, x: Tensor, d: Tensor, into: Mapping[str, Tensor], scale: float = 1.0, decay: float = 1.0
    ) -> None:
        if not self.module.weight.requires_grad:
            return
        table = into["weight"].detach()
        if decay == 0.0:
            table.zero_()
        elif decay != 1.0:
            table.mul_(decay)
        padding = self.module.padding_idx
        kept = None if padding is None else table[padding].clone()
        table.index_add_(0, x.reshape(-1), d.reshape(-1, d.shape[-1]), alpha=scale)
        if kept is not None:
            table[padding].copy_(kept)

    @no_graph
    def pull_back_parameters(self, x: Tensor, d: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        pulled = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.accumulate_parameters(x, d, pulled, scale)
        return pulled

    @no_graph
    def gram(self, x: Tensor, rows: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """The diagonal of AᵀA/m, (entries,): how often each entry is looked up, divided by m = x.numel().

        It is exact and cheaper than the map itself: `rows` and `generator` are ignored.
        """
        return self._counts(x).div_(x.numel())

    def input_curvature(
        self, x: Tensor, power: PowerIteration | None = None, upper: bool = False, which: int = 0
    ) -> NoReturn:
        """Raises `CompatibilityError`: an index is no variable."""
        self._refuse()

    @no_graph
    def parameter_curvature(self, x: Tensor, power: PowerIteration | None = None, upper: bool = False) -> float:
        """The largest count of an entry, exact."""
        return float(self._counts(x).max()) if self.module.weight.requires_grad else 0.0

    def _counts(self, x: Tensor) -> Tensor:
        """How often each entry is looked up; 0 for padding_idx."""
        W = self.module.weight
        counts = torch.bincount(x.reshape(-1), minlength=len(W)).to(W.dtype)
        if self.module.padding_idx is not None:
            counts[self.module.padding_idx] = 0.0
        return counts

    def _refuse(self) -> NoReturn:
        raise CompatibilityError(
            "an Embedding was asked for a derivative in its inputs, which are whole numbers and no variable: let it "
            "read the model's input, or use nn.Linear on one-hot inputs."
        )
