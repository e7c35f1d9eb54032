"""Euclidean norms as Python numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def norm(t: Tensor) -> float:
    """‖t‖₂ over all entries of t."""
    return float(torch.linalg.vector_norm(t))


def joint_norm(parts: Iterable[Tensor]) -> float:
    """√(Σ ‖t‖₂²) over the tensors t of a product space, such as (weight, bias), without overflow of the squares."""
    return math.hypot(*map(norm, parts))
