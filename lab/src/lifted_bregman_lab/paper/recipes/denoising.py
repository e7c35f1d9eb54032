"""Section 6.3: sparse denoising autoencoders of 1,000 and 10,000 garments, and undercomplete ones.

The output is compared with the clean image, as the formulas have it.  The published noise, 1e-3, cannot be seen; 0.1
and 0.3 are run beside it.  Rates and τ refer to the mean over the batch, as in eq. 20 and Algorithm 1, and as the rates
of Section 6.2 must.  A τ beside the sum, the weight τ/|B|, is a reading.  The printed steps are those of Section 6.2.

Other rates reach over the largest stable one: the largest eigenvalue of the Hessian is about the depth times that of
the inputs' second moments, for garments about 80 in all, and 2/80 is 0.025.
"""

from __future__ import annotations

from dataclasses import replace

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


def _recipe(
    name: str,
    base: Settings,
    method: Method,
    title: str,
    figures: tuple[str, ...],
    seconds: float,
    reading: str = "",
    *,
    core: bool = False,
    noise: float = NOISE,
    epochs: int = 50,
    record_every: int = 1,
) -> Recipe:
    settings = replace(
        base,
        solver=method.solver,
        solver_settings=method.settings,
        noise=noise,
        epochs=epochs,
        record_every=record_every,
    )
    priority = Priority.CORE if core else Priority.READINGS
    return Recipe(name, title, settings, shrunk(settings), figures, seconds, priority, reading, pictures=True)


def _noisy(noise: str) -> tuple[Recipe, ...]:
    """Every method at a noise that can be seen."""
    level, said = float(noise), f"noise {noise}, where denoising means something"
    key = noise.replace(".", "")
    one, ten = (FIGURE_1K,), (FIGURE_10K,)
    isgd_1k, isgd_10k = implicit_backprop(0.5, 15, 1e-3, "mean"), implicit_backprop(1.0, 30, 4e-4, "mean")
    return (
        _recipe(f"denoise-1k-lbn-noise-{key}", _SPARSE_1K, _LBN_1K, "LBN", one, 520, said, noise=level),
        _recipe(f"denoise-1k-sgd-noise-{key}", _SPARSE_1K, sgd(1e-3, "mean"), "SGD-BP", one, 130, said, noise=level),
        _recipe(f"denoise-1k-isgd-noise-{key}", _SPARSE_1K, isgd_1k, "ISGD-BP", one, 490, said, noise=level),
        _recipe(f"denoise-10k-sgd-noise-{key}", _SPARSE_10K, sgd(4e-4, "mean"), "SGD-BP", ten, 330, said, noise=level),
        _recipe(f"denoise-10k-lbn-noise-{key}", _SPARSE_10K, _LBN_10K, "LBN", ten, 4000, said, noise=level),
        _recipe(f"denoise-10k-isgd-noise-{key}", _SPARSE_10K, isgd_10k, "ISGD-BP", ten, 3500, said, noise=level),
    )


_ONE = (FIGURE_1K,)
_TEN = (FIGURE_10K, FIGURE_1500, FIGURE_UNDERCOMPLETE)
_MAIN = "N sweeps, safe steps, x after Θ"
_MEAN, _SUM = "rate for the mean over the batch", "rate for the sum over the batch"
_TAU_OF_SUM = "τ beside the sum over the batch"

