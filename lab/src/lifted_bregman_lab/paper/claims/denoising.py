"""Section 6.3: what is said about the sparse denoising autoencoders of 1,000 and 10,000 garments."""

from __future__ import annotations

from lifted_bregman_lab.paper.claims._parts import (
    EDGES,
    GENERALISES,
    NAMES,
    STRICT,
    alike,
    below,
    finer,
    percent,
    sparser,
)
from lifted_bregman_lab.paper.recipes import denoising as recipes
from lifted_bregman_lab.paper.recipes.counterparts import ONE_MEAN
from lifted_bregman_lab.reproduction import All, Claim, Less, Near, NotApplicable, Rule
from lifted_bregman_lab.reproduction.quantities import AtEpoch, Final, Ratio, Scaled, SecondsPerEpoch

LAST = 50
LONG = 1500
EARLY, LATER = (1, 2, 5, 10), (10, 25, 50)
LBN_1K = (f"denoise-1k-lbn{ONE_MEAN.suffix}", "LBN")
ISGD_1K = (f"denoise-1k-isgd{ONE_MEAN.suffix}", "ISGD-BP")
SGD_1K = (f"denoise-1k-sgd{ONE_MEAN.suffix}", "SGD-BP")
LBN, ISGD, SGD = ("denoise-10k-lbn", "LBN"), ("denoise-10k-isgd", "ISGD-BP"), ("denoise-10k-sgd", "SGD-BP")
SGD_LONG = ("denoise-10k-sgd-1500", "SGD-BP after 1,500 epochs")
_CODES = (LBN[0], ISGD[0], SGD_LONG[0])
_COMPARABLE = "On a log plot curves within 15 % of each other look alike; a factor of 1.15 either way."
_MATCHES = "'Matches' is stronger than 'comparable': within 10 %, a factor of 1.1 either way."


def _claim(name: str, figure: str, statement: str, rule: Rule, why: str, same_as: str = "") -> Claim:
    return Claim(f"denoising-{name}", figure, statement, rule, why, same_as)


def _generalises(part: str) -> str:
    """The first claim of the same fact, where a claim is about validation images."""
    return GENERALISES if part == "validation" else ""


def _one_k() -> tuple[Claim, ...]:
    figure = recipes.FIGURE_1K
    cheaper = (
        Less(SecondsPerEpoch(SGD_1K[0]), SecondsPerEpoch(other[0]), "seconds per epoch of SGD-BP", f"of {other[1]}")
        for other in (LBN_1K, ISGD_1K)
    )
    return (
        _claim(
            "1k-lbn-faster-than-isgd",
            figure,
            "With 1,000 images LBN converges faster than ISGD-BP, above all in early epochs.",
            below("objective", LBN_1K, ISGD_1K, *EARLY),
            STRICT + " Early epochs only: later ISGD-BP is said to align.",
        ),
        _claim(
            "1k-lbn-faster-than-sgd",
            figure,
            "With 1,000 images LBN converges faster than SGD-BP, above all in early epochs, and stays below it.",
            below("objective", LBN_1K, SGD_1K, *EARLY, *LATER[1:]),
            STRICT + " Later epochs too: of ISGD-BP alone it is said that it catches up.",
        ),
        *(
            _claim(
                f"1k-isgd-reaches-lbn-{key}",
                figure,
                f"With 1,000 images ISGD-BP ends with a {key} error comparable to that of LBN.",
                alike(column, (ISGD_1K[0], LAST), (LBN_1K[0], LAST), 0.15),
                _COMPARABLE,
                _generalises(key),
            )
            for key, column in (("training", "objective"), ("validation", "validation_loss"))
        ),
        *(
            _claim(
                f"1k-{key}-sparser-than-sgd",
                figure,
                f"With 1,000 images {method[1]} has more zeros in its codes than SGD-BP from early epochs on.",
                sparser(method, SGD_1K, (*EARLY[2:], *LATER[1:])),
                STRICT,
            )
            for key, method in (("lbn", LBN_1K), ("isgd", ISGD_1K))
        ),
        _claim(
            "1k-sgd-cheaper",
            figure,
            "An epoch of SGD-BP costs less than one of LBN and of ISGD-BP.",
            All(tuple(cheaper)),
            "Seconds in steps of the median epoch, on the same machine; at first the mean, by which it holds as well.",
        ),
        *(
            _claim(
                f"1k-lbn-finer-{part}",
                figure,
                f"With 1,000 images LBN restores finer details of {part} images than SGD-BP and ISGD-BP.",
                All((finer(key, LBN_1K, ISGD_1K), finer(key, LBN_1K, SGD_1K))),
                EDGES,
                _generalises(part),
            )
            for part, key in (("training", "train"), ("validation", "validation"))
        ),
    )


