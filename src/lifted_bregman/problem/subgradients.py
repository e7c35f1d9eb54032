"""Subgradients of penalties, from which Bregman iterations start, and the weights at which their zeros appear.

Register functions for a penalty that you write with `minimal_subgradient.register` and `critical_weights.register`.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.penalties import L1, Bounds, GroupL2, NonNegative, Nuclear, Penalty, SquaredL2


@singledispatch
def minimal_subgradient(penalty: Penalty, x: Tensor) -> Tensor:
    """The shortest p in ∂R(x), the limit of (x - prox_{εR}(x))/ε for ε → 0.

        L1         weight sign(x), and 0 at 0
        SquaredL2  weight x
        GroupL2    weight x_g/‖x_g‖, and 0 at x_g = 0
        Nuclear    weight U Vᵀ over the singular vectors of positive singular values

    For Bounds and NonNegative it is 0, the shortest element of the normal cone; x must satisfy the constraint.

    Example:
        >>> from lifted_bregman.problem.subgradients import minimal_subgradient
        >>> minimal_subgradient(lb.penalties.L1(0.5), torch.tensor([-2.0, 0.0, 1.0]))
        tensor([-0.5000,  0.0000,  0.5000])
    """
    raise CompatibilityError(
        f"no subgradient of {type(penalty).__name__} is known; Bregman iterations start from one: use L1, SquaredL2, "
        "GroupL2, Nuclear, Bounds or NonNegative, or register a function with minimal_subgradient.register."
    )


@minimal_subgradient.register
@no_graph
def _l1(penalty: L1, x: Tensor) -> Tensor:
    return x.sign().mul_(penalty.weight)


@minimal_subgradient.register
@no_graph
def _squared_l2(penalty: SquaredL2, x: Tensor) -> Tensor:
    return x * penalty.weight


@minimal_subgradient.register
@no_graph
def _group_l2(penalty: GroupL2, x: Tensor) -> Tensor:
    groups = penalty.groups(x)
    norm: Tensor = torch.linalg.vector_norm(groups, dim=-1, keepdim=True, dtype=torch.float64)
    unit = groups / norm.clamp(min=torch.finfo(torch.float64).tiny)
    return unit.mul_(penalty.weight).to(x.dtype).view(x.shape)


@minimal_subgradient.register
@no_graph
def _nuclear(penalty: Nuclear, x: Tensor) -> Tensor:
    U, sigma, Vt = torch.linalg.svd(x.double(), full_matrices=False)
    largest = sigma[..., :1]
    kept = sigma > largest * (max(x.shape[-2:]) * torch.finfo(x.dtype).eps)
    partial_isometry: Tensor = (U * kept[..., None, :]) @ Vt
    return partial_isometry.mul_(penalty.weight).to(x.dtype)


@minimal_subgradient.register(Bounds)
@minimal_subgradient.register(NonNegative)
@no_graph
def _constraint(penalty: Bounds | NonNegative, x: Tensor) -> Tensor:
    if not bool(penalty.value(x).isfinite().all()):
        raise CompatibilityError(
            f"the start violates {penalty}, so that it has no subgradient there; project it first with penalty.prox."
        )
    return torch.zeros_like(x)


@singledispatch
def critical_weights(penalty: Penalty, v: Tensor) -> Tensor:
    """For each entry, group or singular value of v, the smallest weight at which prox_R(v) has a zero there; flat.

        L1       |v_i| for each entry
        GroupL2  ‖v_g‖ for each group
        Nuclear  σ_i(v) for each singular value

    The fraction of zeros of prox_R(v) is the fraction of critical weights up to R's own.

    Example:
        >>> from lifted_bregman.problem.subgradients import critical_weights
        >>> critical_weights(lb.penalties.GroupL2(1.0, group_size=2), torch.tensor([[3.0, 4.0, 0.0, 1.0]]))
        tensor([5., 1.])
    """
    raise CompatibilityError(
        f"{type(penalty).__name__} has no weight that decides how much is zero; a target sparsity needs L1 (entries), "
        "GroupL2 (groups) or Nuclear (singular values)."
    )


@critical_weights.register
@no_graph
def _entries(penalty: L1, v: Tensor) -> Tensor:
    return v.abs().flatten()


@critical_weights.register
@no_graph
def _groups(penalty: GroupL2, v: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(penalty.groups(v), dim=-1)
    return norms.flatten()


@critical_weights.register
@no_graph
def _singular_values(penalty: Nuclear, v: Tensor) -> Tensor:
    return penalty.singular_values(v).to(v.dtype).flatten()
