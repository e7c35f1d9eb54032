"""Networks small enough to be compared number by number."""

from __future__ import annotations

import torch
from _tasks import Task

AUTOENCODER = Task("autoencoder", (6, 5, 4, 5, 6), 7, code=2, dtype=torch.float64)
CLASSIFIER = Task("classifier", (6, 5, 3), 7, dtype=torch.float64)
