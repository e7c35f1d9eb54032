"""The inputs and the parameters of a dense map as matrices: z = [X 1] Θᵀ with Θ = [W b]."""

from __future__ import annotations

import torch
from torch import Tensor

from lifted_bregman.maps import Dense
from lifted_bregman.problem import LiftedProblem


def dense_map(problem: LiftedProblem, layer: int) -> Dense:
    """f_l, of a problem whose maps are known to be dense."""
    f = problem.network[layer].map
    assert isinstance(f, Dense)
    return f


def rows(f: Dense, x: Tensor) -> Tensor:
    """The inputs of a dense map as rows (m, in)."""
    return f.rows(x)


def design(f: Dense, x: Tensor) -> Tensor:
    """[X 1], or the part of it that belongs to trained parameters: z = [X 1] Θᵀ + (what is frozen)."""
    x, trained = rows(f, x), f.parameters
    parts = [x] if "weight" in trained else []
    if "bias" in trained:
        parts.append(x.new_ones(len(x), 1))
    return torch.cat(parts, 1)


def packed(f: Dense) -> Tensor:
    """Θ = [W b] as one matrix (out, n) in the order of `design`, in new memory."""
    return torch.cat([p.detach().view(len(p), -1) for p in _ordered(f).values()], 1)


def unpacked(f: Dense, theta: Tensor) -> dict[str, Tensor]:
    """Views of a packed matrix by name, in the shapes of the parameters."""
    views, start = {}, 0
    for name, p in _ordered(f).items():
        width = p.numel() // len(p)
        part = theta[:, start : start + width]
        views[name] = part[:, 0] if p.ndim == 1 else part
        start += width
    return views


def weight_columns(f: Dense, like: Tensor) -> Tensor:
    """1 for the columns of `design` that belong to the weight, 0 for the bias."""
    sizes = [(p.numel() // len(p), 1.0 if p.ndim > 1 else 0.0) for p in _ordered(f).values()]
    return torch.cat([like.new_full((width,), value) for width, value in sizes])


def _ordered(f: Dense) -> dict[str, Tensor]:
    trained = f.parameters
    return {name: trained[name] for name in ("weight", "bias") if name in trained}
