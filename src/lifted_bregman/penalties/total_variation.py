"""Total variation along a line and over a plane."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman.errors import SettingError, TensorError
from lifted_bregman.penalties._chain import chain_prox
from lifted_bregman.penalties.plane import Denoised, differences, magnitudes, plane_prox
from lifted_bregman.penalties.scalar import Scalar
from lifted_bregman.penalties.vectors import Penalty, require_weight

_MAX_STEPS = 20_000


@dataclass(frozen=True)
class TotalVariation(Penalty):
    """R(x) = weight Σ_ij |(∇x)_ij| with forward differences: of pictures (..., h, w), or of signals (..., n).

        dims=2, isotropic    Σ_ij ( (x_{i,j+1} - x_ij)² + (x_{i+1,j} - x_ij)² )^½
        dims=2, otherwise    Σ_ij |x_{i,j+1} - x_ij| + |x_{i+1,j} - x_ij|
        dims=1               Σ_i |x_{i+1} - x_i|

    Differences across the edge are 0.  `value` is one number per picture or signal; channels count separately.
    In one dimension `prox` is exact up to rounding: level sets of all segments are cut at once, in about log n rounds.
    In two dimensions it iterates on the dual until a duality gap proves ‖prox(x) - exact‖ <= tolerance·‖x‖ for every
    picture; it warns if 20,000 steps do not reach that.

    weight     >= 0
    dims       1 or 2, the number of last dimensions over which differences are taken
    isotropic  in two dimensions: True for the Euclidean norm of the gradient, so that the cost of an edge is its length
      in any direction; False for the sum of absolute values
    tolerance  > 0, the certified relative error of `prox` in two dimensions

    Example:
        >>> penalty = lb.penalties.TotalVariation(1.0, dims=1)
        >>> penalty.value(torch.tensor([0.0, 0.0, 4.0, 4.0]))
        tensor(4.)
        >>> penalty.prox(torch.tensor([0.0, 0.0, 4.0, 4.0]), 1.0)
        tensor([0.5000, 0.5000, 3.5000, 3.5000])
    """

    weight: float
    dims: int = 2
    isotropic: bool = True
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        require_weight(self.weight)
        if self.dims not in (1, 2) or isinstance(self.dims, bool):
            raise SettingError(f"dims is {self.dims!r}; total variation has 1 (signals) or 2 (pictures).")
        if not isinstance(self.isotropic, bool):
            raise SettingError(f"isotropic is {self.isotropic!r}; it must be True or False.")
        positive(self.tolerance, "tolerance")

    @property
    def of_matrices(self) -> bool:  # type: ignore[override]
        """Whether R is a function of a matrix, the last two dimensions."""
        return self.dims == 2

    def compute_value(self, x: Tensor) -> Tensor:
        sums = magnitudes(differences(x.double(), self.dims), self.isotropic).sum(dim=tuple(range(-self.dims, 0)))
        return (self.weight * sums).to(x.dtype)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        return self._prox_with(x, scale, Scalar())[0]

    def _prox_with(
        self, x: Tensor, scale: float, g: Scalar, memory: Any = None, max_steps: int | None = None
    ) -> tuple[Tensor, Any]:
        """argmin_u ½‖u - x‖² + scale·(R(u) + g(u)) for a function g of each number, and a warm start.

        In one dimension it is prox_g after prox_R: prox_g is the same non-decreasing function of each number, so that
        every subgradient of R at prox_R(x) is one at the result.  Isotropic total variation has other subgradients
        there, and g enters the dual problem.

        memory     the warm start that the last call returned, None at first
        max_steps  in two dimensions, where to stop without a warning; None for 20,000 steps and a warning
        """
        if self.weight == 0.0 or x.numel() == 0:
            return g.prox(x.clone(), scale), None
        if self.dims == 1:
            rows = x.double().reshape(-1, x.shape[-1])
            return g.prox(chain_prox(rows, self.weight * scale).view(x.shape), scale).to(x.dtype), None
        pictures = x.double().reshape(-1, *x.shape[-2:])
        found = plane_prox(
            pictures,
            self.weight * scale,
            self.isotropic,
            None if g == Scalar() else lambda v: g.prox(v, scale),
            self.tolerance,
            max_steps or _MAX_STEPS,
            memory,
        )
        if max_steps is None:
            self._warn_of_the_gap(found, pictures)
        return found.u.view(x.shape).to(x.dtype), found.dual

    def _warn_of_the_gap(self, found: Denoised, pictures: Tensor) -> None:
        reached = (2.0 * found.gap).sqrt()
        lengths = pictures.flatten(1).norm(dim=1)
        late = reached > self.tolerance * lengths
        if bool(late.any()):
            worst = float((reached / lengths)[late].max())
            warnings.warn(
                f"the proximal map of {self!r} is certified to {worst:.2g} relative to the picture after "
                f"{_MAX_STEPS:,} steps and not to its tolerance {self.tolerance:g}: raise the tolerance, or lower the "
                "weight or the scale.",
                RuntimeWarning,
                stacklevel=5,
            )

    def _require(self, x: Tensor) -> None:
        super()._require(x)
        if x.ndim < self.dims:
            raise TensorError(
                f"TotalVariation(dims=2) was given a tensor of shape {tuple(x.shape)}; it takes pictures "
                "(..., height, width): reshape x, or take dims=1."
            )
        if not bool(torch.isfinite(x).all()):
            raise TensorError("TotalVariation was given NaN or infinity: repair the tensor first.")
