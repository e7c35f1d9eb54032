"""The results of `lifted bench denoising`, stored as one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.files import write_whole

KIND = "lifted denoising, format 1"
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


def write_denoising(path: Path, study: DenoisingStudy) -> None:
    """Write the file atomically."""
    write_whole(path, (json.dumps({"kind": KIND, **asdict(study)}, indent=1) + "\n").encode())


def read_denoising(path: Path) -> DenoisingStudy:
    """Read the file that `write_denoising` wrote."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if entries.pop("kind") != KIND:
            raise ValueError("another kind of file")
        rows = [ArmRow(**row) for row in entries.pop("rows")]
        return DenoisingStudy(**entries, rows=rows)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): name a file of 'lifted bench denoising'."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is not what 'lifted bench denoising' writes ({error}): name such a file."
        ) from error
