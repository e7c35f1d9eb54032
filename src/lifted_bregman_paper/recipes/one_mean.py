"""The same runs on images that are centred by one number, the mean over all pixels of the training part.

The text says no more than that images are centred.  By the mean image, which is the main reading, the inputs of the
first layer have mean 0 in every pixel.  By one number they do not, gradient methods become less stable, and some of
what the paper says of them holds only then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lifted_bregman.experiments.reproduction import Priority, Recipe

SUFFIX = "-one-mean"
READING = "images centred by one number"
_FIGURES = ("table1", "fig-sparse-ae", "fig-denoising-1k")
_BESIDE = ("-narrow", "-mean")  # other readings in the core set


def counterparts(recipes: Iterable[Recipe]) -> tuple[Recipe, ...]:
    """The counterpart of each core recipe of the shorter experiments."""
    return tuple(
        _counterpart(recipe)
        for recipe in recipes
        if recipe.priority is Priority.CORE and recipe.figures[0] in _FIGURES and not recipe.name.endswith(_BESIDE)
    )


def _counterpart(recipe: Recipe) -> Recipe:
    return replace(
        recipe,
        name=recipe.name + SUFFIX,
        settings=replace(recipe.settings, prepare="centre-together"),
        smoke=replace(recipe.smoke, prepare="centre-together"),
        priority=Priority.READINGS,
        reading=READING,
    )
