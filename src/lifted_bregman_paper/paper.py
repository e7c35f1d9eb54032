"""The paper as `lifted reproduce` finds it."""

from __future__ import annotations

from lifted_bregman.experiments.reproduction import Paper
from lifted_bregman_paper.claims import CLAIMS
from lifted_bregman_paper.recipes import RECIPES


def paper() -> Paper:
    """Recipes and claims of "Lifted Bregman Training of Neural Networks"."""
    return Paper("wang2023lifted", "Lifted Bregman Training of Neural Networks", RECIPES, CLAIMS)
