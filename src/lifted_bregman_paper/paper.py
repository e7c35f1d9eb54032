"""The paper as `lifted reproduce` finds it."""

from __future__ import annotations

from lifted_bregman.experiments.reproduction import Paper, Reading
from lifted_bregman_paper.claims import CLAIMS
from lifted_bregman_paper.recipes import ONE_MEAN, RECIPES
from lifted_bregman_paper.report import EXHIBITS, NOTES


def paper() -> Paper:
    """Recipes, claims and exhibits of "Lifted Bregman Training of Neural Networks"."""
    title = "Lifted Bregman Training of Neural Networks"
    one_mean = Reading("images centred by one number", {name: recipe.name for name, recipe in ONE_MEAN.items()})
    return Paper("wang2023lifted", title, RECIPES, CLAIMS, EXHIBITS, NOTES, (one_mean,))
