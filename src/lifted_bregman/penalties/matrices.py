"""Penalties on the singular values of a weight matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman._linalg import map_singular_values, singular_values
from lifted_bregman.errors import TensorError
from lifted_bregman.penalties.vectors import Penalty, require_weight, split_product


@dataclass(frozen=True)
class Nuclear(Penalty):
    """R(X) = weight ‖X‖_* = weight Σ_i σ_i(X), for parameters only; prox_{tR} shrinks each singular value by t·weight.

        prox_{tR}(U diag(σ) Vᵀ) = U diag(max(σ - t·weight, 0)) Vᵀ

    It acts on matrices, the last two dimensions of a tensor, and `value` is one number per matrix.  A weight enters as
    (units, rest).

    weight  >= 0

    Example:
        >>> penalty = lb.penalties.Nuclear(1.0)
        >>> penalty.value(torch.diag(torch.tensor([3.0, 0.5])))
        tensor(3.5000)
        >>> penalty.prox(torch.diag(torch.tensor([3.0, 0.5])), 1.0)
        tensor([[2., 0.],
                [0., 0.]])
    """

    of_matrices: ClassVar[bool] = True
    tensor_scale: ClassVar[bool] = True

    weight: float

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def singular_values(self, x: Tensor) -> Tensor:
        """σ_1 >= σ_2 >= ... of each matrix, in float64: σ_i is the smallest weight at which prox_R leaves rank < i."""
        self._require(x)
        with torch.no_grad():
            return singular_values(x)

    def compute_value(self, x: Tensor) -> Tensor:
        return (self.weight * self.singular_values(x).sum(-1)).to(x.dtype)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        coarse, rest = split_product(self.weight, scale, torch.float64)
        return map_singular_values(x, lambda sigma: sigma.sub(coarse).sub_(rest).clamp_(min=0.0))

    def _require(self, x: Tensor) -> None:
        super()._require(x)
        if x.ndim < 2:
            raise TensorError(
                f"Nuclear was given a tensor of shape {tuple(x.shape)}; it takes matrices (..., rows, columns): "
                "flatten a weight with weight.flatten(1)."
            )
