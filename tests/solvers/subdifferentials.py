"""Subdifferentials of the penalties, from their definitions."""

from __future__ import annotations

import torch

from lifted_bregman.penalties import L1, Bounds, GroupL2, NonNegative, Nuclear, SquaredL2


def in_subdifferential(penalty, theta, p, tolerance=1e-10):
    """Whether p is in ∂R(Θ), from the definitions, written out for each R."""
    theta, p = theta.flatten(1), p.flatten(1)
    if isinstance(penalty, L1):
        active = theta != 0
        return bool(
            ((p - penalty.weight * theta.sign())[active].abs() <= tolerance).all()
            and (p.abs() <= penalty.weight + tolerance).all()
        )
    if isinstance(penalty, SquaredL2):
        return bool(((p - penalty.weight * theta).abs() <= tolerance).all())
    if isinstance(penalty, GroupL2):
        for row, q in zip(theta, p, strict=True):
            if row.any():
                if not torch.allclose(q, penalty.weight * row / row.norm(), atol=tolerance):
                    return False
            elif not float(q.norm()) <= penalty.weight + tolerance:
                return False
        return True
    if isinstance(penalty, Nuclear):
        # p = w (U Vᵀ + M) with UᵀM = 0, MV = 0, ‖M‖₂ <= 1
        U, sigma, Vt = torch.linalg.svd(theta)
        r = int((sigma > 1e-9 * max(float(sigma[0]), 1e-300)).sum())
        U, V = U[:, :r], Vt[:r].T
        M = p - penalty.weight * U @ V.T
        largest = float(torch.linalg.matrix_norm(M, 2))
        return (
            bool((U.T @ M).abs().max() <= 1e-7 and (M @ V).abs().max() <= 1e-7 and largest <= penalty.weight + 1e-7)
            if r
            else largest <= penalty.weight + 1e-7
        )
    if isinstance(penalty, NonNegative | Bounds):
        low, high = penalty.low, penalty.high
        inside = (theta > low) & (theta < high)
        return bool(
            (p[inside].abs() <= tolerance).all()
            and (p[theta == low] <= tolerance).all()
            and (p[theta == high] >= -tolerance).all()
            and ((theta >= low) & (theta <= high)).all()
        )
    raise AssertionError(penalty)
