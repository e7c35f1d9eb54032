"""Out-of-distribution detection: the energy of a Fashion-MNIST classifier on test images of both MNIST sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman import data
from lifted_bregman.losses import CrossEntropy
from lifted_bregman.problem.lift import lift
from lifted_bregman.tasks import classifier_scores
from lifted_bregman.training.fit import fit

PAIR = "fashion-mnist against mnist"
TRAINING = 10_000
"""Images of Fashion-MNIST that the classifier is trained on."""

SCORES: Mapping[str, Mapping[str, Any]] = {
    "free energy": {"score": "free"},
    "energy of the label": {"score": "label"},
    "energy of the label, minimised": {"score": "label", "at": "minimum", "steps": 10},
}
"""The arguments of `classifier_scores`."""


def network(seed: int) -> nn.Sequential:
    """784 - 128 - 64 - 10 with ReLU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def prepare(seed: int, data_dir: Path | None) -> tuple[Tensor, Tensor, Callable[[str, Tensor], Tensor], float]:
    """Return test images of both sets, a function that scores them, and the processor time of the training."""
    fashion = data.load("fashion-mnist", data_dir=data_dir)
    digits = data.load("mnist", data_dir=data_dir)
    train = fashion.apply(data.Subset(TRAINING, seed)).train
    start = time.process_time()
    problem = lift(network(seed), loss=CrossEntropy())
    fit(problem, (train.X, train.y), epochs=5, seed=seed)
    seconds = time.process_time() - start
    problem.model.eval()
    return fashion.test.X, digits.test.X, lambda name, x: classifier_scores(problem, x, **SCORES[name]), seconds
