"""What the report shows besides the claims, and what was tried where a number was not reached."""

from __future__ import annotations

from lifted_bregman_lab.paper import report_figures, report_tables
from lifted_bregman_lab.reproduction.exhibits import Exhibit

EXHIBITS: tuple[Exhibit, ...] = (
    report_tables.TABLE_1,
    report_tables.TABLE_2,
    report_figures.SPARSE_AUTOENCODER,
    report_figures.DENOISING_1K,
    report_figures.DENOISING_10K,
    report_figures.EQUAL_ITERATIONS,
    report_figures.UNDERCOMPLETE,
    report_figures.THEORY,
)
"""Tables and figures in the order of the report: what was measured first, the theory last."""

_RATES = (
    "Rates of 5e-4 and 5e-3, run as well, change the accuracies of SGD-BP by less than half a point: the rate "
    "is not the reason. With two hidden layers all four accuracies of SGD-BP are within a point of the paper's. But "
    "Table 2 has three hidden layers, and with two lifted Bregman training is further off than here: it gets "
    "96.5 % of the MNIST and 89.2 % of the Fashion-MNIST train images right, published 99.3 and 93.5 %."
)
_LAYER_3 = (
    "Trial runs of SGD-BP on MNIST with 64 units in the first layer, 100 epochs and one seed each, that are not "
    "stored: 21 % of layer 3 act linearly from Glorot's initialisation, 23 % from He's and 46 % from PyTorch's own; "
    "24 % on images centred by one number and 35 % on images that are not centred. The initialisation matters most, "
    "and none of these comes to the published 73.6 %. Nor do the outputs of a network with two hidden layers, if they "
    "should be meant: in such trials 54 % of them are not negative on MNIST, and 55 % on Fashion-MNIST."
)


def _linear_layer_3(early: str, late: str, always: str) -> str:
    """Of seeds 0, 1 and 2: what acts linearly after 5 and after 100 epochs, and on all images, in per cent."""
    return (
        f"Training for a shorter time would not be enough: with seeds 0, 1 and 2, {early} % of layer 3 act linearly "
        f"after 5 epochs, and {late} % after 100. Then {always} % of its units act linearly on all training images."
    )


_LAYER_3_MNIST = _linear_layer_3("89.1, 99.5 and 94.3", "92.2, 100.0 and 95.8", "48.4, 48.4 and 37.5")
_LAYER_3_FASHION = _linear_layer_3("90.8, 99.3 and 96.0", "92.2, 99.7 and 97.1", "29.7, 32.8 and 20.3")
_QUOTED = "The paper quotes this row from earlier work and gives none of its settings; ours is a run of our own."
_BY_HEART_1K = (
    "LBN learns its 1,000 images by heart. With seed 0 its validation error is lowest after 5 epochs, 8.56, which is "
    "above what ISGD-BP ends with, and then rises: stopping earlier would not be enough."
)
_BY_HEART_10K = (
    "With seed 0 the validation error of LBN is lowest after 13 epochs, 5.76, which is still above the other one, and "
    "then rises: stopping earlier would not be enough."
)
_STILL_GROWING = "The zeros are still growing: with seed 0 from 76.5 % after 13 epochs to 83.7 % after 50."
_TRIALS = "Trial runs of SGD-BP, 100 epochs and one seed each, that are not stored: "
NOTES: dict[str, str] = {
    "table1-mnist-test-sgd": _RATES,
    "table1-fashion-train-sgd": _RATES,
    "table1-fashion-test-sgd": _RATES,
    "table2-mnist-layer3-sgd": _LAYER_3,
    "table2-fashion-layer3-sgd": _LAYER_3,
    "table2-mnist-layer3-lifted": _LAYER_3_MNIST,
    "table2-fashion-layer3-lifted": _LAYER_3_FASHION,
    "classification-mnist-lifted-nonlinear": _LAYER_3_MNIST,
    "classification-fashion-lifted-nonlinear": _LAYER_3_FASHION,
    "table1-mnist-train-classical": _QUOTED,
    "table1-mnist-test-classical": _QUOTED,
    "table1-fashion-train-classical": _QUOTED,
    "denoising-1k-isgd-reaches-lbn-validation": _BY_HEART_1K,
    "denoising-1k-lbn-finer-validation": _BY_HEART_1K,
    "denoising-10k-lbn-below-isgd-validation": _BY_HEART_10K,
    "denoising-10k-sgd-1500-above-lbn-validation": _BY_HEART_10K,
    "undercomplete-sparse-beats-uae-validation": _BY_HEART_10K,
    "denoising-10k-sparsity": _STILL_GROWING,
    "denoising-10k-active-units": _STILL_GROWING,
    "sparse-ae-good-reconstructions": "With seed 0 the validation error of LBN-S is lowest after 5 epochs; there the "
    "unexplained part would be 0.301, and all four would be good.",
    "sparse-ae-similar-sparsity": _TRIALS
    + "it ends with 77 % zeros from He's initialisation, with 96 % from PyTorch's own, with 82 % on images that are "
    "not centred, and with 32 % where the code has its threshold but no penalty. Only PyTorch's own initialisation "
    "comes near LBN-S, and the paper names Glorot's.",
    "sparse-ae-gradient-methods-generalise": _TRIALS
    + "validation over training error ends at 5.1 from He's initialisation, at 1.8 from PyTorch's own, and at 3.1 on "
    "images that are not centred.",
    "sparse-ae-sgd-best-rate": _TRIALS
    + "on images that are not centred 1e-1 diverges in the first epoch, and 3e-2 ends lower than 1e-2. A rate for the "
    "sum over the batch diverges in the first epoch with and without centring.",
}
"""What was tried besides other readings where a claim was not reproduced, by the name of the claim; whole sentences."""
