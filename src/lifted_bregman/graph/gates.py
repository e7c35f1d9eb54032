"""Activations that are no proximal maps, written as products with one that is: x · σ(x).

SiLU, GELU, Mish and Hardswish decrease somewhere, so that none of them is a proximal map.  Each is x times a function
that is one.  That function becomes an activation, and the product with x a map.

| activation | written as                                | lifted           |
|------------|-------------------------------------------|------------------|
| SiLU       | x · sigmoid(x)                            | sigmoid          |
| GELU       | x · Φ(x)                                  | `normal_cdf`     |
| GELU, tanh | x · ½(1 + tanh(√(2/π)(x + 0.044715 x³)))  | tanh             |
| Mish       | x · tanh(softplus(x))                     | softplus, tanh   |
| Hardswish  | x · hardsigmoid(x)                        | hardsigmoid      |
| GLU        | a · sigmoid(b), x = (a, b)                | sigmoid          |
| softmin    | softmax(-x)                               | softmax          |

SELU is not in the table.  Its slope is s = 1.0507 above 0 and sα e^z below, up to sα = 1.7581, so that it is no
proximal map, and the reader refuses it.  (selu / (sα) is one: it is non-decreasing and 1-Lipschitz.)

`inplace` is ignored here: a new tensor is returned.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function_unary

from lifted_bregman.errors import SettingError


class Gate(NamedTuple):
    """A product x · σ(x) that is bounded below."""

    name: str
    least: float
    """min over x of x · σ(x)."""


# The minima are at x = -1.278465, -0.751792, -0.752461, -1.192431 and -1.5.
_SILU = Gate("SiLU", -0.2784645427610738)
_GELU = Gate("GELU", -0.1699712074799037)
_GELU_TANH = Gate("GELU(approximate='tanh')", -0.1700407505712541)
_MISH = Gate("Mish", -0.3088434130172504)
_HARDSWISH = Gate("Hardswish", -0.375)


def _marked(product: Tensor, gate: Gate) -> Tensor:
    """Record the gate at the node of a traced product, for the reader of the model."""
    if isinstance(product, fx.Proxy):
        product.node.meta["gate"] = gate
    return product


def normal_cdf(x: Tensor) -> Tensor:
    """Φ(x) = ½(1 + erf(x / √2)), the distribution function of the standard normal law.

    It increases, with slopes of at most 1/√(2π) = 0.399, and so is a proximal map.  It is computed as ½ erfc(-x / √2),
    which keeps its digits for x far below 0.  A tracer records one call of this function.
    """
    if has_torch_function_unary(x):
        recorded: Tensor = handle_torch_function(normal_cdf, (x,), x)
        return recorded
    return 0.5 * torch.erfc(-math.sqrt(0.5) * x)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x · sigmoid(x)."""
    return _marked(input * torch.sigmoid(input), _SILU)


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """x · Φ(x); with approximate="tanh", x · ½(1 + tanh(√(2/π)(x + 0.044715 x³)))."""
    if approximate == "none":
        return _marked(input * normal_cdf(input), _GELU)
    if approximate != "tanh":
        raise SettingError(
            f"GELU was given approximate={approximate!r}; torch knows 'none' and 'tanh': use one of them."
        )
    inner = math.sqrt(2.0 / math.pi) * (input + 0.044715 * input * input * input)
    return _marked(input * (0.5 * (1.0 + torch.tanh(inner))), _GELU_TANH)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x · tanh(softplus(x))."""
    return _marked(input * torch.tanh(F.softplus(input)), _MISH)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x · hardsigmoid(x)."""
    return _marked(input * F.hardsigmoid(input), _HARDSWISH)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a · sigmoid(b), where a and b are the first and the second half of `input` along `dim`, of even size."""
    size = input.size(dim)
    if size % 2:
        raise SettingError(
            f"GLU was given {size} features along dimension {dim}; it halves them: give it an even number."
        )
    return input.narrow(dim, 0, size // 2) * torch.sigmoid(input.narrow(dim, size // 2, size // 2))


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """softmax(-x) along `dim`."""
    if dim is None:
        raise SettingError("softmin was given no dimension: write dim=-1, or the dimension that is meant.")
    return torch.softmax(-input, dim, dtype=dtype)


def silu_module(module: nn.SiLU, input: Tensor) -> Tensor:
    """`nn.SiLU`: see `silu`."""
    return silu(input)


def gelu_module(module: nn.GELU, input: Tensor) -> Tensor:
    """`nn.GELU`: see `gelu`."""
    return gelu(input, approximate=module.approximate)


def mish_module(module: nn.Mish, input: Tensor) -> Tensor:
    """`nn.Mish`: see `mish`."""
    return mish(input)


def hardswish_module(module: nn.Hardswish, input: Tensor) -> Tensor:
    """`nn.Hardswish`: see `hardswish`."""
    return hardswish(input)


def glu_module(module: nn.GLU, input: Tensor) -> Tensor:
    """`nn.GLU`: see `glu`."""
    return glu(input, module.dim)


def softmin_module(module: nn.Softmin, input: Tensor) -> Tensor:
    """`nn.Softmin`: see `softmin`."""
    return softmin(input, module.dim)
