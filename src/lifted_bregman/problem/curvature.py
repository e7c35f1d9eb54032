"""The curvature of a parameter block where samples have weights."""

from __future__ import annotations

import torch
from torch import Tensor

from lifted_bregman.networks import Dense, LayerMap, PowerIteration
from lifted_bregman.networks._no_graph import no_graph
from lifted_bregman.networks.spectral import Vector, certified_bound


@no_graph
def squared_parameter_norm(
    f: LayerMap, x: Tensor, power: PowerIteration, upper: bool, weights: Tensor | None = None
) -> float:
    """‖diag(√w) J_Θ f‖₂² over all samples of x: an estimate from below, or a guaranteed bound if `upper`.

    Without weights it is `f.parameter_curvature`.  With them, A = diag(√w) [X 1] for a dense map, with the columns
    that are trained, and max_i w_i times the number without weights, which is not below, for any other.
    """
    if weights is None:
        return f.parameter_curvature(x, power, upper)
    if not isinstance(f, Dense):
        return float(weights.max()) * f.parameter_curvature(x, power, upper)
    rows, trained = x.reshape(-1, f.module.in_features), f.parameters
    w = weights.repeat_interleave(len(rows) // len(x))
    if "weight" not in trained:
        return float(w.sum()) if "bias" in trained else 0.0
    parts = 2 if "bias" in trained else 1

    def normal(v: Vector) -> Vector:
        image = rows @ v[0] if parts == 1 else torch.addmv(v[1].expand(len(rows)), rows, v[0])
        image = image * w
        return (rows.t() @ image, image.sum(0, keepdim=True))[:parts]

    estimate = power.estimate(normal, (rows[0], rows[0, :1])[:parts])
    if not upper:
        return estimate
    A = rows if parts == 1 else torch.cat((rows, rows.new_ones(len(rows), 1)), 1)
    return certified_bound(A.double() * w.double().sqrt()[:, None], estimate)
