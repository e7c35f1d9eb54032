"""Initial filters: orthonormal bases of the patches with mean 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def smooth_filters(filters: int, channels: int, kernel: Sequence[int]) -> Tensor:
    """(filters, channels, height, width) with ‖L‖ <= 1 for the operator L that correlates an image with each filter.

    For an orthonormal basis of all patches, of n pixels each, LᵀL = n·I: each pixel lies in n patches, and the basis
    preserves the norm of every patch.  B such bases give LᵀL = nB·I, and subsets of them LᵀL <= nB·I.
    """
    basis = _cosines(channels, kernel)
    size = len(basis)
    blocks = [basis]
    while sum(map(len, blocks)) < filters:
        rotation = torch.linalg.qr(torch.randn(size, size, dtype=basis.dtype)).Q
        blocks.append(rotation @ basis)
    scale = 1.0 / math.sqrt(math.prod(kernel) * len(blocks))
    chosen = scale * torch.cat(blocks)[:filters]
    return chosen.to(torch.get_default_dtype()).view(filters, channels, *kernel)


def _cosines(channels: int, kernel: Sequence[int]) -> Tensor:
    """The orthonormal cosine transform over channels, rows and columns, low frequencies first, without the constant.

    (patch size - 1, patch size); the constant too where a patch has one pixel.
    """
    rows = [_cosine_transform(n) for n in (channels, *kernel)]
    matrix = torch.kron(rows[0], torch.kron(rows[1], rows[2]))
    frequency = torch.cartesian_prod(*(torch.arange(n, dtype=matrix.dtype) / n for n in (channels, *kernel)))
    order = frequency.square().sum(1).argsort(stable=True)
    return matrix[order[1:] if len(matrix) > 1 else order]


def _cosine_transform(n: int) -> Tensor:
    """The matrix of the orthonormal DCT-II, (n, n)."""
    k = torch.arange(n, dtype=torch.float64)
    matrix = torch.cos(math.pi / n * torch.outer(k, k + 0.5)) * math.sqrt(2.0 / n)
    matrix[0] /= math.sqrt(2.0)
    return matrix
