"""Losses defined by activations: the Bregman loss, its special cases, and the quadratic penalty that it replaces."""

from lifted_bregman.losses.bregman import BregmanLoss, bregman_loss
from lifted_bregman.losses.output import CrossEntropy, SquaredError
from lifted_bregman.losses.quadratic import QuadraticPenalty

__all__ = ["BregmanLoss", "CrossEntropy", "QuadraticPenalty", "SquaredError", "bregman_loss"]
