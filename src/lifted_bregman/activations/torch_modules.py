"""The activations among torch's modules: which activation of the library each is, or why it is no proximal map."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from torch import Tensor, nn
from torch.nn import functional as F

from lifted_bregman import activations as act


class NotLiftableError(Exception):
    """A module or function is no proximal map; the message says why.  The reader adds the module's path."""


_RULE = "A scalar function is a proximal map exactly when it is non-decreasing and 1-Lipschitz"
_SOFTPLUS_THRESHOLD = 20.0  # torch's default: softplus(20) - 20 is 2e-9
_INSTEAD = "use nn.ReLU, nn.Softplus, nn.ELU or another proximal activation instead"

_REFUSED: dict[type[nn.Module], str] = {
    nn.GELU: f"it decreases for z < -0.75 and has slopes above 1. {_RULE}: {_INSTEAD}",
    nn.SiLU: f"it decreases for z < -1.28 and has slopes above 1. {_RULE}: {_INSTEAD}",
    nn.Mish: f"it decreases for z < -1.19 and has slopes above 1. {_RULE}: {_INSTEAD}",
    nn.Hardswish: f"it decreases between -3 and -1.5 and has slopes above 1. {_RULE}: {_INSTEAD}",
    nn.SELU: f"its slope is 1.05 for z > 0 and up to 1.76 below. {_RULE}: use nn.ELU() instead",
    nn.Hardshrink: f"it jumps. {_RULE}: use nn.Softshrink instead",
    nn.Softmin: "it decreases in its own component: change the sign of the map before it and use nn.Softmax",
    nn.LogSoftmax: "its Jacobian is not symmetric, so that it is no proximal map: leave it out and let "
    "lb.CrossEntropy(), which takes the values before it, be the loss",
    nn.PReLU: "its slope is learned, but a potential is fixed: use nn.LeakyReLU(slope) with a slope in (0, 1]",
    nn.RReLU: "its slope is random, so that it has no potential: use nn.LeakyReLU(slope) with a slope in (0, 1]",
    nn.GLU: "it is a product of two halves of its input and no proximal map: use a proximal activation instead",
}


