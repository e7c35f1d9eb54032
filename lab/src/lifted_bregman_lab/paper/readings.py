"""Other readings of the text, by which the claims are judged as well: a choice, and what it changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lifted_bregman_lab.paper.claims.classification import ABOUT_LAYER_3
from lifted_bregman_lab.paper.recipes import RECIPES
from lifted_bregman_lab.paper.recipes.counterparts import ONE_MEAN, TORCH_INIT
from lifted_bregman_lab.reproduction import Priority, Reading, Recipe


def _every(recipe: Recipe) -> bool:
    return True


def _algorithm_1(recipe: Recipe) -> bool:
    return recipe.settings.solver == "implicit-sgd" and recipe.relaxed is None


def _back_propagation(recipe: Recipe) -> bool:
    return "normalisation" in recipe.settings.solver_settings


@dataclass(frozen=True)
class _Choice:
    """Something that the text leaves open.

    title     the reading, in words that go on from "Read with"
    suffix    what the name of a recipe in this reading ends with
    concerns  which recipes of the main reading would be others; all that are not stay what they are
    silent    claims that say nothing in this reading
    """

    title: str
    suffix: str
    concerns: Callable[[Recipe], bool] = _every
    silent: frozenset[str] = frozenset()

    def reading(self, recipes: Sequence[Recipe]) -> Reading:
        """Claims that rest on a recipe which is concerned but not run in this reading are not judged in it."""
        names = {recipe.name for recipe in recipes}
        core = [recipe for recipe in recipes if recipe.priority is Priority.CORE]
        others = {one.name: one.name + self.suffix if self.concerns(one) else one.name for one in core}
        return Reading(self.title, {name: other for name, other in others.items() if other in names}, self.silent)


_CHOICES = (
    _Choice("64 units in the first layer", "-narrow"),
    _Choice("two hidden layers, of 64 units", "-two-hidden", silent=ABOUT_LAYER_3),
    _Choice(ONE_MEAN.reading, ONE_MEAN.suffix),
    _Choice(TORCH_INIT.reading, TORCH_INIT.suffix),
    _Choice("τ beside the mean over the batch", "-mean", _algorithm_1),
    _Choice("τ beside the sum over the batch", "-sum", _algorithm_1),
    _Choice("N steps on a layer before the next", "-layer-by-layer", _algorithm_1),
    _Choice("x moved by the old Θ", "-before", _algorithm_1),
    _Choice("the printed steps", "-printed-steps", _algorithm_1),
    _Choice("loops, indices and steps as printed", "-printed", _algorithm_1),
    _Choice("rates for the mean over the batch", "-mean", _back_propagation),
    _Choice("rates for the sum over the batch", "-sum", _back_propagation),
    _Choice("noise of 0.1", "-noise-01"),
    _Choice("noise of 0.3", "-noise-03"),
)

READINGS: tuple[Reading, ...] = tuple(choice.reading(RECIPES) for choice in _CHOICES)
"""One choice is changed at a time, but for what is run as printed, where the loops, the steps and τ change together."""
