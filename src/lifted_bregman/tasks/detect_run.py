"""Detection with a trained run: scores of new samples, and a threshold from the run's training samples."""

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
from lifted_bregman.tasks.detection import EnergyScale, require_contamination
from lifted_bregman.tasks.explanation import Explanation
from lifted_bregman.tasks.term_energies import Where, require_where

_USUAL = 10_000
"""The scale is computed from at most this many training samples, the first ones."""


@dataclass(frozen=True, eq=False)
class RunDetection:
    """Scores of new samples, and the threshold above which they are abnormal."""

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
    """Score the samples in a file by the energy of a run's autoencoder or classifier.

    The scale of the energies and the threshold come from the run's training samples, which are loaded again.

    energy         where an autoencoder's energies are taken; a classifier is scored by its free energy
    contamination  fraction of the training samples above the threshold, in (0, 0.5]
    """
    require_where(energy, steps)
    require_contamination(contamination)
    settings, problem = trained.stored.settings, trained.problem
    if settings.task == "regress":
        raise CompatibilityError(
            f"'lifted detect' is for autoencoders and classifiers, and {trained.stored.path} was trained to regress: "
            "train with --task autoencode."
        )
    if settings.task == "classify" and energy == "minimum":
        raise SettingError(
            "energy is 'minimum', but a classifier is scored by its free energy at the forward pass: leave it out."
        )
    device = next(problem.model.parameters()).device
    X = trained.inputs.read(samples).to(device)
    # The usual samples of an autoencoder are its targets: in a denoising run these are the clean images.
    inputs, targets = load_data(settings).train
    usual = (targets if settings.autoencoder else inputs)[:_USUAL].to(device)
    problem.model.eval()
    # Scores of the new samples, and of the usual ones for the threshold.
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
    """Return the explanation with flat samples reshaped to the set's shape, if the sizes agree."""

    def shaped(rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), *shape) if rows[0].numel() == math.prod(shape) else rows

    parts = (found.scores, found.layers, shaped(found.features), shaped(found.samples))
    scores, layers, features, samples = (part.cpu() for part in parts)
    return Explanation(scores, layers, found.names, features, samples)
