"""What the report shows of the figures of Section 6: which curve of which run belongs to which figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lifted_bregman.reports.palette import DARK, LIGHT, Palette
from lifted_bregman_lab.paper import theory
from lifted_bregman_lab.paper.recipes import RECIPES, denoising, sparse_autoencoder
from lifted_bregman_lab.paper.recipes.counterparts import ONE_MEAN, TORCH_INIT
from lifted_bregman_lab.reproduction.exhibits import (
    Drawing,
    Exhibit,
    ShownChart,
    ShownCharts,
    ShownCodes,
    ShownCurve,
    ShownImages,
    ShownRow,
    ShownTable,
)
from lifted_bregman_lab.reproduction.quantities import AtEnd, Final, Scaled, SecondsPerEpoch

Methods = Mapping[str, str]
"""Names for the legend, by recipe."""

DIGITS_BY_MEAN_IMAGE: Methods = {
    "sparse-ae-lbn-s": "LBN-S",
    "sparse-ae-lbn-d": "LBN-D",
    "sparse-ae-sgd": "SGD-BP",
    "sparse-ae-gd": "GD-BP",
}
GARMENTS_1K_BY_MEAN_IMAGE: Methods = {"denoise-1k-lbn": "LBN", "denoise-1k-isgd": "ISGD-BP", "denoise-1k-sgd": "SGD-BP"}


def _one_mean(methods: Methods) -> Methods:
    """The same methods on images centred by one number."""
    return {recipe + ONE_MEAN.suffix: name for recipe, name in methods.items()}


DIGITS, GARMENTS_1K = _one_mean(DIGITS_BY_MEAN_IMAGE), _one_mean(GARMENTS_1K_BY_MEAN_IMAGE)
GARMENTS_10K: Methods = {"denoise-10k-lbn": "LBN", "denoise-10k-isgd": "ISGD-BP", "denoise-10k-sgd": "SGD-BP"}
EQUAL: Methods = {
    "denoise-10k-lbn": "LBN",
    "denoise-10k-isgd": "ISGD-BP",
    "denoise-10k-sgd-1500": "SGD-BP, 1,500 epochs",
}
KINDS: Methods = {
    "denoise-10k-lbn": "LBN, sparse",
    "denoise-10k-uae-lbn": "LBN, undercomplete",
    "denoise-10k-sgd": "SGD-BP, sparse",
    "denoise-10k-uae-sgd": "SGD-BP, undercomplete",
}
LONG_BY_MEAN_IMAGE: Methods = {"sparse-ae-lbn-d-long": "LBN-D, 500 epochs"}
LONG = _one_mean(LONG_BY_MEAN_IMAGE)

_COLUMNS = {
    "objective": "Training objective",
    "loss": "Training error",
    "validation_loss": "Validation error",
    "sparsity": "Zeros in the code",
}
_PENALTY = (
    "The training objective has the penalty on the code, the validation error does not; both are means over samples of "
    "half the squared error."
)


def _chart(
    column: str, methods: Methods, where: str, against: str = "epoch", levels: tuple[str, ...] = ()
) -> ShownChart:
    """A column for some methods; of those in `levels` only the end, as a horizontal line."""
    words = {"epoch": "epochs", "inner_iterations": "inner iterations"}[against]
    curves = tuple(ShownCurve(name, recipe, column, recipe in levels) for recipe, name in methods.items())
    zeros = column == "sparsity"
    return ShownChart(_COLUMNS[column], curves, f"{words}, {where}", against, log=not zeros, fraction=zeros)


def _ends(
    figure: str, methods: Methods, readings: Methods, by_mean_image: Methods | None = None
) -> tuple[ShownTable, ...]:
    """The numbers at the end of the runs: those of the figure, the same by the mean image, and all others."""
    columns = ("training objective", "training error", "validation error", "zeros, %", "edge error", "seconds an epoch")

    def rows(named: Methods) -> tuple[ShownRow, ...]:
        return tuple(
            ShownRow(
                name,
                (
                    Final(recipe, "objective"),
                    Final(recipe, "loss"),
                    Final(recipe, "validation_loss"),
                    Scaled(Final(recipe, "sparsity"), 100.0),
                    AtEnd(recipe, "validation_edge_error"),
                    SecondsPerEpoch(recipe),
                ),
            )
            for recipe, name in named.items()
        )

    captions = {
        f"After the last epoch ({figure}); the edge error is that on validation images.": methods,
        "The same on images centred by the mean image.": by_mean_image or {},
        "Other readings, rates, noise and methods, by the mean image unless they say otherwise.": readings,
    }
    return tuple(ShownTable(caption, columns, rows(named)) for caption, named in captions.items() if named)


def _others(figure: str, shown: Methods) -> dict[str, str]:
    """The recipes of a figure that its curves do not show, by title and reading."""
    recipes = sorted(RECIPES, key=lambda one: one.name.endswith(TORCH_INIT.suffix))
    left = [one for one in recipes if figure in one.figures and one.name not in shown]
    return {one.name: f"{one.title}; {one.reading}" if one.reading else one.title for one in left}


def _images(methods: Methods, where: str, figures: tuple[str, str], noisy: bool) -> tuple[ShownImages, ...]:
    outputs = tuple((name, recipe) for recipe, name in methods.items())
    parts = {"train": ("training", figures[0]), "validation": ("validation", figures[1])}
    return tuple(
        ShownImages(
            f"Figures {numbers}. The first {word} images of {where}, and the outputs of the networks of seed 0.",
            part,
            outputs,
            noisy,
        )
        for part, (word, numbers) in parts.items()
    )


def _at_noise(noise: str, methods: Methods) -> ShownImages:
    key = noise.replace(".", "")
    outputs = tuple((name, f"{recipe}-noise-{key}") for recipe, name in methods.items())
    caption = f"Validation images at noise {noise}, which can be seen; the paper's, 0.001, cannot."
    return ShownImages(caption, "validation", outputs, True)


_ENDS, _BY_MEAN = {**DIGITS, **LONG}, {**DIGITS_BY_MEAN_IMAGE, **LONG_BY_MEAN_IMAGE}
SPARSE_AUTOENCODER = Exhibit(
    sparse_autoencoder.FIGURE,
    "Figures 3, 4, 5 and 14: sparse autoencoder of 1,000 digits",
    "An autoencoder with 784 units in every layer and a soft-threshold code, α = 0.09, on 1,000 digits centred by one "
    "number; 10,000 others are for validation. LBN is Algorithm 1 with 15 inner iterations, LBN-S on batches of 20 "
    "and LBN-D on all digits at once; SGD-BP and GD-BP are their counterparts by back-propagation.",
    (
        ShownCharts(
            tuple(_chart(column, DIGITS, "MNIST-1K") for column in ("objective", "validation_loss", "sparsity")),
            f"Figure 3. {_PENALTY}",
        ),
        ShownCharts(
            tuple(_chart(column, LONG, "MNIST-1K, longer") for column in ("objective", "validation_loss")),
            "LBN-D for longer than in the paper, which says that its validation error would rise.",
        ),
        *_images(DIGITS, "MNIST", ("4 and 14, left", "5 and 14, right"), False),
        *_ends("Figure 3", _ENDS, _others(sparse_autoencoder.FIGURE, {**_ENDS, **_BY_MEAN}), _BY_MEAN),
    ),
)
DENOISING_1K = Exhibit(
    denoising.FIGURE_1K,
    "Figures 6, 9, 10 and 15: denoising with 1,000 garments",
    "The same autoencoder, given noisy images and compared with clean ones, on 1,000 garments; 50 epochs. "
    "ISGD-BP solves the sub-problems of implicit SGD by back-propagation, with as many inner iterations as LBN.",
    (
        ShownCharts(
            tuple(
                _chart(column, GARMENTS_1K, "Fashion-MNIST-1K")
                for column in ("objective", "validation_loss", "sparsity")
            ),
            f"Figure 6. {_PENALTY}",
        ),
        *_images(GARMENTS_1K, "Fashion-MNIST-1K", ("9 and 15, left", "10 and 15, right"), True),
        _at_noise("0.1", GARMENTS_1K_BY_MEAN_IMAGE),
        _at_noise("0.3", GARMENTS_1K_BY_MEAN_IMAGE),
        *_ends(
            "Figure 6",
            GARMENTS_1K,
            _others(denoising.FIGURE_1K, {**GARMENTS_1K, **GARMENTS_1K_BY_MEAN_IMAGE}),
            GARMENTS_1K_BY_MEAN_IMAGE,
        ),
    ),
)
DENOISING_10K = Exhibit(
    denoising.FIGURE_10K,
    "Figures 7 and 13: denoising with 10,000 garments",
    "The same on 10,000 garments with α = 0.055, batches of 200, 30 inner iterations; 50 epochs. Images are centred by "
    "the mean image: by one number nothing was run.",
    (
        ShownCharts(
            tuple(
                _chart(column, GARMENTS_10K, "Fashion-MNIST-10K")
                for column in ("objective", "validation_loss", "sparsity")
            ),
            f"Figure 7. {_PENALTY}",
        ),
        ShownCodes(
            "Figure 13. The code of the first training image by the networks of seed 0: one pixel for each unit, in no "
            "meaningful order. Grey is exactly zero, blue positive, orange negative. Beside it: how many are not zero, "
            "and the largest size of one.",
            tuple((name, recipe) for recipe, name in EQUAL.items()),
        ),
        _at_noise("0.1", GARMENTS_10K),
        _at_noise("0.3", GARMENTS_10K),
        *_ends("Figure 7", GARMENTS_10K, _others(denoising.FIGURE_10K, {**GARMENTS_10K, **EQUAL})),
    ),
)
EQUAL_ITERATIONS = Exhibit(
    denoising.FIGURE_1500,
    "Figures 8 (left, middle), 11, 12 and 16: as many iterations for all",
    "1,500 epochs of SGD-BP take as many iterations as 50 epochs of LBN and ISGD-BP, with their 30 inner ones.",
    (
        ShownCharts(
            tuple(
                _chart(column, EQUAL, "1,500 in all", levels=("denoise-10k-lbn", "denoise-10k-isgd"))
                for column in ("objective", "validation_loss", "sparsity")
            ),
            f"Figure 8. Horizontal lines are what LBN and ISGD-BP end with after 50 epochs. {_PENALTY}",
        ),
        ShownCharts(
            tuple(
                _chart(column, EQUAL, "Fashion-MNIST-10K", "inner_iterations")
                for column in ("objective", "validation_loss")
            ),
            "The same runs against inner iterations, of which all have as many.",
        ),
        *_images(EQUAL, "Fashion-MNIST-10K", ("11 and 16, left", "12 and 16, right"), True),
        *_ends(
            "Figure 8", EQUAL, {"denoise-10k-sgd-sum-1500": "SGD-BP for 1,500 epochs; rate for the sum over the batch"}
        ),
    ),
)
UNDERCOMPLETE = Exhibit(
    denoising.FIGURE_UNDERCOMPLETE,
    "Figure 8 (right): sparse against undercomplete",
    "An undercomplete autoencoder has a code of 70 ReLU units and no penalty: about as many as a sparse code has "
    "numbers that are not 0.",
    (
        ShownCharts(
            tuple(_chart(column, KINDS, "Fashion-MNIST-10K, both kinds") for column in ("loss", "validation_loss")),
            "Figure 8, right. Errors are means over samples of half the squared error, without penalty.",
        ),
        *_ends(
            "Figure 8, right",
            KINDS,
            {"denoise-10k-uae-sgd-sum": "SGD-BP, undercomplete; rate for the sum over the batch"},
        ),
    ),
)


def _coloured(draw: Callable[[Path, Palette], Path]) -> Callable[[Path, bool], Path]:
    return lambda path, dark: draw(path, DARK if dark else LIGHT)


THEORY = Exhibit(
    "theory",
    "Figures 1 and 2: activations and their Bregman losses",
    "Drawn from the library's own activations and losses; no run is needed. The command 'make figures' draws them too.",
    (
        Drawing(theory._ACTIVATIONS_CAPTION, theory._ACTIVATIONS_ALT, _coloured(theory.draw_activations)),
        Drawing(theory._LOSSES_CAPTION, theory._LOSSES_ALT, _coloured(theory.draw_losses)),
    ),
)
