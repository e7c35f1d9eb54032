"""Activations as `nn.Module`s, and the mode in which differentiating an activation is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lifted_bregman.errors import ActivationDerivativeError

if TYPE_CHECKING:
    from lifted_bregman.activations.base import Activation


class ActivationModule(nn.Module):
    """An activation as an `nn.Module`, differentiable by autograd; a joint one acts along `dim`.

    `activation.as_module()` makes one.

    Example:
        >>> module = lb.activations.SoftThreshold(0.5).as_module()
        >>> nn.Sequential(nn.Identity(), module)(torch.tensor([[-2.0, 0.3, 1.0]]))
        tensor([[-1.5000,  0.0000,  0.5000]])
    """

    def __init__(self, activation: Activation, dim: int = -1) -> None:
        super().__init__()
        self.activation = activation
        self.dim = dim

    def forward(self, z: Tensor) -> Tensor:
        """σ(z)."""
        self.activation._require(z, "z")
        moved = self.activation.joint and self.dim != -1
        apply = _map_without_branches if torch.compiler.is_compiling() else _map
        u = apply(self.activation, z.movedim(self.dim, -1) if moved else z)
        u = u.movedim(-1, self.dim) if moved else u
        return _undifferentiable(u) if u.requires_grad and _forbidden.get() else u

    def extra_repr(self) -> str:
        """The activation with its settings."""
        return repr(self.activation) if self.dim == -1 else f"{self.activation!r}, dim={self.dim}"


def _map(activation: Activation, z: Tensor) -> Tensor:
    return activation.compute_map(z)


def _map_without_branches(activation: Activation, z: Tensor) -> Tensor:
    """σ(z) for `torch.export` and `torch.compile`, which cannot follow a branch or a loop that depends on the data."""
    from lifted_bregman.activations.custom import FromScalar
    from lifted_bregman.activations.exponential import _LOWEST_EXPONENT, Sigmoid
    from lifted_bregman.activations.simplex import Sparsemax
    from lifted_bregman.activations.vectors import _TINY, BallProjection, GroupSoftThreshold, _plain_norm

    if isinstance(activation, FromScalar):
        return activation.function(z)
    if isinstance(activation, Sigmoid):
        lowest = _LOWEST_EXPONENT[z.dtype]
        return torch.where(z < lowest, z.clamp(max=lowest).exp(), z.sigmoid())
    if isinstance(activation, GroupSoftThreshold):
        norm = _plain_norm(z)
        return z * ((norm - activation.threshold).clamp(min=0.0) / norm.clamp(min=_TINY)).to(z.dtype)
    if isinstance(activation, BallProjection):
        return z * (activation.radius / _plain_norm(z).clamp(min=activation.radius)).to(z.dtype)
    if isinstance(activation, Sparsemax):
        return _project_onto_simplex(z)
    return activation.compute_map(z)


def _project_onto_simplex(z: Tensor) -> Tensor:
    """max(z - τ, 0): with z sorted downwards, τ = (z_1 + .. + z_k - 1)/k for the largest k with z_k > τ."""
    shifted = z - z.amax(-1, keepdim=True)
    ordered = shifted.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1.0
    places = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    k = (ordered * places > excess).sum(-1, keepdim=True)
    return (shifted - excess.gather(-1, k - 1) / k).clamp(min=0.0)


@contextmanager
def forbid_activation_derivatives() -> Iterator[None]:
    """Within this context, differentiating an activation raises `ActivationDerivativeError`.

    It covers torch's own activation functions and modules and those of this library.  Lifted training runs under
    it unchanged; back-propagation does not.  Applying an activation is always allowed.

    Example:
        >>> z = torch.ones(3, requires_grad=True)
        >>> with lb.forbid_activation_derivatives():
        ...     torch.relu(z).sum().backward()
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.ActivationDerivativeError: an activation was differentiated within ...
    """
    token = _forbidden.set(True)
    try:
        with _GuardTorchActivations():
            yield
    finally:
        _forbidden.reset(token)


_forbidden: ContextVar[bool] = ContextVar("activation_derivatives_forbidden", default=False)

_NAMES = (
    "relu relu_ relu6 hardtanh hardtanh_ leaky_relu leaky_relu_ elu elu_ celu celu_ selu selu_ prelu rrelu rrelu_ "
    "gelu silu mish hardswish hardsigmoid logsigmoid softplus softsign softshrink hardshrink tanhshrink softmin "
    "softmax log_softmax tanh tanh_ sigmoid sigmoid_ threshold threshold_ clamp clamp_ clip clip_ atan atan_ arctan "
    "arctan_ asinh asinh_ arcsinh expit"
).split()
_ACTIVATION_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    getattr(home, name)
    for home in (torch, F, torch.Tensor, torch.special, torch._C._nn)
    for name in _NAMES
    if hasattr(home, name)
)


class _Undifferentiable(torch.autograd.Function):
    """The identity; its backward pass raises `ActivationDerivativeError`."""

    @staticmethod
    def forward(u: Tensor) -> Tensor:
        return u.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves nothing; `torch.func` requires this method."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise ActivationDerivativeError(
            "an activation was differentiated within forbid_activation_derivatives(); a lifted step needs only its "
            "proximal map: leave the context, or train with a lifted solver."
        )


def _undifferentiable(u: Tensor) -> Tensor:
    result: Tensor = _Undifferentiable.apply(u)  # type: ignore[no-untyped-call]
    return result


class _GuardTorchActivations(TorchFunctionMode):
    """Puts `_Undifferentiable` behind every torch activation function whose result would carry a gradient."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ACTIVATION_FUNCTIONS and isinstance(result, Tensor) and result.requires_grad:
            return _undifferentiable(result)
        return result
