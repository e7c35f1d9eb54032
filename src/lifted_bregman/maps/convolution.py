"""The maps of torch's convolutions and transposed convolutions, written out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman._autocast import lowered, widened
from lifted_bregman._linalg import PowerIteration, Vector, certified_bound, positive_bound
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import SettingError, UnsupportedModuleError
from lifted_bregman.maps._patches import (
    CONVOLUTIONS,
    TRANSPOSED,
    Kind,
    Patches,
    axes_of,
    evenly_spread,
    fold_padding,
    pad_inputs,
    squared,
)
from lifted_bregman.maps._symbol import symbol_bound
from lifted_bregman.maps.base import LayerMap, PullBack

_MATRIX_ENTRIES = 2**22  # a map with at most this many is written out as a matrix for a tight bound
_DESIGN_ENTRIES = 2**20  # of patches at a time, for an exact Gram matrix
_EPS = torch.finfo(torch.float64).eps
_aten: Any = torch.ops.aten


class Convolution(LayerMap):
    """z = W * x + b of `nn.Conv1d`, 2d, 3d and `nn.ConvTranspose1d`, 2d, 3d, for x of shape (samples, channels, ...).

    Both pull-backs are one call of torch's backward convolution; no graph is recorded.  In matrix form, with the
    patches of all samples and output positions as rows of A (m, n), n = inputs of a group times kernel size,

        z = A Θᵀ + b        Θ = unit_rows(W), (units, n)

    With groups there is one A for each group.

    Example:
        >>> from lifted_bregman.maps import Convolution
        >>> conv = nn.Conv2d(1, 4, 3)
        >>> x = torch.randn(2, 1, 8, 8)
        >>> Convolution(conv).apply(x).shape
        torch.Size([2, 4, 6, 6])
    """

    affine = True
    channels_first = True

    def __init__(self, module: Kind) -> None:
        if type(module) not in (*CONVOLUTIONS, *TRANSPOSED):
            raise UnsupportedModuleError(
                f"Convolution was given a {type(module).__name__}; it takes nn.Conv1d, 2d, 3d or nn.ConvTranspose1d, "
                "2d, 3d themselves: use lb.Map(module) for other modules."
            )
        self.module = module
        self.transposed = isinstance(module, TRANSPOSED)
        self._axes = axes_of(module)
        # torch's backward convolution knows equal zero paddings on both sides; others are applied to x before it.
        self._pads = any(axis.mode != "zeros" or axis.left != axis.right for axis in self._axes)
        padding = [0 if self._pads else axis.left for axis in self._axes]
        extra = [axis.output_padding for axis in self._axes]
        strides, dilations = [axis.stride for axis in self._axes], [axis.dilation for axis in self._axes]
        self._settings = (strides, padding, dilations, self.transposed, extra, module.groups)
        self._patches: tuple[tuple[object, ...], Patches] | None = None

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        named = (("weight", self.module.weight), ("bias", self.module.bias))
        return {name: p for name, p in named if isinstance(p, nn.Parameter) and p.requires_grad}

    def unit_rows(self, weight: Tensor) -> Tensor:
        if not self.transposed:
            return super().unit_rows(weight)
        split: Tensor = weight.unflatten(0, (self.module.groups, -1))  # (groups, inputs, units of a group, ...)
        return split.transpose(1, 2).flatten(0, 1).flatten(1)

    def from_unit_rows(self, matrix: Tensor, weight: Tensor) -> Tensor:
        if not self.transposed:
            return super().from_unit_rows(matrix, weight)
        groups, inputs = self.module.groups, len(weight) // self.module.groups
        split: Tensor = matrix.unflatten(0, (groups, -1)).unflatten(2, (inputs, *weight.shape[2:]))
        return split.transpose(1, 2).flatten(0, 1)

    def packed(self, parts: Mapping[str, Tensor]) -> Tensor:
        """One matrix (units, n) from tensors with the shapes of the trained parameters: `unit_rows`, then the bias."""
        columns = [self.unit_rows(parts["weight"])] if "weight" in parts else []
        return torch.cat([*columns, *([parts["bias"][:, None]] if "bias" in parts else [])], 1)

    def unpacked(self, matrix: Tensor) -> dict[str, Tensor]:
        """The inverse of `packed`, for all trained parameters."""
        trained, parts = self.parameters, {}
        if "weight" in trained:
            columns = matrix.shape[1] - ("bias" in trained)
            parts["weight"] = self.from_unit_rows(matrix[:, :columns], trained["weight"])
        return parts | {"bias": matrix[:, -1]} if "bias" in trained else parts

    @no_graph
    def apply(self, x: Tensor) -> Tensor:
        return self._push(x, self.module.weight, self.module.bias)

    def evaluate(self, x: Tensor) -> Tensor:
        z: Tensor = self.module(x)
        return widened(z)

    def linearise(self, x: Tensor) -> tuple[Tensor, PullBack]:
        def pull(d: Tensor, scale: float = 1.0, inputs: bool = True) -> tuple[Any, dict[str, Tensor]]:
            return self.pull_back(x, d, scale) if inputs else (None, self.pull_back_parameters(x, d, scale))

        return self.apply(x), pull

    @no_graph
    def pull_back(self, x: Tensor, d: Tensor, scale: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        """J_xᵀ d and scale·J_Θᵀ d for each name in `parameters`, in one backward convolution."""
        pulled, gradients = self._backward(x, d, True)
        return pulled, self._scaled(gradients, scale)

    @no_graph
    def pull_back_input(self, x: Tensor, d: Tensor) -> Tensor:
        pulled: Tensor = self._backward(x, d, True, trained=False)[0]
        return pulled

    @no_graph
    def pull_back_parameters(self, x: Tensor, d: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        return self._scaled(self._backward(x, d, False)[1], scale)

    @no_graph
    def accumulate_parameters(
        self, x: Tensor, d: Tensor, into: Mapping[str, Tensor], scale: float = 1.0, decay: float = 1.0
    ) -> None:
        for name, gradient in self._backward(x, d, False)[1].items():
            if decay == 0.0:
                torch.mul(gradient, scale, out=into[name].detach())
                continue
            if decay != 1.0:
                into[name].mul_(decay)
            into[name].add_(gradient, alpha=scale)

    @no_graph
    def design(self, x: Tensor) -> Tensor:
        """A (m, n), or (groups, m, n) where there are groups: the patches of x, m = samples·positions.

        Rows are ordered by sample and then by position, as z.movedim(1, -1) has them, and columns as in
        `unit_rows(weight)`.  A bias adds a column of ones, which is left out here.
        """
        A = self._patches_of(x).all(x, self.module.groups)
        return A if self.module.groups > 1 else A[0]

    @no_graph
    def some_rows(self, x: Tensor, rows: int, weights: Tensor | None = None) -> Tensor:
        """(groups, r, n): r of the rows of [A 1], spread evenly (`Patches.some`); only columns of trained parameters.

        rows     r >= 1; all rows if there are fewer than 2r
        weights  w_i of the samples, (samples,), whose roots multiply the rows; None for all equal to 1
        """
        patches, groups = self._patches_of(x), self.module.groups
        total = len(x) * patches.positions
        few = 2 * rows > total
        A = self._trained_columns(patches.all(x, groups) if few else patches.some(x, groups, rows, None))
        if weights is None:
            return A
        row = torch.arange(total, device=x.device) if few else evenly_spread(total, rows, x.device)
        return A * weights.sqrt()[row.div(patches.positions, rounding_mode="floor")][:, None]

    @no_graph
    def gram(self, x: Tensor, rows: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """The mean Gram matrix AᵀA/m (n, n), or (groups, n, n); A has a last column of ones for a trained bias.

        rows       None: exact, from all m patches.  A number r >= 1: the mean over r patches, spread evenly over
                   samples and positions (`Patches.some`), if m is at least 2r.
        generator  draws the patches at random; the expectation is the exact matrix
        """
        if rows is not None and rows < 1:
            raise SettingError(f"rows is {rows}; expected at least 1, or None for all patches.")
        patches, groups = self._patches_of(x), self.module.groups
        if rows is not None and 2 * rows <= len(x) * patches.positions:
            A = self._trained_columns(patches.some(x, groups, rows, generator))
            gram = squared(A).div_(rows)
        else:
            gram = self._sum_of_squares(x).div_(len(x) * patches.positions)
        return gram if groups > 1 else gram[0]

    @no_graph
    def input_curvature(
        self, x: Tensor, power: PowerIteration | None = None, upper: bool = False, which: int = 0
    ) -> float:
        """‖J_x‖₂².  Upper bound: of small maps the `certified_bound` of the matrix, which is tight.

        Of others the smaller one of `symbol_bound`, tight for images larger than the kernel that are padded with zeros
        or circularly, and of the `positive_bound` of |J|ᵀ|J|, tight for weights that are not negative.
        """
        W, base = self.module.weight.detach(), x[:1].detach()
        if not upper:
            return (power or PowerIteration()).estimate(lambda v: (self._normal(v[0], W),), (base,))
        W, base = W.double(), base.double()
        z = self._push(base, W)
        if base.numel() * z.numel() <= _MATRIX_ENTRIES:
            units = torch.eye(base.numel(), dtype=base.dtype, device=base.device).view(-1, *base.shape[1:])
            matrix = self._push(units, W).flatten(1)
            estimate = PowerIteration().estimate(lambda v: (matrix @ (matrix.t() @ v[0]),), (matrix[:, 0],))
            return certified_bound(matrix, estimate)
        bound = positive_bound(lambda v: (self._normal(v[0], W.abs()),), (base,))
        axes = [replace(axis, transposed=False) for axis in self._axes]
        sizes = (z if self.transposed else x).shape[2:]
        return min(bound, symbol_bound(W, self.module.groups, axes, sizes))

    @no_graph
    def parameter_curvature(self, x: Tensor, power: PowerIteration | None = None, upper: bool = False) -> float:
        """‖J_Θ‖₂² = ‖[A 1]‖₂², the largest over groups; without the column or A where they are not trained.

        Upper bound: λ_max(K) <= √(certified_bound of K), with K = [A 1]ᵀ[A 1] added up in float64.
        """
        trained = self.parameters
        rows = len(x) * self._patches_of(x).positions
        if "weight" not in trained:
            return float(rows) if trained else 0.0

        def normal(v: Vector) -> Vector:
            image = self._push(x, *v)
            return tuple(self._backward(x, image, False)[1].values())

        if not upper:
            return (power or PowerIteration()).estimate(normal, tuple(p.detach() for p in trained.values()))
        largest, sums = 0.0, self._sum_of_squares(x.detach().double())
        for K in sums:
            estimate = PowerIteration().estimate(lambda v, K=K: (K @ v[0],), (K[0],))  # type: ignore[misc]
            largest = max(largest, math.sqrt(certified_bound(K, estimate * estimate)))
        return largest * (1.0 + 4.0 * rows * len(sums[0]) * _EPS)

    def _push(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        z: Tensor = _aten.convolution(*lowered(self._padded(x), weight, bias), *self._settings)
        return widened(z)

    def _normal(self, v: Tensor, weight: Tensor) -> Tensor:
        """JᵀJ v in the inputs, for any weight."""
        padded = self._padded(v)
        z = _aten.convolution(padded, weight, None, *self._settings)
        return self._folded(
            _aten.convolution_backward(z, padded, weight, None, *self._settings, [True, False, False])[0]
        )

    def _backward(self, x: Tensor, d: Tensor, inputs: bool, trained: bool = True) -> tuple[Any, dict[str, Tensor]]:
        """J_xᵀ d, or None unless `inputs`, and J_Θᵀ d by name in new tensors, empty unless `trained`."""
        names = self.parameters if trained else {}
        mask = [inputs, "weight" in names, "bias" in names]
        if not any(mask):
            return None, {}
        padded, W = self._padded(x), self.module.weight
        units = [d.shape[1]] if mask[2] else None
        pulled, *gradients = _aten.convolution_backward(*lowered(d, padded, W), units, *self._settings, mask)
        found = zip(("weight", "bias"), gradients, strict=True)
        trained_only = {name: widened(g) for name, g in found if name in names}
        return self._folded(widened(pulled)) if inputs else None, trained_only

    def _padded(self, x: Tensor) -> Tensor:
        return pad_inputs(x, self._axes) if self._pads else x

    def _folded(self, d: Tensor) -> Tensor:
        return fold_padding(d, self._axes) if self._pads else d

    @staticmethod
    def _scaled(gradients: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
        if scale != 1.0:
            for gradient in gradients.values():
                gradient.mul_(scale)
        return gradients

    def _patches_of(self, x: Tensor) -> Patches:
        """The patches for inputs of this shape; those of the last shape are kept."""
        key = (x.shape[2:], x.device)
        if self._patches is None or self._patches[0] != key:
            self._patches = key, Patches.of(self._axes, x.shape[2:], x.device)
        return self._patches[1]

    def _trained_columns(self, A: Tensor) -> Tensor:
        """The columns of [A 1] that belong to trained parameters, for A (groups, m, n)."""
        trained = self.parameters
        parts = [A] if "weight" in trained else [A[..., :0]]
        if "bias" in trained:
            parts.append(A.new_ones(*A.shape[:2], 1))
        return torch.cat(parts, 2) if len(parts) > 1 or "weight" not in trained else A

    def _sum_of_squares(self, x: Tensor) -> Tensor:
        """[A 1]ᵀ[A 1] (groups, n, n), columns of trained parameters only, added up over parts of the samples."""
        patches = self._patches_of(x)
        each = patches.index.numel() * x.shape[1]
        K = x.new_zeros(())
        for part in x.split(max(1, _DESIGN_ENTRIES // each)):
            A = self._trained_columns(patches.all(part, self.module.groups))
            K = K + squared(A)
        return K
