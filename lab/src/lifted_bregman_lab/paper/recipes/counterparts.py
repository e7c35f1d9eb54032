"""The same runs with one choice changed that concerns all methods of an experiment: how images are centred, and how
parameters begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lifted_bregman.experiments import Settings
from lifted_bregman_lab.reproduction import Priority, Recipe

_FIGURES = ("table1", "fig-sparse-ae", "fig-denoising-1k")
_BESIDE = "-narrow"  # another reading in the core set


@dataclass(frozen=True)
class Counterparts:
    """A choice, for core recipes of the shorter experiments.

    suffix   what the names of its recipes end with
    reading  the choice in words
    change   what it makes of settings
    without  recipes that it is not run for: what their names end with
    """

    suffix: str
    reading: str
    change: Callable[[Settings], Settings]
    without: tuple[str, ...] = ()

    def of(self, recipes: Iterable[Recipe]) -> tuple[Recipe, ...]:
        """The counterpart of each core recipe that it is run for."""
        core = [recipe for recipe in recipes if recipe.priority is Priority.CORE and recipe.figures[0] in _FIGURES]
        return tuple(self._of(recipe) for recipe in core if not recipe.name.endswith((_BESIDE, *self.without)))

    def _of(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe,
            name=recipe.name + self.suffix,
            settings=self.change(recipe.settings),
            smoke=self.change(recipe.smoke),
            priority=Priority.READINGS,
            reading=self.reading,
        )


ONE_MEAN = Counterparts(
    "-one-mean",
    "images centred by one number",
    lambda settings: replace(settings, prepare="centre-together"),
)
"""The text says no more than that images are centred.  By the mean image, which is the main reading, the inputs of the
first layer have mean 0 in every pixel.  By one number they do not, gradient methods become less stable, and some of
what the paper says of them holds only then."""

TORCH_INIT = Counterparts(
    "-torch-init",
    "initial parameters of PyTorch",
    lambda settings: replace(settings, initialisation="torch"),
    without=("-long", "-classical", "-5e-4", "-5e-3"),
)
"""The text names Glorot's initialisation.  That of nn.Linear is what a network has if nothing is said: weights of a
square layer are √3 times smaller, and biases are not 0."""
