"""The paper as `lifted reproduce` finds it."""

from __future__ import annotations

from lifted_bregman.experiments.reproduction import Paper
from lifted_bregman_paper.claims import CLAIMS
from lifted_bregman_paper.readings import READINGS
from lifted_bregman_paper.recipes import RECIPES
from lifted_bregman_paper.report import EXHIBITS, NOTES


def paper() -> Paper:
    """Recipes, claims, readings and exhibits of "Lifted Bregman Training of Neural Networks"."""
    title = "Lifted Bregman Training of Neural Networks"
    return Paper("wang2023lifted", title, RECIPES, CLAIMS, EXHIBITS, NOTES, READINGS)
