"""Section 6.3: sparse denoising autoencoders of 1,000 and 10,000 garments, and undercomplete ones.

The output is compared with the clean image, as the formulas have it.  The published noise, 1e-3, cannot be seen; 0.1
and 0.3 are run beside it.  Rates and τ refer to the mean over the batch, as in eq. 20 and Algorithm 1, and as the rates
of Section 6.2 must.  A τ beside the sum, the weight τ/|B|, is a reading.  The printed steps are those of Section 6.2.

Other rates reach over the largest stable one: the largest eigenvalue of the Hessian is about the depth times that of
the inputs' second moments, for garments about 80 in all, and 2/80 is 0.025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lifted_bregman.experiments import Settings
from lifted_bregman_lab.paper.recipes._parts import (
    PRINTED_LOOPS,
    PRINTED_STEPS,
    Method,
    implicit_backprop,
    lifted,
    sgd,
    shrunk,
)
from lifted_bregman_lab.reproduction import Priority, Recipe

HIDDEN = (784, 784, 784)
CODE_OF_UNDERCOMPLETE = 70
NOISE = 1e-3
FIGURE_1K, FIGURE_10K = "fig-denoising-1k", "fig-denoising-10k"
FIGURE_1500, FIGURE_UNDERCOMPLETE = "fig-denoising-1500", "fig-undercomplete"
RATES = ("1e-2", "2e-2", "5e-2", "1e-1")  # of SGD-BP, besides the published ones

_SPARSE_1K = Settings(
    data="fashion-mnist-1k",
    task="denoise",
    prepare="centre",
    noise=NOISE,
    hidden=HIDDEN,
    loss="squared-error",
    code_threshold=0.09,
    code_penalty=0.09,
    batch_size=20,
    epochs=50,
)
_SPARSE_10K = replace(_SPARSE_1K, data="fashion-mnist-10k", code_threshold=0.055, code_penalty=0.055, batch_size=200)
_UNDERCOMPLETE = replace(
    _SPARSE_10K,
    hidden=(784, CODE_OF_UNDERCOMPLETE, 784),
    activation=("relu", "relu", "relu"),
    code_threshold=None,
    code_penalty=0.0,
)

_LBN_1K, _LBN_10K = lifted(0.5, 15), lifted(1.0, 30)
_LBN_1K_SUM, _LBN_10K_SUM = lifted(0.5 / 20, 15), lifted(1.0 / 200, 30)  # τ/|B|
_ISGD_1K, _ISGD_10K = implicit_backprop(0.5, 15, 1e-3, "mean"), implicit_backprop(1.0, 30, 4e-4, "mean")
_SGD_1K, _SGD_10K = sgd(1e-3, "mean"), sgd(4e-4, "mean")

# Settings and figures of a recipe, by the beginning of its name; the first that fits.
_EXPERIMENTS = {
    "denoise-1k": (_SPARSE_1K, (FIGURE_1K,)),
    "denoise-10k-uae": (_UNDERCOMPLETE, (FIGURE_UNDERCOMPLETE,)),
    "denoise-10k-isgd": (_SPARSE_10K, (FIGURE_10K, FIGURE_1500)),
    "denoise-10k": (_SPARSE_10K, (FIGURE_10K, FIGURE_1500, FIGURE_UNDERCOMPLETE)),
}


def _recipe(
    name: str, method: Method, title: str, seconds: float, reading: str = "", *, core: bool = False, **changes: Any
) -> Recipe:
    """The recipe of a method in the experiment of its name, with changed settings."""
    base, figures = next(found for start, found in _EXPERIMENTS.items() if name.startswith(start))
    figures = (FIGURE_1500,) if name.endswith("-1500") else figures[:1] if "-noise-" in name else figures
    settings = replace(base, solver=method.solver, solver_settings=method.settings, **changes)
    priority = Priority.CORE if core else Priority.READINGS
    return Recipe(name, title, settings, shrunk(settings), figures, seconds, priority, reading, pictures=True)


def _noisy(noise: str) -> tuple[Recipe, ...]:
    """Every method at a noise that can be seen."""
    said = f"noise {noise}, where denoising means something"
    methods: tuple[tuple[str, Method, str, float], ...] = (
        ("1k-lbn", _LBN_1K, "LBN", 520),
        ("1k-sgd", _SGD_1K, "SGD-BP", 130),
        ("1k-isgd", _ISGD_1K, "ISGD-BP", 490),
        ("10k-sgd", _SGD_10K, "SGD-BP", 330),
        ("10k-lbn", _LBN_10K, "LBN", 4000),
        ("10k-isgd", _ISGD_10K, "ISGD-BP", 3500),
    )
    end = f"noise-{noise.replace('.', '')}"
    return tuple(
        _recipe(f"denoise-{name}-{end}", method, title, seconds, said, noise=float(noise))
        for name, method, title, seconds in methods
    )


def _rates(size: str, seconds: float) -> tuple[Recipe, ...]:
    """SGD-BP at other rates."""
    return tuple(
        _recipe(f"denoise-{size}-sgd-{rate}", sgd(float(rate), "mean"), f"SGD-BP at {rate}", seconds, _MEAN)
        for rate in RATES
    )


_MAIN = "N sweeps, safe steps, x after Θ"
_MEAN, _SUM = "rate for the mean over the batch", "rate for the sum over the batch"
_TAU_OF_SUM = "τ beside the sum over the batch"
_LAYERS = "N steps on a layer before the next"
_LONG: Any = {"epochs": 1500, "record_every": 10}

RECIPES: tuple[Recipe, ...] = (
    _recipe("denoise-1k-sgd", _SGD_1K, "SGD-BP", 130, _MEAN, core=True),
    _recipe("denoise-1k-isgd", _ISGD_1K, "ISGD-BP", 490, _MEAN, core=True),
    _recipe("denoise-1k-lbn", _LBN_1K, "LBN", 520, _MAIN, core=True),
    _recipe("denoise-10k-sgd", _SGD_10K, "SGD-BP", 330, _MEAN, core=True),
    _recipe("denoise-10k-uae-sgd", _SGD_10K, "SGD-BP, undercomplete", 250, _MEAN, core=True),
    _recipe("denoise-10k-uae-lbn", _LBN_10K, "LBN, undercomplete", 2050, _MAIN, core=True),
    _recipe("denoise-10k-lbn", _LBN_10K, "LBN", 4000, _MAIN, core=True),
    _recipe("denoise-10k-isgd", _ISGD_10K, "ISGD-BP", 3500, _MEAN, core=True),
    _recipe("denoise-10k-sgd-1500", _SGD_10K, "SGD-BP for 1,500 epochs", 4100, _MEAN, core=True, **_LONG),
    *_noisy("0.1"),
    *_noisy("0.3"),
    _recipe("denoise-1k-sgd-sum", sgd(1e-3, "sum"), "SGD-BP", 130, _SUM),
    _recipe("denoise-1k-isgd-sum", implicit_backprop(0.5, 15, 1e-3, "sum"), "ISGD-BP", 490, _SUM),
    *_rates("1k", 130),
    _recipe("denoise-1k-lbn-sum", _LBN_1K_SUM, "LBN", 520, _TAU_OF_SUM),
    _recipe("denoise-1k-lbn-layer-by-layer", lifted(0.5, 15, order="layer-by-layer"), "LBN", 550, _LAYERS),
    _recipe(
        "denoise-1k-lbn-printed",
        lifted(0.5 / 20, 15, **PRINTED_STEPS, **PRINTED_LOOPS),
        "LBN",
        550,
        "loops as printed, with the printed steps of Section 6.2, τ beside the sum over the batch",
    ),
    _recipe("denoise-10k-sgd-sum", sgd(4e-4, "sum"), "SGD-BP", 330, _SUM),
    *_rates("10k", 330),
    _recipe("denoise-10k-lbn-sum", _LBN_10K_SUM, "LBN", 4000, _TAU_OF_SUM),
    _recipe("denoise-10k-uae-sgd-sum", sgd(4e-4, "sum"), "SGD-BP, undercomplete", 250, _SUM),
    _recipe("denoise-10k-isgd-sum", implicit_backprop(1.0, 30, 4e-4, "sum"), "ISGD-BP", 3500, _SUM),
    _recipe("denoise-10k-lbn-layer-by-layer", lifted(1.0, 30, order="layer-by-layer"), "LBN", 4200, _LAYERS),
    _recipe("denoise-10k-sgd-sum-1500", sgd(4e-4, "sum"), "SGD-BP for 1,500 epochs", 4100, _SUM, **_LONG),
)
"""The runs of the denoising autoencoders."""