def read_activation(module: nn.Module) -> tuple[act.Activation, int | None] | None:
    """The activation a torch module computes, with the dimension it names; None when the module is no activation.

    Raises `NotLiftableError` for activations that are no proximal maps.
    """
    kind = type(module)
    if isinstance(module, act.ActivationModule):
        return module.activation, _dimension(module.dim) if module.activation.joint else None
    if kind in _REFUSED:
        raise NotLiftableError(_REFUSED[kind])
    if isinstance(module, nn.Softmax) and kind is nn.Softmax:
        if module.dim is None:
            raise NotLiftableError("its dimension is not given: write nn.Softmax(dim=1) or nn.Softmax(dim=-1)")
        return act.Softmax(), _dimension(int(module.dim))
    if kind is nn.Softmax2d:
        return act.Softmax(), -3
    make = _READ.get(kind)
    return None if make is None else (make(module), None)


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation, a proximal map or not."""
    known = (act.ActivationModule, nn.Softmax, nn.Softmax2d, *_READ, *_REFUSED)
    return isinstance(module, known)


def _dimension(dim: int | None) -> int | None:
    if dim == 0:
        raise NotLiftableError("dimension 0 holds the samples, which a layer must not couple: use dim=1 or dim=-1")
    return dim


def _leaky_relu(module: nn.LeakyReLU) -> act.Activation:
    slope = float(module.negative_slope)
    if slope == 0.0:
        return act.ReLU()
    if not 0.0 < slope <= 1.0:
        what = "decreasing" if slope < 0.0 else "of slope above 1"
        raise NotLiftableError(f"with slope {slope:g} it is {what} for z < 0. {_RULE}: use a slope in (0, 1]")
    return act.LeakyReLU(slope)


def _elu(module: nn.ELU) -> act.Activation:
    alpha = float(module.alpha)
    if alpha == 0.0:
        return act.ReLU()
    if not 0.0 < alpha <= 1.0:
        what = "decreasing for z < 0" if alpha < 0.0 else "of slope above 1 near 0"
        raise NotLiftableError(f"with alpha {alpha:g} it is {what}. {_RULE}: use an alpha in (0, 1], or nn.CELU")
    return act.ELU(alpha)


def _celu(module: nn.CELU) -> act.Activation:
    alpha = float(module.alpha)
    if not alpha > 0.0:
        raise NotLiftableError(f"with alpha {alpha:g} it is no proximal map. {_RULE}: use an alpha greater than 0")
    return act.ELU(1.0) if alpha == 1.0 else _scaled_celu(alpha)


def _softplus(module: nn.Softplus) -> act.Activation:
    beta = float(module.beta)
    if not beta > 0.0:
        raise NotLiftableError(f"with beta {beta:g} it is no proximal map. {_RULE}: use a beta greater than 0")
    if not module.threshold >= _SOFTPLUS_THRESHOLD:
        raise NotLiftableError(
            f"with threshold {module.threshold:g} it jumps where beta z is {module.threshold:g}. {_RULE}: use a "
            f"threshold of at least {_SOFTPLUS_THRESHOLD:g}, where the jump is lost in rounding"
        )
    return act.Softplus() if beta == 1.0 else _scaled_softplus(beta)


def _softshrink(module: nn.Softshrink) -> act.Activation:
    threshold = float(module.lambd)
    if threshold < 0.0:
        raise NotLiftableError(f"with threshold {threshold:g} it jumps at 0. {_RULE}: use a threshold of at least 0")
    return act.SoftThreshold(threshold) if threshold > 0.0 else act.Identity()


def _threshold(module: nn.Threshold) -> act.Activation:
    if float(module.threshold) != 0.0 or float(module.value) != 0.0:
        raise NotLiftableError(
            f"with threshold {module.threshold:g} and value {module.value:g} it is not read: only nn.Threshold(0, 0), "
            "which is nn.ReLU, is; a threshold that differs from the value makes it jump, and for equal ones use "
            "lb.activations.FromScalar(...).as_module()"
        )
    return act.ReLU()


# The tables of integrals of a `FromScalar` are built once for each function.
@cache
def from_function(function: Callable[[Tensor], Tensor]) -> act.Activation:
    """The activation of a scalar function, `FromScalar(function)`; the same object for the same function."""
    return act.FromScalar(function)


@cache
def _scaled_celu(alpha: float) -> act.Activation:
    return act.FromScalar(partial(F.celu, alpha=alpha), name=f"celu, alpha={alpha:g}")


@cache
def _scaled_softplus(beta: float) -> act.Activation:
    return act.FromScalar(partial(F.softplus, beta=beta), name=f"softplus, beta={beta:g}")


_READ: dict[type[nn.Module], Callable[..., act.Activation]] = {
    nn.ReLU: lambda module: act.ReLU(),
    nn.ReLU6: lambda module: act.Box(0.0, 6.0),
    nn.Hardtanh: lambda module: act.Box(float(module.min_val), float(module.max_val)),
    nn.LeakyReLU: _leaky_relu,
    nn.Softshrink: _softshrink,
    nn.Threshold: _threshold,
    nn.Tanh: lambda module: act.Tanh(),
    nn.Sigmoid: lambda module: act.Sigmoid(),
    nn.Softsign: lambda module: act.Softsign(),
    nn.ELU: _elu,
    nn.CELU: _celu,
    nn.Softplus: _softplus,
    nn.LogSigmoid: lambda module: from_function(F.logsigmoid),
    nn.Hardsigmoid: lambda module: from_function(F.hardsigmoid),
    nn.Tanhshrink: lambda module: from_function(F.tanhshrink),
}
