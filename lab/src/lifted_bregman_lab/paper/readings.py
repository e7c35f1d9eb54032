"""Other readings of the text, by which the claims are judged as well: a choice, and the recipes that it changes.

Most were run on images centred by the mean image, which was the main reading at first: these differ from the reading
"images centred by the mean image" in one choice, and from the main one in two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lifted_bregman_lab.paper.claims.classification import ABOUT_LAYER_3, SETS, recipe
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
    """Something that the text leaves open, changed in the reading by the mean image.

    title     the reading, in words that follow "Read with"
    suffix    the end of the name of a recipe in this reading
    concerns  whether the choice concerns a recipe
    silent    claims that say nothing in this reading
    """

    title: str
    suffix: str
    concerns: Callable[[Recipe], bool] = _every
    silent: frozenset[str] = frozenset()

    def reading(self, recipes: Sequence[Recipe]) -> Reading:
        """Claims that rest on a recipe which is concerned but not run in this reading are not judged in it."""
        names = {recipe.name for recipe in recipes}
        others = {
            name: by_mean_image + self.suffix if self.concerns(one) else by_mean_image
            for one in recipes
            if one.priority is Priority.CORE
            for name, by_mean_image in ((one.name, one.name.removesuffix(ONE_MEAN.suffix)),)
        }
        kept = {name: other for name, other in others.items() if other in names}
        return Reading(self.title, kept, self.silent, MEAN_IMAGE)


_CORE = [recipe.name for recipe in RECIPES if recipe.priority is Priority.CORE]
MEAN_IMAGE = Reading("images centred by the mean image", {name: name.removesuffix(ONE_MEAN.suffix) for name in _CORE})
"""The reading by which all claims were judged at first."""

_CHOICES = (
    _Choice("64 units in the first layer", "-narrow"),
    _Choice("two hidden layers, of 64 units", "-two-hidden", silent=ABOUT_LAYER_3),
    _Choice("initial parameters of PyTorch", TORCH_INIT.suffix),
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


def _without_half() -> Reading:
    """Rates of SGD-BP in classification twice as large: those of the squared error without its ½."""
    rates = {"sgd-5e-4": "sgd", "sgd": "sgd-2e-3", "sgd-5e-3": "sgd-1e-2", "lifted": "lifted", "classical": "classical"}
    end = ONE_MEAN.suffix
    recipes = {recipe(key, one + end): recipe(key, other + end) for key in SETS for one, other in rates.items()}
    return Reading("rates for the squared error without ½", recipes)


def _five_layers(threshold: str) -> Reading:
    """LBN-S with five affine layers and the code in layer 3, as far as its 15 epochs say something."""
    main = f"sparse-ae-lbn-s{ONE_MEAN.suffix}"
    others = {main: f"sparse-ae-lbn-s-five-layers-{threshold.replace('.', '')}"}
    return Reading(f"five affine layers, the code in layer 3 with the threshold {threshold}", others)


READINGS: tuple[Reading, ...] = (
    MEAN_IMAGE,
    _without_half(),
    _five_layers("0.01"),
    *(choice.reading(RECIPES) for choice in _CHOICES),
)
"""One choice is changed at a time, but for what is run as printed, where the loops, the steps and τ change together."""
