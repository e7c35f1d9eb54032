"""How far the units of a layer move, from how far they have come and from their moves so far.

    unit j       r_k/√(n Σ_{i<=k} s_j^i)          n the inputs of a unit, s_j the mean square of the entries of Δ_j
    r_k²         max_{i<=k} mean_l ‖V_l^i - V_l⁰‖²/m_l, and at least r_0²; m_l the units of layer l
    whole layer  shortened where it would change the pre-activations by more than a limit

There is no rate to choose: a first guess r_0 that is too small grows within some steps (for gradient descent: Ivgi et
al. 2023).  All numbers are tensors on the device of the parameters, and the host reads none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lifted_bregman.solvers.gram.signal import TINY

Lengths = dict[str, Tensor]
"""A number for each unit, (units,), under the name "unit"; or for each row of each parameter, or all of it, by name."""


def add_squares(sums: Lengths, squares: Mapping[str, Tensor]) -> None:
    """Σ s_j ← Σ s_j + s_j, in place."""
    for name, square in squares.items():
        if name in sums:
            sums[name].add_(square)
        else:
            sums[name] = square.clone()


def unit_lengths(
    sums: Mapping[str, Tensor], change: Mapping[str, Tensor], rate: Tensor, limit: Tensor
) -> dict[str, Tensor]:
    """rate/√Σ s_j of each unit, all shortened by one factor where Δ would make a larger change than `limit`.

    sums    Σ s_j
    change  q_j, so that Δ with lengths f_j changes the layer by √Σ_j f_j² q_j in root mean square
    rate    r_k/√n, ()
    limit   (), >= 0
    """
    lengths = {name: s.add(TINY).rsqrt_() for name, s in sums.items()}
    rate = torch.fmin(rate, limit / change_size(change, lengths))  # which leaves the rate where both are 0
    return {name: f.mul_(rate) for name, f in lengths.items()}


def change_size(change: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> Tensor:
    """√Σ_j f_j² q_j, ()."""
    parts = [_dot(q, lengths[name].square()) for name, q in change.items()]
    return (parts[0] if len(parts) == 1 else torch.stack(parts).sum()).sqrt_()


def distance_squared(places: Mapping[str, Tensor], origin: Mapping[str, Tensor]) -> Tensor:
    """‖V_l - V_l⁰‖²/m_l of one layer, ()."""
    away = torch.stack([torch.dist(places[name], start) for name, start in origin.items()])
    return away.square_().sum() / max(units(start) for start in origin.values())


def further(distance: Tensor, squares: Tensor, layers: int) -> Tensor:
    """max(r, √(Σ_l squares_l / layers)), which stays r where V has overflowed."""
    return torch.fmax(distance, (squares.sum() / max(1, layers)).sqrt_())


def root_mean_square(tensors: Sequence[Tensor]) -> Tensor:
    """Over all entries of several tensors, ()."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
    return norm.div_(math.sqrt(sum(t.numel() for t in tensors)))


def units(parameter: Tensor) -> int:
    """The rows of a parameter; 1 for a single number."""
    return len(parameter) if parameter.ndim else 1


def inputs_of_unit(parameters: Sequence[Tensor]) -> int:
    """n, without the bias; 1 where only a bias is trained."""
    return max(p.numel() // units(p) for p in parameters)


def _dot(q: Tensor, f: Tensor) -> Tensor:
    return torch.dot(q, f) if q.ndim else q * f
