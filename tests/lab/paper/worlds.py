"""Stored runs written by hand: a world in which everything that the paper says is true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lifted_bregman_lab.reproduction import Evidence, Paper, RecipeRun

# Transcribed from the paper's tables: accuracy (train, test), then the linear nodes of layers 1 to 3.
ROWS = {
    "classify-mnist-classical": (85.6, 86.3, 99.9, 99.9, 99.9),
    "classify-mnist-lifted": (99.3, 96.8, 47.4, 82.2, 70.1),
    "classify-mnist-sgd": (99.6, 96.9, 40.1, 29.7, 73.6),
    "classify-fashion-classical": (81.4, 80.0, 99.9, 99.9, 99.9),
    "classify-fashion-lifted": (93.5, 85.7, 59.2, 85.7, 64.7),
    "classify-fashion-sgd": (95.8, 87.9, 32.2, 28.1, 78.4),
}

Curve = Callable[[int], float]


def falling(start: float, speed: float, floor: float = 1.0) -> Curve:
    """floor + start / (1 + speed · epoch)."""
    return lambda epoch: floor + start / (1.0 + speed * epoch)


def turning(epoch_of_lowest: int, rise: float) -> Curve:
    """A curve with its minimum, 5, at an epoch, that is 5 + rise |epoch - that one| otherwise."""
    return lambda epoch: 5.0 + rise * abs(epoch - epoch_of_lowest)


def wavy(level: float, height: float) -> Curve:
    return lambda epoch: level + height * (-1) ** epoch


# recipe: (objective and loss, validation loss, sparsity, edge error, seconds per epoch)
AUTOENCODERS: Mapping[str, tuple[Curve, Curve, Curve, float, float]] = {
    "sparse-ae-lbn-s": (falling(9, 1.0), turning(7, 0.02), lambda e: 0.90, 0.1, 8.0),
    "sparse-ae-lbn-d": (falling(9, 0.1, 1.2), falling(9, 0.1, 1.3), lambda e: 0.88, 0.2, 4.0),
    "sparse-ae-sgd": (
        lambda e: falling(9, 0.05, 2)(e) + 0.3 * (-1) ** e,
        falling(9, 0.05, 2),
        wavy(0.88, 0.02),
        0.3,
        0.6,
    ),
    "sparse-ae-gd": (
        lambda e: falling(9, 0.045, 2)(e) + 0.3 * (-1) ** e,
        falling(9, 0.04, 2),
        wavy(0.86, 0.02),
        0.4,
        0.2,
    ),
    "sparse-ae-sgd-1e-2": (falling(9, 0.02, 2.5), falling(9, 0.02, 2.5), wavy(0.88, 0.02), 0.4, 0.6),
    "sparse-ae-sgd-1e-1": (falling(9, 0.05, 3), falling(9, 0.05, 3), wavy(0.88, 0.02), 0.4, 0.6),
    "sparse-ae-gd-1e-2": (falling(9, 0.01, 2.5), falling(9, 0.01, 2.5), wavy(0.86, 0.02), 0.5, 0.2),
    "sparse-ae-gd-1e-1": (falling(9, 0.04, 3), falling(9, 0.04, 3), wavy(0.86, 0.02), 0.5, 0.2),
    "sparse-ae-lbn-d-long": (falling(9, 0.1), turning(200, 0.01), lambda e: 0.88, 0.2, 4.0),
    "denoise-1k-lbn": (falling(9, 1.0), falling(18, 1.0, 2.0), lambda e: 0.9, 0.1, 8.0),
    "denoise-1k-isgd": (falling(9, 0.8), falling(18, 0.8, 2.0), lambda e: 0.89, 0.2, 8.0),
    "denoise-1k-sgd": (falling(9, 0.1), falling(18, 0.1, 2.0), lambda e: 0.5, 0.3, 0.6),
    "denoise-10k-lbn": (falling(9, 1.0), falling(9, 0.9), lambda e: 0.91, 0.1, 75.0),
    "denoise-10k-isgd": (falling(9, 0.5), falling(9, 0.45), lambda e: 0.8, 0.2, 65.0),
    "denoise-10k-sgd": (falling(9, 0.1), falling(9, 0.09), lambda e: 0.5, 0.3, 2.3),
    "denoise-10k-sgd-1500": (falling(9, 0.5 / 30), falling(9, 0.45 / 30), lambda e: 0.8, 0.2, 2.3),
    "denoise-10k-uae-lbn": (falling(5, 0.7, 1.5), falling(7, 0.6, 1.5), lambda e: 0.4, 0.1, 38.0),
    "denoise-10k-uae-sgd": (falling(9, 0.08, 1.5), falling(9, 0.07, 1.5), lambda e: 0.4, 0.3, 1.4),
}
INNER = {"denoise-10k-lbn": 30, "denoise-10k-isgd": 30}
ONE = "-one-mean"
"""The end of the names of recipes whose images are centred by one number; this world is the same for both centrings."""


def run(recipe: str, seed: int, rows: list[dict[str, float]], measures: dict[str, float], outcome: str) -> RecipeRun:
    return RecipeRun(recipe, seed, {}, {}, {}, tuple(rows), outcome, "It ended.", rows[-1]["seconds"], measures)


def stored(paper: Paper, name: str, seed: int = 0, outcome: str = "FINISHED", shift: float = 0.0) -> RecipeRun:
    """The run of a recipe in this world, with every percentage of the tables shifted."""
    settings = next(recipe for recipe in paper.recipes if recipe.name == name).settings
    every, last, one = settings.record_every, settings.epochs, name.removesuffix(ONE)
    epochs = [epoch for epoch in range(1, last + 1) if epoch % every == 0 or epoch == last]
    if one in AUTOENCODERS:
        error, validation, sparsity, edges, seconds = AUTOENCODERS[one]
        batches = 50
        rows = [
            {
                "epoch": e,
                "seconds": seconds * e,
                "inner_iterations": e * batches * INNER.get(one, 1),
                "objective": error(e),
                "loss": error(e),
                "validation_loss": validation(e),
                "sparsity": sparsity(e),
            }
            for e in epochs
        ]
        parts = ("train", "validation")
        measures = {f"{p}_edge_error": edges for p in parts} | {f"{p}_unexplained": 0.2 for p in parts}
        return run(name, seed, rows, measures, outcome)
    numbers = ROWS.get(one, (99.0, 96.0, 40.0, 30.0, 70.0))
    objective = 0.01 if one.endswith("-sgd") else 0.02
    names = ("accuracy", "validation_accuracy", "linear_1", "linear_2", "linear_3")
    shifted = dict(zip(names, (number + shift for number in numbers), strict=True))
    shifted |= {key: shifted[key] / 100.0 for key in names[:2]}
    rows = [{"epoch": e, "seconds": 1.0 * e, "objective": objective} | shifted for e in epochs]
    return run(name, seed, rows, {}, outcome)


def world(paper: Paper, *, without: str = "", diverged: str = "", shift: float = 0.0) -> Evidence:
    """Everything that the claims need, with one seed; some recipe left out, or diverged."""
    names = dict.fromkeys(name for claim in paper.claims for name in claim.recipes)
    return Evidence(
        tuple(
            stored(paper, name, outcome="DIVERGED" if name == diverged else "FINISHED", shift=shift)
            for name in names
            if name != without
        )
    )


def swapped(evidence: Evidence, one: str, other: str) -> Evidence:
    """The runs of two recipes exchanged."""
    names = {one: other, other: one}
    return Evidence(tuple(replace(run, recipe=names.get(run.recipe, run.recipe)) for run in evidence.found))
