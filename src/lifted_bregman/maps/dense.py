"""The dense map of `nn.Linear`, written out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lifted_bregman._linalg import PowerIteration, Vector, certified_bound
from lifted_bregman._no_graph import no_graph
from lifted_bregman.maps.base import LayerMap


class Dense(LayerMap):
    """z = x Wᵀ + b for rows x, with W of shape (out, in) as `nn.Linear` stores it (the paper's W_l is its transpose).

        J_xᵀ d = d W        J_Wᵀ d = dᵀ x        J_bᵀ d = Σ_i d_i

    flatten=True takes inputs of any feature shape, as `nn.Flatten` before the layer would.
    """

    affine = True

    def __init__(self, module: nn.Linear, flatten: bool = False) -> None:
        self.module = module
        self.flatten = flatten

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        named = (("weight", self.module.weight), ("bias", self.module.bias))
        return {name: p for name, p in named if isinstance(p, nn.Parameter) and p.requires_grad}

    @no_graph
    def apply(self, x: Tensor) -> Tensor:
        return linear(x.flatten(1) if self.flatten else x, self.module.weight, self.module.bias)

    def evaluate(self, x: Tensor) -> Tensor:
        z: Tensor = self.module(x.flatten(1) if self.flatten else x)
        return z

    @no_graph
    def pull_back_input(self, x: Tensor, d: Tensor) -> Tensor:
        pulled = d @ self.module.weight
        return pulled.view(x.shape) if self.flatten else pulled

    @no_graph
    def accumulate_parameters(
        self, x: Tensor, d: Tensor, into: Mapping[str, Tensor], scale: float = 1.0, decay: float = 1.0
    ) -> None:
        x, d = self._rows(x), _matrix(d)
        weight, bias = self.module.weight, self.module.bias
        if weight.requires_grad:
            into["weight"].addmm_(d.t(), x, beta=decay, alpha=scale)
        if bias is not None and bias.requires_grad:
            into["bias"].addmv_(d.t(), d.new_ones(len(d)), beta=decay, alpha=scale)

    @no_graph
    def pull_back_parameters(self, x: Tensor, d: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        x, d = self._rows(x), _matrix(d)
        weight, bias = self.module.weight, self.module.bias
        pulled: dict[str, Tensor] = {}
        if weight.requires_grad:
            pulled["weight"] = torch.addmm(weight, d.t(), x, beta=0, alpha=scale)  # beta = 0: W gives the shape only
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
    def parameter_curvature(self, x: Tensor, power: PowerIteration | None = None, upper: bool = False) -> float:
        """‖[X 1]‖₂², ‖X‖₂² or s, for what is trained of weight and bias; the upper bound is `certified_bound`."""
        x, trained = self._rows(x), self.parameters
        if "weight" not in trained:
            return float(len(x)) if "bias" in trained else 0.0
        if "bias" not in trained:
            estimate = (power or PowerIteration()).estimate(lambda v: (x.t() @ (x @ v[0]),), (x[0],))
            return certified_bound(x, estimate) if upper else estimate

        def normal(v: Vector) -> Vector:
            image = torch.addmv(v[1].expand(len(x)), x, v[0])
            return x.t() @ image, image.sum(0, keepdim=True)

        estimate = (power or PowerIteration()).estimate(normal, (x[0], x[0, :1]))
        return certified_bound(torch.cat((x, x.new_ones(len(x), 1)), 1), estimate) if upper else estimate

    def _rows(self, x: Tensor) -> Tensor:
        return x.flatten(1) if self.flatten else _matrix(x)


def _matrix(t: Tensor) -> Tensor:
    """t as rows over its last dimension."""
    return t if t.ndim == 2 else t.reshape(-1, t.shape[-1])
