"""The paper as `lifted reproduce` finds it."""

from __future__ import annotations

from lifted_bregman_lab.paper.claims import CLAIMS
from lifted_bregman_lab.paper.readings import READINGS
from lifted_bregman_lab.paper.recipes import RECIPES
from lifted_bregman_lab.paper.report import CAUSES, DECIDED_LATER, EXHIBITS, NOTES
from lifted_bregman_lab.reproduction import Paper


def paper() -> Paper:
    """Recipes, claims, readings, exhibits and causes of "Lifted Bregman Training of Neural Networks"."""
    title = "Lifted Bregman Training of Neural Networks"
    return Paper("wang2023lifted", title, RECIPES, CLAIMS, EXHIBITS, NOTES, READINGS, CAUSES, DECIDED_LATER)
