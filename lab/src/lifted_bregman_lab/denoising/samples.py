"""Noisy patches to train on, and the PSNR of whole pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

NOISE = 25.0 / 255.0
"""Standard deviation σ of the noise; pixels are numbers from 0 to 1."""
PATCH = 40
"""Height and width of a training patch."""


class Patches:
    """Batches (noisy, clean) of patches; the k-th batch is a function of the seed.

    A patch is cut at a random place of a random picture and turned and mirrored at random, one of 8 ways.  Each
    patch gets new Gaussian noise of standard deviation σ.
    """

    def __init__(self, pictures: Sequence[Tensor], batch_size: int, seed: int) -> None:
        self._pictures, self._batch_size = tuple(pictures), batch_size
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self) -> tuple[Tensor, Tensor]:
        """The next batch, two tensors (batch_size, channels, 40, 40)."""
        clean = torch.stack([self._patch() for _ in range(self._batch_size)])
        return with_noise(clean, self._generator), clean

    def _patch(self) -> Tensor:
        picture = self._pictures[self._number(len(self._pictures))]
        top, left = (self._number(n - PATCH + 1) for n in picture.shape[1:])
        patch = picture[:, top : top + PATCH, left : left + PATCH]
        turns, mirrored = divmod(self._number(8), 2)
        patch = torch.rot90(patch, turns, (1, 2))
        return patch.flip(2) if mirrored else patch

    def _number(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self._generator))


def with_noise(clean: Tensor, generator: torch.Generator) -> Tensor:
    """z = x + σε, neither clipped nor rounded."""
    return clean + NOISE * torch.randn(clean.shape, generator=generator)


def psnr(found: Tensor, clean: Tensor) -> float:
    """10 log₁₀(1/mean squared error) in dB, with what was found clipped to [0, 1]."""
    return -10.0 * math.log10(float((found.clamp(0.0, 1.0) - clean).double().square().mean()))


@torch.no_grad()
def evaluate(model: nn.Module, pictures: Sequence[Tensor], seed: int = 0) -> list[float]:
    """PSNR of each picture, with noise from one generator of this seed, picture after picture."""
    generator = torch.Generator().manual_seed(seed)
    return [psnr(model(with_noise(clean[None], generator))[0], clean) for clean in pictures]
