"""Products with the Jacobians of any differentiable function, by autograd: J_xᵀ d, J_Θᵀ d, and v ↦ JᵀJ v."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from lifted_bregman._linalg import NormalOperator, Vector
from lifted_bregman.maps.base import Inputs


def as_tuple(x: Inputs) -> tuple[Tensor, ...]:
    """The inputs of a map as a tuple, also of one that reads a single variable."""
    return x if isinstance(x, tuple) else (x,)


def leaves_of(x: Inputs) -> tuple[Tensor, ...]:
    """The inputs as leaves of an autograd graph; those of whole numbers need no gradient."""
    return tuple(t.detach().requires_grad_(t.is_floating_point()) for t in as_tuple(x))


def autograd_pull_back(
    z: Tensor,
    leaves: tuple[Tensor, ...],
    trained: Mapping[str, Tensor],
    d: Tensor,
    scale: float,
    several: bool,
    keep: bool = False,
) -> tuple[Any, dict[str, Tensor]]:
    """J_xᵀ d for the leaves, or None without leaves, and scale·J_Θᵀ d by name; zeros where z does not depend on one.

    z        f(x, Θ) with its autograd graph
    several  whether J_xᵀ d is returned as a tuple
    keep     whether the graph stays usable for another call
    """
    sources = [t for t in leaves if t.requires_grad] + list(trained.values())
    pulled: Sequence[Tensor | None] = [None] * len(sources)
    if z.requires_grad and sources:
        pulled = torch.autograd.grad(z, sources, d.detach(), retain_graph=keep, allow_unused=True)
    rest = iter(pulled)
    back = tuple(_or_zeros(next(rest) if t.requires_grad else None, t) for t in leaves)
    gradients = {name: _or_zeros(next(rest), p) for name, p in trained.items()}
    if scale != 1.0:
        gradients = {name: g * scale for name, g in gradients.items()}
    return (back if several else back[0]) if leaves else None, gradients


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like, requires_grad=False).detach() if gradient is None else gradient


def of_one_input(
    function: Callable[..., Tensor], given: tuple[Tensor, ...], which: int
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """f as a function of input number `which`, and that input; other inputs of one sample are expanded to its batch."""

    def of_one(x: Tensor) -> Tensor:
        others = (t if len(t) == len(x) else t.expand(len(x), *t.shape[1:]) for t in given)
        return function(*(x if i == which else t for i, t in enumerate(others)))

    return of_one, given[which]


def normal_in_input(function: Callable[[Tensor], Tensor], x: Tensor) -> NormalOperator:
    """v ↦ JᵀJ v with the Jacobian J of the function at x."""
    z, pull_back = vjp(function, x)[:2]
    # u ↦ Jᵀu is linear, so that its own pull-back is v ↦ Jv, without forward-mode differentiation
    push = vjp(lambda u: vjp(function, x)[1](u)[0], z)[1]

    def normal(v: Vector) -> Vector:
        return (pull_back(push(*v)[0])[0],)

    return normal


def normal_in_parameters(function: Callable[[dict[str, Tensor]], Tensor], values: dict[str, Tensor]) -> NormalOperator:
    """v ↦ JᵀJ v with the Jacobian J of the function in all parameters together."""
    z, pull_back = vjp(function, values)[:2]
    push = vjp(lambda u: vjp(function, values)[1](u)[0], z)[1]

    def normal(v: Vector) -> Vector:
        image = push(dict(zip(values, v, strict=True)))[0]
        return tuple(pull_back(image)[0].values())

    return normal
