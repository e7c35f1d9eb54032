"""Detection with the network of a run's folder: new samples against those that the run was trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.experiments import TrainedRun
from lifted_bregman.experiments.run_data import load_data
from lifted_bregman.tasks.classifier_scores import classifier_scores
from lifted_bregman.tasks.detection import EnergyScale
from lifted_bregman.tasks.explanation import Explanation
from lifted_bregman.tasks.term_energies import Where, require_where

_USUAL = 10_000
"""Training samples that the scale is found from, at most: the first ones."""


@dataclass(frozen=True, eq=False)
class RunDetection:
    """Scores of new samples, and where the scores of the training samples end."""

    scores: NDArray[np.float64]
    """(samples,); higher is more abnormal."""
    threshold: float
    """The (1 - contamination) quantile of the training samples' scores."""
    explanation: Explanation | None
    """The parts of the scores, with samples in the shape of the set's; None for a classifier."""

    @property
    def abnormal(self) -> NDArray[np.bool_]:
        """Which samples are above the threshold, (samples,)."""
        return self.scores > self.threshold


def detect_run(
    trained: TrainedRun, samples: Path, energy: Where = "forward", steps: int = 20, contamination: float = 0.1
) -> RunDetection:
    """Scores of the samples in a file by the energy of a run's network: an autoencoder's, or a classifier's.

    What is usual is found from the run's training samples, which are loaded again.

    energy         where an autoencoder's energies are taken; of a classifier the free energy is taken
    contamination  the part of the training samples beyond the threshold, in [0, 1)
    """
    require_where(energy, steps)
    if not 0.0 <= contamination < 1.0:
        raise SettingError(f"contamination is {contamination!r}; it must be in [0, 1).")
    settings, problem = trained.stored.settings, trained.problem
    if settings.task == "regress":
        raise CompatibilityError(
            f"'lifted detect' is for autoencoders and classifiers, and {trained.stored.path} was trained to regress: "
            "train with --task autoencode."
        )
    if settings.task == "classify" and energy == "minimum":
        raise SettingError("energy is 'minimum', and a classifier has its free energy alone: leave it out.")
    device = next(problem.model.parameters()).device
    X = trained.inputs.read(samples).to(device)
    # an autoencoder's usual samples are its targets: those of a denoising run are without noise
    inputs, targets = load_data(settings).train
    usual = (targets if settings.autoencoder else inputs)[:_USUAL].to(device)
    problem.model.eval()
    explanation = None
    if settings.task == "classify":
        scores, known = classifier_scores(problem, X), classifier_scores(problem, usual)
    else:
        scale = EnergyScale.of(problem, usual, at=energy, steps=steps)
        found = scale.explain(X)
        scores, known = found.scores, scale.scores(usual)
        explanation = _shaped(found, trained.inputs.shape)
    threshold = float(np.quantile(known.double().cpu().numpy(), 1.0 - contamination))
    return RunDetection(scores.double().cpu().numpy(), threshold, explanation)


def _shaped(found: Explanation, shape: tuple[int, ...]) -> Explanation:
    """Flat samples in the shape of the set's, where that is known."""

    def shaped(rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), *shape) if rows[0].numel() == math.prod(shape) else rows

    parts = (found.scores, found.layers, shaped(found.features), shaped(found.samples))
    scores, layers, features, samples = (part.cpu() for part in parts)
    return Explanation(scores, layers, found.names, features, samples)
