"""The results of `lifted bench denoising`, stored as one JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lifted_bregman_lab.stored import StoredFile

BM3D = 28.57
"""PSNR of BM3D on BSD68 at σ = 25, as published."""


@dataclass(frozen=True)
class ArmRow:
    """One training run.

    arm      its name
    seconds  of processor time in its steps, one thread
    steps    made in this time
    curve    (seconds, mean PSNR of the validation pictures in dB) during training
    psnr     in dB, of each test picture, after training
    """

    arm: str
    seconds: float
    steps: int
    curve: Sequence[Sequence[float]]
    psnr: Sequence[float]

    @property
    def mean(self) -> float:
        """PSNR averaged over the test pictures."""
        return fmean(self.psnr)


@dataclass(frozen=True)
class DenoisingStudy:
    """All runs of one network.

    settings     of the network and the training, by name
    environment  versions and processor of the run
    parameters   numbers that are trained
    noisy        PSNR of the noisy test pictures, in dB
    untrained    PSNR of the network before training, in dB
    rows         one for each arm
    """

    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    parameters: int
    noisy: float
    untrained: float
    rows: Sequence[ArmRow]


FILE = StoredFile(DenoisingStudy, "lifted denoising, format 1", "lifted bench denoising")
"""How the results are stored."""
write_denoising, read_denoising = FILE.write, FILE.read