def _ten_k() -> tuple[Claim, ...]:
    figure = recipes.FIGURE_10K
    gaps = tuple(
        Less(
            Ratio(Final(ten[0], "validation_loss"), Final(ten[0], "loss")),
            Ratio(Final(f"denoise-1k-{one}", "validation_loss"), Final(f"denoise-1k-{one}", "loss")),
            f"validation over training error of {ten[1]} with 10,000 images",
            "with 1,000",
        )
        for ten, one in ((LBN, "lbn"), (ISGD, "isgd"), (SGD, "sgd"))
    )
    return (
        _claim(
            "10k-smaller-gap",
            figure,
            "With 10,000 images the validation error is closer to the training error than with 1,000.",
            All(gaps),
            "For each method, the ratio of reconstruction errors without penalty after 50 epochs; strict. All are "
            "centred by the mean image, since 10,000 images were not run otherwise.",
        ),
        *(
            _claim(
                f"10k-lbn-below-{key}-{word}",
                figure,
                f"With 10,000 images LBN has a lower {word} error than {other[1]} after 50 epochs.",
                below(column, LBN, other, LAST),
                STRICT,
                _generalises(word) if other is ISGD else "",
            )
            for key, other in (("isgd", ISGD), ("sgd", SGD))
            for word, column in (("training", "objective"), ("validation", "validation_loss"))
        ),
        _claim(
            "10k-lbn-below-isgd-reconstruction",
            figure,
            "With 10,000 images LBN has a lower reconstruction error on training images than ISGD-BP after 50 epochs.",
            below("loss", LBN, ISGD, LAST),
            STRICT + " Without penalty, since the text says 'reconstruction loss'. The same against SGD-BP is judged "
            "with the undercomplete autoencoders.",
        ),
        *(
            _claim(
                f"10k-lbn-sparser-than-{key}",
                figure,
                f"With 10,000 images LBN gets more zeros in its codes sooner than {other[1]}, and keeps them.",
                sparser(LBN, other, (5, *LATER)),
                STRICT,
            )
            for key, other in (("isgd", ISGD), ("sgd", SGD))
        ),
        _claim(
            "10k-sparsity",
            figure,
            "With α = 0.055 LBN reaches 91 % zeros after 50 epochs.",
            Near(percent("sparsity", LBN[0], LAST), 91.0, 2.0),
            "Two points: the number is given to one point, for one run.",
        ),
        _claim(
            "10k-active-units",
            figure,
            "On average 70 units of the code of 784 are active.",
            Near(Scaled(AtEpoch(LBN[0], "sparsity", LAST), -784.0, 784.0), 70.0, 16.0),
            "Two points of sparsity are 15.7 of 784 units.",
            "denoising-10k-sparsity",
        ),
        _claim(
            "10k-code-scale",
            figure,
            "The coefficients of one code are on a slightly different scale for LBN than for SGD-BP and ISGD-BP.",
            NotApplicable("no measure is given; the stored codes of one image show it.", _CODES),
            "Any two networks satisfy it.",
        ),
    )


def _fifteen_hundred() -> tuple[Claim, ...]:
    figure = recipes.FIGURE_1500
    errors = (("training", "objective"), ("validation", "validation_loss"))
    return (
        _claim(
            "10k-equal-iterations",
            figure,
            "1,500 epochs of SGD-BP take as many iterations as 50 epochs with 30 inner ones.",
            Near(Ratio(Final(SGD_LONG[0], "inner_iterations"), Final(LBN[0], "inner_iterations")), 1.0, 1e-9),
            "A count of iterations, exact.",
        ),
        *(
            _claim(
                f"10k-sgd-1500-matches-isgd-{word}",
                figure,
                f"With as many iterations SGD-BP matches the {word} error of ISGD-BP.",
                alike(column, (SGD_LONG[0], LONG), (ISGD[0], LAST), 0.10),
                _MATCHES,
            )
            for word, column in errors
        ),
        *(
            _claim(
                f"10k-sgd-1500-above-lbn-{word}",
                figure,
                f"With as many iterations SGD-BP does not get as low in {word} error as LBN.",
                Less(
                    Final(LBN[0], column),
                    Final(SGD_LONG[0], column),
                    f"{NAMES[column]} of LBN",
                    f"of {SGD_LONG[1]}",
                ),
                STRICT,
                _generalises(word),
            )
            for word, column in errors
        ),
        *(
            _claim(
                f"10k-lbn-finer-{word}",
                figure,
                f"With 10,000 images LBN recovers fine structures of {word} images that SGD-BP and ISGD-BP smooth out.",
                All((finer(part, LBN, ISGD), finer(part, LBN, SGD_LONG))),
                EDGES,
            )
            for word, part in (("training", "train"), ("validation", "validation"))
        ),
    )


CLAIMS: tuple[Claim, ...] = (*_one_k(), *_ten_k(), *_fifteen_hundred())
"""The claims about denoising."""
