"""Inversion of the network of a trained run, with penalties given as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from lifted_bregman.experiments import TrainedRun
from lifted_bregman.experiments.specs import make
from lifted_bregman.losses import CrossEntropy
from lifted_bregman.penalties import L1, Bounds, NonNegative, Penalty, SquaredL2, Sum, TotalVariation
from lifted_bregman.tasks.inversion import invert
from lifted_bregman.tasks.inversion_result import Inversion

PENALTIES: dict[str, type[Penalty]] = {
    "tv": TotalVariation,
    "l1": L1,
    "squared-l2": SquaredL2,
    "box": Bounds,
    "non-negative": NonNegative,
}
"""Penalties by their names on the command line."""


def invert_run(
    trained: TrainedRun, outputs: Path, penalties: Sequence[str], steps: int = 2000, tolerance: float = 1e-6
) -> Inversion:
    """Find inputs of a run's network for the outputs in a file, in the shape of the set's samples.

    penalties  specs such as "tv:0.015" and "box:0:1"; the sum of these penalties is J
    """
    parts = [make(spec, PENALTIES, "penalty") for spec in penalties]
    penalty = None if not parts else parts[0] if len(parts) == 1 else Sum(*parts)
    like = next(trained.model.parameters())
    y: Tensor = trained.outputs(outputs)
    loss = None if y.is_floating_point() else CrossEntropy()
    model = nn.Sequential(nn.Flatten(), trained.model).eval()
    y = y.to(like.device, like.dtype) if y.is_floating_point() else y.to(like.device)
    shape = trained.inputs.shape
    with torch.no_grad():
        return invert(model, y, penalty=penalty, loss=loss, shape=shape, steps=steps, tolerance=tolerance)
