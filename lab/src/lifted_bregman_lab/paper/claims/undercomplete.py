"""Section 6.3, last part: sparse autoencoders against undercomplete ones with a code of 70 units."""

from __future__ import annotations

from lifted_bregman_lab.paper.claims._parts import GENERALISES, STRICT, below
from lifted_bregman_lab.paper.recipes.denoising import FIGURE_UNDERCOMPLETE
from lifted_bregman_lab.reproduction import All, Claim, Rule

LAST = 50
SPARSE_LBN, SPARSE_SGD = ("denoise-10k-lbn", "sparse LBN"), ("denoise-10k-sgd", "sparse SGD-BP")
UAE_LBN, UAE_SGD = ("denoise-10k-uae-lbn", "undercomplete LBN"), ("denoise-10k-uae-sgd", "undercomplete SGD-BP")
_ERRORS = (("training", "loss"), ("validation", "validation_loss"))
_WITHOUT = " Reconstruction errors without penalty are compared, as in the paper's figure."


def _claim(name: str, statement: str, rule: Rule, why: str, same_as: str = "") -> Claim:
    return Claim(f"undercomplete-{name}", FIGURE_UNDERCOMPLETE, statement, rule, why, same_as)


def _crossing() -> All:
    early = (below("loss", UAE_LBN, SPARSE_LBN, epoch) for epoch in (1, 2))
    return All((*early, below("loss", SPARSE_LBN, UAE_LBN, LAST)))


CLAIMS: tuple[Claim, ...] = (
    *(
        _claim(
            f"lbn-below-sgd-{kind}-{word}",
            f"LBN converges faster and lower in {word} error than SGD-BP, for the {said} autoencoder.",
            below(column, ours, theirs, 5, 10, 25, LAST),
            STRICT + _WITHOUT,
        )
        for kind, said, ours, theirs in (
            ("uae", "undercomplete", UAE_LBN, UAE_SGD),
            ("sparse", "sparse", SPARSE_LBN, SPARSE_SGD),
        )
        for word, column in _ERRORS
    ),
    *(
        _claim(
            f"sparse-beats-uae-{word}",
            f"After 50 epochs the sparse autoencoder has a lower {word} error than the undercomplete one, both by LBN.",
            below(column, SPARSE_LBN, UAE_LBN, LAST),
            STRICT + _WITHOUT,
            GENERALISES if word == "validation" else "",
        )
        for word, column in _ERRORS
    ),
    _claim(
        "uae-faster-at-first",
        "By LBN the undercomplete autoencoder's error falls more in early epochs; later the sparse one is ahead.",
        _crossing(),
        "'Early' is taken as the first two of 50 epochs, 'later' as the end." + _WITHOUT,
    ),
)
"""The claims about undercomplete autoencoders."""
