"""The same runs with one choice changed that concerns all methods of an experiment: how images are centred, and how
parameters begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lifted_bregman.experiments import Settings
from lifted_bregman_lab.reproduction import Priority, Recipe

_FIGURES = ("table1", "fig-sparse-ae", "fig-denoising-1k")
_BESIDE = "-narrow"  # another reading with every seed


@dataclass(frozen=True)
class Counterparts:
    """A choice, for core recipes of the shorter experiments.

    suffix    the end of the names of its recipes
    reading   the choice in words
    change    the settings with the choice
    priority  `CORE` for the choice by which claims are judged
    without   ends of the names of recipes that it is not run for
    """

    suffix: str
    reading: str
    change: Callable[[Settings], Settings]
    priority: Priority = Priority.READINGS
    without: tuple[str, ...] = ()

    def of(self, recipes: Iterable[Recipe]) -> tuple[Recipe, ...]:
        """The counterpart of each core recipe that it is run for."""
        return tuple(self.counterpart(recipe) for recipe in recipes if self._concerns(recipe))

    def _concerns(self, recipe: Recipe) -> bool:
        core = recipe.priority is Priority.CORE and recipe.figures[0] in _FIGURES
        return core and not recipe.name.endswith((_BESIDE, *self.without))

    def counterpart(self, recipe: Recipe) -> Recipe:
        """The recipe with the choice changed."""
        return replace(
            recipe,
            name=recipe.name + self.suffix,
            settings=self.change(recipe.settings),
            smoke=self.change(recipe.smoke),
            priority=self.priority,
            reading=self.reading,
        )


ONE_MEAN = Counterparts(
    "-one-mean",
    "images centred by one number",
    lambda settings: replace(settings, prepare="centre-together"),
    Priority.CORE,
)
"""The text says no more than that images are centred.  One number, the mean of all pixels, is the main reading of the
shorter experiments.  By the mean image, which was the main reading at first, the inputs of the first layer have mean 0
in every pixel, and near half of its units are active on an image; Table 2 has fewer."""

TORCH_INIT = Counterparts(
    "-torch-init",
    "initial parameters of PyTorch, images centred by the mean image",
    lambda settings: replace(settings, initialisation="torch"),
    without=("-long", "-classical", "-5e-4", "-5e-3"),
)
"""The text names Glorot's initialisation.  That of nn.Linear is what a network has if nothing is said: weights of a
square layer are √3 times smaller, and biases are not 0."""
