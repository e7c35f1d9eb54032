"""Rules that several claims share."""

from __future__ import annotations

from collections.abc import Sequence

from lifted_bregman_lab.reproduction import All, Between, Less, Rule
from lifted_bregman_lab.reproduction.quantities import AtEnd, AtEpoch, OrInfinite, Ratio, Scaled

NAMES = {"objective": "training objective", "loss": "training error", "validation_loss": "validation error"}


def after(epoch: int) -> str:
    """How long, in words."""
    return "after 1 epoch" if epoch == 1 else f"after {epoch} epochs"


def percent(column: str, recipe: str, epoch: int) -> Scaled:
    """A fraction in per cent."""
    return Scaled(AtEpoch(recipe, column, epoch), 100.0)


def below(column: str, left: tuple[str, str], right: tuple[str, str], *epochs: int) -> Rule:
    """One recipe below another at each of these epochs; a recipe is (name, what it is called in sentences)."""
    rules = tuple(
        Less(
            AtEpoch(left[0], column, epoch),
            AtEpoch(right[0], column, epoch),
            f"{NAMES[column]} {after(epoch)} of {left[1]}",
            f"of {right[1]}",
        )
        for epoch in epochs
    )
    return rules[0] if len(rules) == 1 else All(rules)


def best(ours: tuple[str, str], others: Sequence[tuple[str, str]], epoch: int) -> All:
    """The training objective lower for one recipe than for each of the others; a recipe is (name, its rate).

    Another one that diverged is worse, and no reason to doubt; the one itself must not.
    """
    return All(
        tuple(
            Less(
                AtEpoch(ours[0], "objective", epoch),
                OrInfinite(AtEpoch(name, "objective", epoch)),
                f"training objective {after(epoch)} at {ours[1]}",
                f"at {rate}",
            )
            for name, rate in others
        )
    )


def sparser(high: tuple[str, str], low: tuple[str, str], epochs: Sequence[int]) -> All:
    """One recipe with more zeros in its code than another at each of these epochs."""
    return All(
        tuple(
            Less(
                percent("sparsity", low[0], epoch),
                percent("sparsity", high[0], epoch),
                f"% zeros {after(epoch)} of {low[1]}",
                f"of {high[1]}",
            )
            for epoch in epochs
        )
    )


def alike(column: str, one: tuple[str, int], other: tuple[str, int], part: float) -> Between:
    """The ratio of two recipes, each at its own epoch, between 1/(1 + part) and 1 + part."""
    ratio = Ratio(AtEpoch(one[0], column, one[1]), AtEpoch(other[0], column, other[1]))
    return Between(ratio, f"the ratio of the {NAMES[column]}s", 1.0 / (1.0 + part), 1.0 + part)


def finer(part: str, left: tuple[str, str], right: tuple[str, str]) -> Less:
    """Edges of one recipe's outputs nearer to those of the images than another's, on a part of the data."""
    column = f"{part}_edge_error"
    where = "training" if part == "train" else part
    what = f"edge error on the {where} part of {left[1]}"
    return Less(AtEnd(left[0], column), AtEnd(right[0], column), what, f"of {right[1]}")


GENERALISES = "sparse-ae-lbn-d-does-not-overfit-yet"
"""The first of the claims that need lifted training with few samples not to overfit: together they are one fact."""
EDGES = (
    "Sharpness is judged by eye in the paper. Here it is the squared error of the image gradients relative to those of "
    "the clean images: what is blurred, and what is added, both count."
)
STRICT = "No number is given: the inequality has to hold strictly on the mean over seeds, at every epoch named."
