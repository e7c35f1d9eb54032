"""The interface of an activation: the proximal map of a potential.

Notation of the paper: potential Ψ, φ = ½‖·‖² + Ψ, activation σ = prox_Ψ = ∇φ* (eqs. 9 and 15), Bregman loss
B_Ψ(x, z) = φ(x) + φ*(z) - <x, z> (eq. 12).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from lifted_bregman.errors import SettingError, TensorError

if TYPE_CHECKING:
    from lifted_bregman.activations._module import ActivationModule

SUPPORTED_DTYPES = (torch.float32, torch.float64)
_PIECE = 2**18  # numbers that an iteration works on at once, so that its passes stay in cache


class Activation(ABC):
    """σ = prox_Ψ, together with everything the lifted problem needs to know of Ψ.

    Subclasses are frozen dataclasses: two activations with equal settings are equal.  All public methods take tensors
    of any shape (..., n), float32 or float64, on any device, and record nothing for autograd; use `as_module` to put
    an activation into a `torch.nn` network.
    """

    joint: ClassVar[bool] = False
    """Whether σ couples the components of the last dimension (softmax) or acts on each alone (tanh)."""
    iterative: ClassVar[bool] = False
    """Whether `prox` with a scale other than 1 has no closed form and is solved by iteration."""

    def __call__(self, z: Tensor) -> Tensor:
        """σ(z) = argmin_u ½‖u - z‖² + Ψ(u)."""
        self._require(z, "z")
        with torch.no_grad():
            return self._map(z)

    def prox(self, z: Tensor, scale: float = 1.0) -> Tensor:
        """prox_{scale·Ψ}(z) = argmin_u ½‖u - z‖² + scale·Ψ(u), exactly, for every scale > 0."""
        self._require(z, "z")
        scale = positive(scale, "scale")
        with torch.no_grad():
            if scale == 1.0:
                return self._map(z)
            if not self.iterative or z.numel() <= _PIECE:
                return self._prox(z, scale)
            rows = z.reshape(-1, z.shape[-1])
            size = max(1, _PIECE // z.shape[-1])
            return torch.cat([self._prox(piece, scale) for piece in rows.split(size)]).view(z.shape)

    def potential(self, x: Tensor) -> Tensor:
        """Ψ(x), summed over the last dimension; infinity outside the domain."""
        self._require(x, "x")
        with torch.no_grad():
            return self._potential(x)

    def conjugate(self, z: Tensor) -> Tensor:
        """φ*(z) = (½‖·‖² + Ψ)*(z), summed over the last dimension; its gradient is σ (eq. 15)."""
        self._require(z, "z")
        with torch.no_grad():
            return self._conjugate(z)

    def contains(self, x: Tensor) -> Tensor:
        """Whether Ψ(x) is finite, one bool per sample.  The domain is closed where Ψ is finite at its ends."""
        self._require(x, "x")
        with torch.no_grad():
            return self._contains(x)

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
            return self._bregman(x, z)

    def as_module(self, dim: int = -1) -> ActivationModule:
        """An `nn.Module` that applies σ, for use in `nn.Sequential`; differentiable for back-propagation baselines.

        A joint activation acts along `dim`: -1 for dense features, 1 for the channels of convolutional ones.
        """
        from lifted_bregman.activations._module import ActivationModule

        return ActivationModule(self, dim)

    @abstractmethod
    def _map(self, z: Tensor) -> Tensor:
        """σ(z), in operations that autograd can follow (for `as_module`)."""

    @abstractmethod
    def _prox(self, z: Tensor, scale: float) -> Tensor: ...

    @abstractmethod
    def _potential(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _conjugate(self, z: Tensor) -> Tensor: ...

    @abstractmethod
    def _contains(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _bregman(self, x: Tensor, z: Tensor) -> Tensor: ...

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

    def _potential(self, x: Tensor) -> Tensor:
        return self._psi_or_infinity(x).sum(-1)

    def _conjugate(self, z: Tensor) -> Tensor:
        return self._phi_star(z).sum(-1)

    def _contains(self, x: Tensor) -> Tensor:
        return self._inside(x).all(-1)

    def _bregman(self, x: Tensor, z: Tensor) -> Tensor:
        return self._bregman_terms(x, z).sum(-1)

    def _bregman_terms(self, x: Tensor, z: Tensor) -> Tensor:
        """B of each number alone, by the definition (eq. 12) in float64 and the lower bound ½(x - σ(z))².

        The definition cancels when x is near σ(z).  Working in float64 keeps that harmless for float32 data, and
        the bound of Theorem 10 keeps it non-negative.  Activations with a closed form for D_Ψ override this.
        """
        u = self._map(z)
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


def whole(value: Any, name: str, least: int | None = 1) -> int:
    """`value` as an int, NumPy's whole numbers included; an error unless it is one, of at least `least` if given."""
    if not isinstance(value, Integral) or isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise SettingError(f"{name} is {value!r}; it must be a whole number{bound}.")
    return int(value)


def positive(value: float, name: str) -> float:
    """`value` as a float, or an error unless it is a finite number > 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0.0):
        raise SettingError(f"{name} is {value!r}; it must be a finite number greater than 0.")
    return number