RECIPES: tuple[Recipe, ...] = (
    _recipe("denoise-1k-sgd", _SPARSE_1K, sgd(1e-3, "mean"), "SGD-BP", _ONE, 130, _MEAN, core=True),
    _recipe(
        "denoise-1k-isgd", _SPARSE_1K, implicit_backprop(0.5, 15, 1e-3, "mean"), "ISGD-BP", _ONE, 490, _MEAN, core=True
    ),
    _recipe("denoise-1k-lbn", _SPARSE_1K, _LBN_1K, "LBN", _ONE, 520, _MAIN, core=True),
    _recipe("denoise-10k-sgd", _SPARSE_10K, sgd(4e-4, "mean"), "SGD-BP", _TEN, 330, _MEAN, core=True),
    _recipe(
        "denoise-10k-uae-sgd",
        _UNDERCOMPLETE,
        sgd(4e-4, "mean"),
        "SGD-BP, undercomplete",
        (FIGURE_UNDERCOMPLETE,),
        250,
        _MEAN,
        core=True,
    ),
    _recipe(
        "denoise-10k-uae-lbn",
        _UNDERCOMPLETE,
        _LBN_10K,
        "LBN, undercomplete",
        (FIGURE_UNDERCOMPLETE,),
        2050,
        _MAIN,
        core=True,
    ),
    _recipe("denoise-10k-lbn", _SPARSE_10K, _LBN_10K, "LBN", _TEN, 4000, _MAIN, core=True),
    _recipe(
        "denoise-10k-isgd",
        _SPARSE_10K,
        implicit_backprop(1.0, 30, 4e-4, "mean"),
        "ISGD-BP",
        (FIGURE_10K, FIGURE_1500),
        3500,
        _MEAN,
        core=True,
    ),
    _recipe(
        "denoise-10k-sgd-1500",
        _SPARSE_10K,
        sgd(4e-4, "mean"),
        "SGD-BP for 1,500 epochs",
        (FIGURE_1500,),
        4100,
        _MEAN,
        core=True,
        epochs=1500,
        record_every=10,
    ),
    *_noisy("0.1"),
    *_noisy("0.3"),
    _recipe("denoise-1k-sgd-sum", _SPARSE_1K, sgd(1e-3, "sum"), "SGD-BP", _ONE, 130, _SUM),
    _recipe("denoise-1k-isgd-sum", _SPARSE_1K, implicit_backprop(0.5, 15, 1e-3, "sum"), "ISGD-BP", _ONE, 490, _SUM),
    *(
        _recipe(f"denoise-1k-sgd-{rate}", _SPARSE_1K, sgd(float(rate), "mean"), f"SGD-BP at {rate}", _ONE, 130, _MEAN)
        for rate in RATES
    ),
    _recipe("denoise-1k-lbn-sum", _SPARSE_1K, _LBN_1K_SUM, "LBN", _ONE, 520, _TAU_OF_SUM),
    _recipe("denoise-1k-gram-sweep", _SPARSE_1K, Method("gram-sweep", {}), "the library's default", _ONE, 130),
    _recipe(
        "denoise-1k-lbn-layer-by-layer",
        _SPARSE_1K,
        lifted(0.5, 15, order="layer-by-layer"),
        "LBN",
        _ONE,
        550,
        "N steps on a layer before the next",
    ),
    _recipe(
        "denoise-1k-lbn-printed",
        _SPARSE_1K,
        lifted(0.5 / 20, 15, **PRINTED_STEPS, **PRINTED_LOOPS),
        "LBN",
        _ONE,
        550,
        "loops as printed, with the printed steps of Section 6.2, τ beside the sum over the batch",
    ),
    _recipe("denoise-10k-sgd-sum", _SPARSE_10K, sgd(4e-4, "sum"), "SGD-BP", _TEN, 330, _SUM),
    *(
        _recipe(f"denoise-10k-sgd-{rate}", _SPARSE_10K, sgd(float(rate), "mean"), f"SGD-BP at {rate}", _TEN, 330, _MEAN)
        for rate in RATES
    ),
    _recipe("denoise-10k-lbn-sum", _SPARSE_10K, _LBN_10K_SUM, "LBN", _TEN, 4000, _TAU_OF_SUM),
    _recipe("denoise-10k-gram-sweep", _SPARSE_10K, Method("gram-sweep", {}), "the library's default", _TEN, 350),
    _recipe("denoise-10k-uae-sgd-sum", _UNDERCOMPLETE, sgd(4e-4, "sum"), "SGD-BP, undercomplete", _TEN[2:], 250, _SUM),
    _recipe(
        "denoise-10k-isgd-sum",
        _SPARSE_10K,
        implicit_backprop(1.0, 30, 4e-4, "sum"),
        "ISGD-BP",
        (FIGURE_10K, FIGURE_1500),
        3500,
        _SUM,
    ),
    _recipe(
        "denoise-10k-lbn-layer-by-layer",
        _SPARSE_10K,
        lifted(1.0, 30, order="layer-by-layer"),
        "LBN",
        _TEN,
        4200,
        "N steps on a layer before the next",
    ),
    _recipe(
        "denoise-10k-sgd-sum-1500",
        _SPARSE_10K,
        sgd(4e-4, "sum"),
        "SGD-BP for 1,500 epochs",
        (FIGURE_1500,),
        4100,
        _SUM,
        epochs=1500,
        record_every=10,
    ),
)
"""The runs of the denoising autoencoders."""
