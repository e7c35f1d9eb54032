"""The rows A = [X 1] of a dense layer's inputs: z = A Θᵀ with Θ = [W b]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """A = √w [X 1] of m samples, without the columns of frozen parameters.

    In a data-parallel run this rank may have some of the m rows only.
    """

    X: Tensor | None
    """√w_i x_i, (rows, in); None where the weight is frozen."""
    ones: Tensor | None
    """√w_i, (rows, 1); None where no bias is trained."""
    root: Tensor | None
    """√w_i, (rows, 1); None where all samples count the same."""
    total: int
    """m, the rows of the whole batch on all ranks."""

    @classmethod
    def of(
        cls,
        X: Tensor,
        root: Tensor | None = None,
        *,
        weight: bool = True,
        bias: bool = True,
        total: int | None = None,
    ) -> Rows:
        """The rows of inputs X (rows, in).

        root    √w_i, (rows, 1), of each row's sample
        weight  whether the weight is trained
        bias    whether a bias is trained; one of the two must be
        total   m, where other ranks have rows too
        """
        ones = None
        if bias:
            ones = X.new_ones(len(X), 1) if root is None else root
        A = None if not weight else X if root is None else X * root
        return cls(A, ones, root, len(X) if total is None else total)

    @property
    def present(self) -> Tensor:
        """X, or the column of ones where the weight is frozen."""
        present = self.X if self.X is not None else self.ones
        assert present is not None
        return present

    @property
    def columns(self) -> int:
        """n, the trained inputs of a unit, its bias included."""
        return (0 if self.X is None else self.X.shape[1]) + (self.ones is not None)

    @property
    def matrix(self) -> Tensor:
        """A, (rows, n)."""
        return torch.cat([part for part in (self.X, self.ones) if part is not None], 1)

    def __len__(self) -> int:
        return len(self.present)


def block_size(samples: int, inputs: int, block: int) -> int:
    """b, the rows of a block of the batch; 0 for a layer that moves in weight space.

    Layers with at most `block` inputs move in weight space.  For others the batch is cut into blocks of equal size, of
    at most `block` rows, and at most half as many as the layer has inputs.

    samples  m >= 1
    inputs   of the layer
    block    >= 1
    """
    if inputs <= block:
        return 0
    blocks = -(-samples // min(block, inputs // 2 or 1))
    return -(-samples // blocks)


def in_blocks(values: Tensor, block: int) -> Tensor:
    """Rows (m, k) as (blocks, b, k); the last block is filled up with zeros."""
    missing = -len(values) % block
    if missing:
        values = torch.cat((values, values.new_zeros(missing, values.shape[1])))
    return values.view(-1, block, values.shape[1])


def by_row(values: Tensor, like: Tensor) -> Tensor:
    """values (n,) or () in a shape that multiplies the rows of `like`."""
    return values if values.ndim == 0 else values.view(-1, *[1] * (like.ndim - 1))
