"""The dense map of `nn.Linear`, written out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lifted_bregman._autocast import widened
from lifted_bregman._linalg import PowerIteration, Vector, certified_bound
from lifted_bregman._no_graph import no_graph
from lifted_bregman.maps.base import LayerMap


class Dense(LayerMap):
    """z = x Wᵀ + b for rows x, with W of shape (out, in) as `nn.Linear` stores it (the paper's W_l is its transpose).

        J_xᵀ d = d W        J_Wᵀ d = dᵀ x        J_bᵀ d = Σ_i d_i

    flatten=True takes inputs of any feature shape, as `nn.Flatten` before the layer would.

    Example:
        >>> from lifted_bregman.maps import Dense
        >>> linear = nn.Linear(3, 2)
        >>> x, d = torch.randn(5, 3), torch.randn(5, 2)
        >>> torch.equal(Dense(linear).apply(x), linear(x))
        True
        >>> torch.allclose(Dense(linear).pull_back_input(x, d), d @ linear.weight)
        True
    """

    affine = True

    def __init__(self, module: nn.Linear, flatten: bool = False) -> None:
        self.module = module
        self.flatten = flatten

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        # A module's own table is read much faster than its attributes; a computed weight is not in it.
        return {name: p for name, p in self.module._parameters.items() if p is not None and p.requires_grad}

    @no_graph
    def apply(self, x: Tensor) -> Tensor:
        return widened(linear(x.flatten(1) if self.flatten else x, self.module.weight, self.module.bias))

    def evaluate(self, x: Tensor) -> Tensor:
        z: Tensor = self.module(x.flatten(1) if self.flatten else x)
        return widened(z)

    @no_graph
    def pull_back_input(self, x: Tensor, d: Tensor) -> Tensor:
        pulled = widened(d @ self.module.weight)
        return pulled.view(x.shape) if self.flatten else pulled

    @no_graph
    def accumulate_parameters(
        self, x: Tensor, d: Tensor, into: Mapping[str, Tensor], scale: float = 1.0, decay: float = 1.0
    ) -> None:
        x, d = self.rows(x), _matrix(d)
        weight, bias = self.module.weight, self.module.bias
        if weight.requires_grad:
            into["weight"].addmm_(d.t(), x, beta=decay, alpha=scale)
        if bias is not None and bias.requires_grad:
            into["bias"].addmv_(d.t(), d.new_ones(len(d)), beta=decay, alpha=scale)

    @no_graph
    def pull_back_parameters(self, x: Tensor, d: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        x, d = self.rows(x), _matrix(d)
        weight, bias = self.module.weight, self.module.bias
        pulled: dict[str, Tensor] = {}
        if weight.requires_grad:
            # with beta = 0, W only gives the shape
            pulled["weight"] = widened(torch.addmm(weight, d.t(), x, beta=0, alpha=scale))
        if bias is not None and bias.requires_grad:
            pulled["bias"] = d.sum(0).mul_(scale)
        return pulled

    @no_graph
    def input_curvature(
        self, x: Tensor, power: PowerIteration | None = None, upper: bool = False, which: int = 0
    ) -> float:
        """‖W‖₂²; the upper bound is `certified_bound`."""
        W = self.module.weight
        estimate = (power or PowerIteration()).estimate(lambda v: (W.t() @ (W @ v[0]),), (W[0],))
        return certified_bound(W, estimate) if upper else estimate

    @no_graph
    def parameter_curvature(
        self, x: Tensor, power: PowerIteration | None = None, upper: bool = False, weights: Tensor | None = None
    ) -> float:
        """‖[X 1]‖₂², ‖X‖₂² or s, for what is trained of weight and bias; the upper bound is `certified_bound`.

        weights  w_i > 0 of each sample, (samples,): the norm of diag(√w) [X 1], and Σ w_i in place of s
        """
        rows, trained = self.rows(x), self.parameters
        w = None if weights is None else weights.repeat_interleave(len(rows) // max(1, len(x)))
        if "weight" not in trained:
            return 0.0 if "bias" not in trained else float(len(rows) if w is None else w.sum())
        bias = "bias" in trained

        def normal(v: Vector) -> Vector:
            image = torch.addmv(v[1].expand(len(rows)), rows, v[0]) if bias else rows @ v[0]
            if w is not None:
                image = image * w
            pulled = rows.t() @ image
            return (pulled, image.sum(0, keepdim=True)) if bias else (pulled,)

        like = (rows.new_empty(rows.shape[1]), rows.new_empty(1))
        estimate = (power or PowerIteration()).estimate(normal, like if bias else like[:1])
        if not upper:
            return estimate
        A = torch.cat((rows, rows.new_ones(len(rows), 1)), 1) if bias else rows
        return certified_bound(A if w is None else A.double() * w.double().sqrt()[:, None], estimate)

    def rows(self, x: Tensor) -> Tensor:
        """The inputs as rows (m, in), m the samples times the positions of each."""
        return x.flatten(1) if self.flatten else _matrix(x)


def _matrix(t: Tensor) -> Tensor:
    """t as rows over its last dimension."""
    return t if t.ndim == 2 else t.reshape(-1, t.shape[-1])
