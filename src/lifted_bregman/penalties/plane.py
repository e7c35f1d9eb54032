"""Total variation of pictures: differences, and its proximal map from the dual problem with a certified error.

    min_u ½‖u - x‖² + g(u) + w TV(u)   =   max_{|q| <= w} min_u ½‖u - x‖² + g(u) + <Du, q>

The inner minimum is at u(q) = prox_g(x - Dᵀq), and the dual is smooth with gradient D u(q) and constant ‖D‖² <= 8.  For
every q with |q| <= w

    ½‖u(q) - u*‖² <= gap(q) = Σ ( w|Du| - <Du, q> ) >= 0,

because the primal objective is 1-strongly convex and gap(q) is its value at u(q) minus the dual's at q.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph

SQUARED_NORM = {1: 4.0, 2: 8.0}
"""A bound of ‖D‖₂² for differences along one and along two dimensions."""
_CHECK_EVERY = 5


class Denoised(NamedTuple):
    """What `plane_prox` returns."""

    u: Tensor
    """(pictures, height, width)."""
    dual: Tensor
    """q, (pictures, 2, height, width): a warm start for a later call."""
    gap: Tensor
    """gap(q) of each picture: ‖u - u*‖ <= √(2 gap)."""


@no_graph
def differences(u: Tensor, dims: int) -> Tensor:
    """Du: forward differences along the last `dims` dimensions, 0 at the far ends; of shape (dims, *u.shape).

    Number d is the difference along dimension -1 - d.
    """
    D = u.new_zeros((dims, *u.shape))
    torch.sub(u[..., 1:], u[..., :-1], out=D[0][..., :-1])
    if dims == 2:
        torch.sub(u[..., 1:, :], u[..., :-1, :], out=D[1][..., :-1, :])
    return D


@no_graph
def differences_adjoint(q: Tensor) -> Tensor:
    """Dᵀq, in the shape that `differences` took."""
    u = -q[0]
    u[..., -1] = 0.0
    u[..., 1:] += q[0][..., :-1]
    if len(q) == 2:
        u[..., :-1, :] -= q[1][..., :-1, :]
        u[..., 1:, :] += q[1][..., :-1, :]
    return u


def magnitudes(D: Tensor, isotropic: bool) -> Tensor:
    """|Du| whose sum is TV: (Σ_d D_d²)^½, or Σ_d |D_d|; the first dimension is summed up."""
    if len(D) == 1:
        return D[0].abs()
    return torch.hypot(D[0], D[1]) if isotropic else D.abs().sum(0)


def project(q: Tensor, weight: float, isotropic: bool) -> Tensor:
    """The nearest q with |q| <= weight: of each vector (q_0, q_1) if isotropic, else of each number."""
    if not isotropic or len(q) == 1:
        return q.clamp(-weight, weight)
    return q * (weight / torch.hypot(q[0], q[1]).clamp(min=weight)) if weight > 0.0 else torch.zeros_like(q)


@no_graph
def plane_prox(
    x: Tensor,
    weight: float,
    isotropic: bool,
    inner: Callable[[Tensor], Tensor] | None,
    tolerance: float,
    max_steps: int,
    dual: Tensor | None = None,
) -> Denoised:
    """argmin_u ½‖u - x‖² + g(u) + weight·TV(u) for pictures x (pictures, h, w), by FISTA on the dual with restarts.

    Stops when √(2 gap) <= tolerance·‖x‖ for every picture, which bounds ‖u - u*‖, or after max_steps.

    inner  prox_g; None for g = 0
    dual   q to start from; `_flat_dual` by default, which solves the problem where the solution is constant
    """
    inner = inner or (lambda v: v)
    q = project(_flat_dual(x) if dual is None else dual.movedim(1, 0), weight, isotropic)
    ahead, momentum = q, 1.0
    allowed = 0.5 * (tolerance * x.flatten(1).norm(dim=1)).square()
    best = _answer(x, q, weight, isotropic, inner)
    for step in range(1, max_steps + 1):
        if bool((best.gap <= allowed).all()):
            break
        # q⁺ = P(ahead + D u(ahead)/8), and Nesterov's extrapolation unless it points uphill
        u = inner(x - differences_adjoint(ahead))
        new = project(ahead + differences(u, 2) / SQUARED_NORM[2], weight, isotropic)
        change = new - q
        if float(((ahead - new) * change).sum()) > 0.0:
            momentum = 1.0
        following = 0.5 * (1.0 + (1.0 + 4.0 * momentum * momentum) ** 0.5)
        ahead = new + ((momentum - 1.0) / following) * change
        q, momentum = new, following
        if step % _CHECK_EVERY == 0 or step == max_steps:
            best = _answer(x, q, weight, isotropic, inner)
    return best


def _flat_dual(x: Tensor) -> Tensor:
    """q with Dᵀq = x - mean(x), the shortest: D of the solution of a Poisson equation, by cosine transforms."""
    rows, columns = _cosines(x.shape[-2], x), _cosines(x.shape[-1], x)
    eigenvalues = rows[1][:, None] + columns[1]
    eigenvalues[0, 0] = math.inf  # of the mean, which D does not see
    potential = rows[0].t() @ ((rows[0] @ x @ columns[0].t()) / eigenvalues) @ columns[0]
    return differences(potential, 2)


def _cosines(n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors (as rows) and eigenvalues of DᵀD for n numbers in a line."""
    k = torch.arange(n, dtype=like.dtype, device=like.device)
    vectors = torch.cos(math.pi / n * torch.outer(k, k + 0.5)) * math.sqrt(2.0 / n)
    vectors[0] /= math.sqrt(2.0)
    return vectors, 2.0 - 2.0 * torch.cos(math.pi / n * k)


def _answer(x: Tensor, q: Tensor, weight: float, isotropic: bool, inner: Callable[[Tensor], Tensor]) -> Denoised:
    """The primal image u(q) and gap(q)."""
    u = inner(x - differences_adjoint(q))
    D = differences(u, 2)
    gap = (weight * magnitudes(D, isotropic) - (D * q).sum(0)).flatten(1).sum(1).clamp(min=0.0)
    return Denoised(u, q.movedim(0, 1), gap)
