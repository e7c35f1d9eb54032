"""The runs of Section 6, by experiment.

Three choices hold for all of them.  The main reading of Algorithm 1 takes N sweeps from the top layer down with steps
below 2 over the Lipschitz constants, x after Θ: it is proximal gradient descent on the sub-problem of a batch, which is
what the text says the inner iterations are, and the only reading under which that objective is known to decrease.  The
printed step sizes and loops are readings.  Parameters begin as Glorot has it.  Images are centred by one number in the
names that end with "-one-mean", by which the shorter experiments are judged, and by the mean image of the training part
in all others; `counterparts` makes both.
Losses are means over samples of half the squared error, summed over features.  Whether τ and the
rates refer to the sum over the batch or its mean the text does not settle; each experiment says how it takes them.
"""

from __future__ import annotations

from dataclasses import replace

from lifted_bregman_lab.paper.recipes import classification, denoising, sparse_autoencoder
from lifted_bregman_lab.paper.recipes.counterparts import ONE_MEAN, TORCH_INIT
from lifted_bregman_lab.reproduction import Priority, Recipe

_OWN: tuple[Recipe, ...] = (
    *sparse_autoencoder.RECIPES,
    *(recipe for recipe in denoising.RECIPES if "10k" not in recipe.name),
    *classification.RECIPES,
    *(recipe for recipe in denoising.RECIPES if "10k" in recipe.name),
)


def _beside(recipe: Recipe) -> Recipe:
    """A recipe of the mean image by which no claim is judged: a reading, with every seed."""
    if recipe.priority is Priority.CORE and not recipe.name.startswith("denoise"):
        return replace(recipe, priority=Priority.READINGS, repeated=True)
    return recipe


RECIPES: tuple[Recipe, ...] = (*ONE_MEAN.of(_OWN), *map(_beside, _OWN), *TORCH_INIT.of(_OWN))
"""All runs; those of the same priority in the order in which they are worth having, short ones first."""

__all__ = ["RECIPES"]
