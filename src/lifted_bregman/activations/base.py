"""The interface of an activation: the proximal map of a potential.

Notation of the paper: potential Ψ, φ = ½‖·‖² + Ψ, activation σ = prox_Ψ = ∇φ* (eqs. 9 and 15), Bregman loss
B_Ψ(x, z) = φ(x) + φ*(z) - <x, z> (eq. 12).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._device import SUPPORTED_DTYPES
from lifted_bregman.errors import TensorError

if TYPE_CHECKING:
    from lifted_bregman.activations._module import ActivationModule

_PIECE = 2**18  # numbers in a piece of an iterative `prox`: a piece fits into the cache


class Activation(ABC):
    """An activation σ = prox_Ψ, with its scaled proximal maps, its potential Ψ and the functions derived from Ψ.

    Subclasses are frozen dataclasses: two activations with equal settings are equal.  All public methods take tensors
    of any shape (..., n), float32 or float64, on any device, and record nothing for autograd; use `as_module` to put
    an activation into a `torch.nn` network.

    To write one, give a function of one number to `FromScalar`, or derive a function of a vector from `Joint`.  A
    subclass implements the methods `compute_*`; the public methods check their arguments and call these.

    Example:
        >>> act = lb.activations.SoftThreshold(0.5)
        >>> z = torch.tensor([-2.0, 0.3, 1.0])
        >>> act(z)
        tensor([-1.5000,  0.0000,  0.5000])
        >>> act.prox(z, scale=0.5)
        tensor([-1.7500,  0.0500,  0.7500])
        >>> act.potential(act(z))
        tensor(1.)
        >>> act.bregman(act(z), z)
        tensor(0.)
    """

    joint: ClassVar[bool] = False
    """Whether σ couples the components of the last dimension (softmax) or acts on each alone (tanh)."""
    iterative: ClassVar[bool] = False
    """Whether `prox` with a scale other than 1 has no closed form and is solved by iteration."""

    def __call__(self, z: Tensor) -> Tensor:
        """σ(z) = argmin_u ½‖u - z‖² + Ψ(u)."""
        self._require(z, "z")
        with torch.no_grad():
            return self.compute_map(z)

    def prox(self, z: Tensor, scale: float = 1.0) -> Tensor:
        """prox_{scale·Ψ}(z) = argmin_u ½‖u - z‖² + scale·Ψ(u), exactly, for every scale > 0."""
        self._require(z, "z")
        scale = positive(scale, "scale")
        with torch.no_grad():
            if scale == 1.0:
                return self.compute_map(z)
            if not self.iterative or z.numel() <= _PIECE:
                return self.compute_prox(z, scale)
            rows = z.reshape(-1, z.shape[-1])
            size = max(1, _PIECE // z.shape[-1])
            return torch.cat([self.compute_prox(piece, scale) for piece in rows.split(size)]).view(z.shape)

    def potential(self, x: Tensor) -> Tensor:
        """Ψ(x), summed over the last dimension; infinity outside the domain."""
        self._require(x, "x")
        with torch.no_grad():
            return self.compute_potential(x)

    def conjugate(self, z: Tensor) -> Tensor:
        """φ*(z) = (½‖·‖² + Ψ)*(z), summed over the last dimension; its gradient is σ (eq. 15)."""
        self._require(z, "z")
        with torch.no_grad():
            return self.compute_conjugate(z)

    def contains(self, x: Tensor) -> Tensor:
        """Whether Ψ(x) is finite, one bool per sample.  The domain is closed where Ψ is finite at its ends."""
        self._require(x, "x")
        with torch.no_grad():
            return self.compute_contains(x)

    def bregman(self, x: Tensor, z: Tensor) -> Tensor:
        """B_Ψ(x, z) = φ(x) + φ*(z) - <x, z> (eq. 12), summed over the last dimension.

        Evaluated so that it is never below ½‖x - σ(z)‖² (Theorem 10) and exactly 0 at x = σ(z); infinity where x is
        outside the domain.
        """
        self._require(x, "x")
        self._require(z, "z")
        if x.shape != z.shape or x.dtype != z.dtype:
            raise TensorError(
                f"x is {tuple(x.shape)} of {x.dtype} and z is {tuple(z.shape)} of {z.dtype}; both must agree: "
                "x holds the layer's outputs and z its pre-activations for the same samples."
            )
        with torch.no_grad():
            return self.compute_bregman(x, z)

    def as_module(self, dim: int = -1) -> ActivationModule:
        """An `nn.Module` that applies σ, for use in `nn.Sequential`; differentiable for back-propagation baselines.

        A joint activation acts along `dim`: -1 for dense features, 1 for the channels of convolutional ones.
        """
        from lifted_bregman.activations._module import ActivationModule

        return ActivationModule(self, dim)

    # Implemented by subclasses.  Tensors are checked: float32 or float64, (..., n).  Autograd is off except in
    # `compute_map`, which `as_module` differentiates.

    @abstractmethod
    def compute_map(self, z: Tensor) -> Tensor:
        """σ(z), in operations that autograd can follow (for `as_module`)."""

    @abstractmethod
    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        """prox_{scale·Ψ}(z), in the shape and dtype of z, for every scale > 0."""

    @abstractmethod
    def compute_potential(self, x: Tensor) -> Tensor:
        """Ψ(x), (...), in the dtype of x; infinity outside the domain."""

    @abstractmethod
    def compute_conjugate(self, z: Tensor) -> Tensor:
        """φ*(z), (...), in the dtype of z."""

    @abstractmethod
    def compute_contains(self, x: Tensor) -> Tensor:
        """Whether Ψ(x) is finite, (...) of bool; σ(z) must be inside for every z, whatever the rounding."""

    @abstractmethod
    def compute_bregman(self, x: Tensor, z: Tensor) -> Tensor:
        """B_Ψ(x, z), (...), in the dtype of x; infinity where x is outside the domain."""

    def _require(self, tensor: Tensor, name: str) -> None:
        if not isinstance(tensor, Tensor) or tensor.dtype not in SUPPORTED_DTYPES:
            given = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TensorError(
                f"{type(self).__name__} was given {name} of type {given}; it takes a torch tensor of float32 or "
                "float64: convert it with torch.as_tensor(...).to(torch.float32)."
            )
        if tensor.ndim == 0 or (self.joint and tensor.shape[-1] == 0):
            raise TensorError(
                f"{type(self).__name__} was given {name} of shape {tuple(tensor.shape)}; the last dimension holds the "
                "features of a sample and must not be missing: use {0}.reshape(1) for a single number.".format(name)
            )


class Separable(Activation):
    """An activation that acts on each number alone: σ, Ψ and φ* are given by scalar functions."""

    def compute_potential(self, x: Tensor) -> Tensor:
        return self._psi_or_infinity(x).sum(-1)

    def compute_conjugate(self, z: Tensor) -> Tensor:
        return self._phi_star(z).sum(-1)

    def compute_contains(self, x: Tensor) -> Tensor:
        return self._inside(x).all(-1)

    def compute_bregman(self, x: Tensor, z: Tensor) -> Tensor:
        return self._bregman_terms(x, z).sum(-1)

    def _bregman_terms(self, x: Tensor, z: Tensor) -> Tensor:
        """B of each number alone, by the definition (eq. 12) in float64 and the lower bound ½(x - σ(z))².

        The definition cancels when x is near σ(z).  Working in float64 keeps that harmless for float32 data, and
        the bound of Theorem 10 keeps it non-negative.  Activations with a closed form for D_Ψ override this.
        """
        u = self.compute_map(z)
        x_, z_ = x.double(), z.double()
        definition = 0.5 * x_.square() + self._psi(x_) + self._phi_star(z_) - x_ * z_
        value = torch.maximum(definition, 0.5 * (x_ - u).square())
        value = torch.where(self._inside(x), value, math.inf)  # the ends of a domain are those of x's precision
        return torch.where(x == u, 0.0, value).to(x.dtype)

    def _psi_or_infinity(self, x: Tensor) -> Tensor:
        return torch.where(self._inside(x), self._psi(x), math.inf)

    @abstractmethod
    def _psi(self, x: Tensor) -> Tensor:
        """Ψ of each number; any value, but no exception, outside the domain."""

    @abstractmethod
    def _phi_star(self, z: Tensor) -> Tensor:
        """φ* of each number."""

    def _inside(self, x: Tensor) -> Tensor:
        """Whether each number is in the domain of Ψ (NaN and infinity are not)."""
        return x.isfinite()


class Joint(Activation):
    """An activation that couples the components of the last dimension; derive a class from it to write one.

    A subclass gives two methods, and is a frozen dataclass with its settings as fields:

    - `compute_prox(z, scale)`: prox_{scale·Ψ}(z) for every scale > 0, in the shape and dtype of z;
    - `compute_potential(x)`: Ψ(x) over the last dimension, infinity outside the domain.  What `compute_prox` returns
      must be inside in the precision of x: allow for rounding.

    With u = σ(z), the library derives the rest.  Override what has a closed form.

    - `compute_map(z)` = `compute_prox(z, 1)`;
    - `compute_conjugate(z)` = <u, z> - ½‖u‖² - Ψ(u), where Fenchel-Young is an equality (eq. 11);
    - `compute_contains(x)`: whether Ψ(x) is finite;
    - `compute_bregman(x, z)` = ½‖x - u‖² + Ψ(x) - Ψ(u) - <z - u, x - u>, the last three terms not below 0 (Theorem 10).

    For example the projection onto the second-order cone {(y, t): ‖y‖ <= t}, with t the last component:

    .. code-block:: python

        @dataclass(frozen=True)
        class Cone(lb.activations.Joint):
            def compute_prox(self, z, scale):  # a projection: the scale of an indicator is immaterial
                y, t = z[..., :-1], z[..., -1:]
                norm = y.norm(dim=-1, keepdim=True)
                edge = 0.5 * (norm + t)
                side = torch.cat([y * (edge / norm.clamp(min=1e-30)), edge], -1)
                return torch.where(norm <= t, z, torch.where(norm <= -t, 0.0 * z, side))

            def compute_potential(self, x):
                rounding = 8.0 * torch.finfo(x.dtype).eps * x.norm(dim=-1)
                inside = x[..., :-1].norm(dim=-1) <= x[..., -1] + rounding
                return torch.where(inside, 0.0, math.inf).to(x.dtype)

    `lb.check_prox`, `lb.check_conjugate` and `lb.check_bregman` test it, and `Cone().as_module()` goes into a model.
    """

    joint: ClassVar[bool] = True

    def compute_map(self, z: Tensor) -> Tensor:
        """σ(z) = prox_Ψ(z)."""
        return self.compute_prox(z, 1.0)

    def compute_conjugate(self, z: Tensor) -> Tensor:
        """φ*(z) = <u, z> - ½‖u‖² - Ψ(u) with u = σ(z) (eq. 11), in float64."""
        z_ = z.double()
        u = self.compute_map(z_)
        return ((u * (z_ - 0.5 * u)).sum(-1) - self.compute_potential(u)).to(z.dtype)

    def compute_contains(self, x: Tensor) -> Tensor:
        """Whether x and Ψ(x) are finite."""
        return x.isfinite().all(-1) & self.compute_potential(x).isfinite()

    def compute_bregman(self, x: Tensor, z: Tensor) -> Tensor:
        """B = ½‖x - u‖² + D_Ψ(x, u) with u = σ(z), in float64, where D_Ψ is not below 0; exactly 0 at x = u."""
        x_, z_ = x.double(), z.double()
        u = self.compute_map(z_)
        psi = self.compute_potential(x).double()  # the ends of a domain are those of x's precision
        divergence = psi - self.compute_potential(u) - ((z_ - u) * (x_ - u)).sum(-1)
        value = 0.5 * (x_ - u).square().sum(-1) + divergence.clamp(min=0.0)
        value = torch.where((x == self.compute_map(z)).all(-1), 0.0, value)
        return torch.where(self.compute_contains(x), value, math.inf).to(x.dtype)
