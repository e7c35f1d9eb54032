"""Section 6.2: what is said about the sparse autoencoders of 1,000 digits."""

from __future__ import annotations

from itertools import pairwise

from lifted_bregman_lab.paper.claims._parts import EDGES, GENERALISES, STRICT, below, best, finer, percent
from lifted_bregman_lab.paper.recipes import sparse_autoencoder as recipes
from lifted_bregman_lab.paper.recipes.counterparts import ONE_MEAN
from lifted_bregman_lab.reproduction import All, Between, Claim, Counted, Less, Near, Rule
from lifted_bregman_lab.reproduction.quantities import (
    AtEnd,
    AtEpoch,
    ChangeCorrelation,
    Difference,
    Final,
    FinalOverLowest,
    LowestEpoch,
    Oscillation,
    Ratio,
    SecondsPerEpoch,
)


def sparse_recipe(method: str) -> str:
    """The recipe of a method in the main reading: images centred by one number."""
    return f"sparse-ae-{method}{ONE_MEAN.suffix}"


LBN_S, LBN_D = (sparse_recipe("lbn-s"), "LBN-S"), (sparse_recipe("lbn-d"), "LBN-D")
SGD, GD = (sparse_recipe("sgd"), "SGD-BP"), (sparse_recipe("gd"), "GD-BP")
LONG = sparse_recipe("lbn-d-long")
LAST = 100
COMPARED = (10, 25, 50, 100)
PARAMETERS = 3136
"""As printed."""


def parameters() -> int:
    """Weights and biases of the network: 784 inputs, three hidden layers, 784 outputs."""
    widths = (784, *recipes.HIDDEN, 784)
    return sum((before + 1) * after for before, after in pairwise(widths))


def _claim(name: str, statement: str, rule: Rule, why: str, same_as: str = "") -> Claim:
    return Claim(f"sparse-ae-{name}", recipes.FIGURE, statement, rule, why, same_as)


def _slower(method: tuple[str, str], other: tuple[str, str]) -> Less:
    return Less(SecondsPerEpoch(other[0]), SecondsPerEpoch(method[0]), f"seconds per epoch of {other[1]}", method[1])


def _smoother(ours: tuple[str, str], theirs: tuple[str, str]) -> Less:
    left, right = Oscillation(ours[0], "sparsity"), Oscillation(theirs[0], "sparsity")
    return Less(left, right, f"back and forth of {ours[1]}", f"of {theirs[1]}")


def _upturn(recipe: str) -> FinalOverLowest:
    return FinalOverLowest(recipe, "validation_loss")


_OBJECTIVES = (
    _claim(
        "sparsity",
        "α = 0.09 gives codes of which about 90 % are zeros (LBN-S).",
        Near(percent("sparsity", LBN_S[0], LAST), 90.0, 3.0),
        "'Approximately 90 %': 87 to 93, which a rounded 90 could be said of; α is on a grid of hundredths.",
    ),
    _claim(
        "lbn-s-below-sgd",
        "LBN-S is below SGD-BP in training objective.",
        below("objective", LBN_S, SGD, *COMPARED),
        STRICT,
    ),
    _claim(
        "lbn-d-below-gd",
        "LBN-D is below GD-BP in training objective.",
        below("objective", LBN_D, GD, *COMPARED),
        STRICT,
    ),
    _claim(
        "lbn-d-below-sgd",
        "Lifted Bregman training outperforms the gradient methods overall: LBN-D ends below SGD-BP too.",
        below("objective", LBN_D, SGD, LAST),
        "The statement is about both lifted against both gradient methods; the least favourable pair, at the end.",
    ),
    _claim(
        "stochastic-faster-lifted",
        "The stochastic variant converges faster: LBN-S is below LBN-D.",
        below("objective", LBN_S, LBN_D, *COMPARED),
        STRICT,
    ),
    _claim(
        "stochastic-faster-gradient",
        "The stochastic variant converges faster: SGD-BP is below GD-BP.",
        below("objective", SGD, GD, *COMPARED),
        STRICT,
    ),
    _claim(
        "stochastic-matters-more-lifted",
        "Stochastic training speeds up lifted training more than back-propagation, with large drops in early epochs.",
        Less(
            Ratio(AtEpoch(GD[0], "objective", 10), AtEpoch(SGD[0], "objective", 10)),
            Ratio(AtEpoch(LBN_D[0], "objective", 10), AtEpoch(LBN_S[0], "objective", 10)),
            "objective of GD-BP over that of SGD-BP after 10 epochs",
            "of LBN-D over that of LBN-S",
        ),
        "'Early' is taken as 10 of 100 epochs, and the effect as the ratio of objectives; strict.",
    ),
    _claim(
        "lifted-costs-more",
        "An epoch of LBN-S and LBN-D costs more than one of SGD-BP and GD-BP.",
        All((_slower(LBN_S, SGD), _slower(LBN_D, GD))),
        "Seconds in steps of the median epoch, on the same machine; at first the mean, by which it holds as well. "
        "N = 15 inner iterations make the difference large.",
    ),
    *(
        _claim(
            f"{key}-best-rate",
            f"Of the rates from 1e-4 to 1e-1 that were tried, {rate} gives {said} the lowest training objective.",
            best((name, rate), tuple((sparse_recipe(f"{key}-{other}"), other) for other in ("1e-2", "1e-1")), LAST),
            "Which rates were tried is not said. Judged against 1e-2 and the end of the range, 1e-1: lower than "
            "both is necessary for the best, and strict; a rate that diverges is worse.",
        )
        for key, (name, said), rate in (("gd", GD, "4e-2"), ("sgd", SGD, "3e-2"))
    ),
)

_GENERALISATION = (
    _claim(
        "lbn-s-overfits-after-7",
        "The validation loss of LBN-S falls and rises again after about 7 epochs.",
        All(
            (
                Between(LowestEpoch(LBN_S[0], "validation_loss"), "the epoch of the lowest validation loss", 4.0, 12.0),
                Between(_upturn(LBN_S[0]), "the last validation loss over the lowest", low=1.02),
            )
        ),
        "'Around 7' is read off a figure: 4 to 12. A rise of 2 % is more than such curves wiggle.",
    ),
    _claim(
        "lbn-d-would-overfit",
        "LBN-D would show the same rise of its validation loss if it were trained for longer.",
        All(
            (
                Between(LowestEpoch(LONG, "validation_loss"), "the epoch of the lowest validation loss", high=495.0),
                Between(_upturn(LONG), "the last validation loss over the lowest", low=1.02),
            )
        ),
        "How much longer is not said: five times as long, and a rise of 2 % as for LBN-S.",
    ),
    _claim(
        "lbn-d-does-not-overfit-yet",
        "Within 100 epochs the validation loss of LBN-D does not rise again.",
        Between(_upturn(LBN_D[0]), "the last validation loss over the lowest", high=1.01),
        "Implied, since it would rise with more epochs. Within 1 % of the lowest at the end, half of what counts as a "
        "rise for LBN-S.",
    ),
    _claim(
        "gradient-methods-do-not-overfit",
        "The validation losses of SGD-BP and GD-BP do not rise again.",
        All(
            tuple(
                Between(_upturn(name), f"the last validation loss of {said} over the lowest", high=1.01)
                for name, said in (SGD, GD)
            )
        ),
        "Within 1 % of the lowest at the end, half of what counts as a rise for LBN-S.",
    ),
    _claim(
        "gradient-methods-generalise",
        "The validation curves of SGD-BP and GD-BP follow their training curves closely.",
        All(
            tuple(
                Between(
                    Ratio(Final(name, "validation_loss"), Final(name, "loss")),
                    f"validation over training error of {said}",
                    high=1.25,
                )
                for name, said in (SGD, GD)
            )
        ),
        "'Quite closely' on a log scale: at most a quarter above. Reconstruction errors are compared, without penalty.",
    ),
    _claim(
        "parameters",
        "The autoencoder has 3136 parameters.",
        Counted(PARAMETERS, parameters(), "weights and biases of 784-784-784-784-784"),
        "A count, without tolerance. 3136 is 4 times 784, the number of units.",
    ),
)

_SPARSITY = (
    _claim(
        "lbn-s-smoother-than-sgd",
        "The sparsity of LBN-S changes more smoothly over the epochs than that of SGD-BP, which oscillates.",
        _smoother(LBN_S, SGD),
        "Oscillation is the length of the curve beyond its net change; strict.",
    ),
    _claim(
        "lbn-d-smoother-than-gd",
        "The sparsity of LBN-D changes more smoothly over the epochs than that of GD-BP, which oscillates.",
        _smoother(LBN_D, GD),
        "Oscillation is the length of the curve beyond its net change; strict.",
    ),
    _claim(
        "similar-sparsity",
        "Lifted and gradient methods end with similar sparsity.",
        All(
            tuple(
                Between(
                    Difference(percent("sparsity", ours[0], LAST), percent("sparsity", theirs[0], LAST)),
                    f"the difference of {ours[1]} and {theirs[1]} in points",
                    -5.0,
                    5.0,
                )
                for ours, theirs in ((LBN_S, SGD), (LBN_D, GD))
            )
        ),
        "Within 5 points: at 90 %, half as many or one and a half times as many numbers that are not 0.",
    ),
    _claim(
        "objective-falls-with-sparsity",
        "For SGD-BP and GD-BP the objective falls roughly when the sparsity drops, and stagnates while it climbs.",
        All(
            tuple(
                Between(
                    ChangeCorrelation(name, "objective", "sparsity", log=True),
                    f"the correlation of the changes from epoch to epoch for {said}",
                    low=0.3,
                )
                for name, said in (SGD, GD)
            )
        ),
        "'Roughly coincide': a correlation of 0.3 over 99 changes is three standard errors from none. Relative changes "
        "of the objective, as its logarithmic plot shows them: the first epochs would outweigh all others.",
    ),
)

_PICTURES = (
    _claim(
        "good-reconstructions",
        "All four methods give good reconstructions, of training and of validation images.",
        All(
            tuple(
                Between(AtEnd(name, f"{part}_unexplained"), f"the unexplained part ({part}) for {said}", high=0.5)
                for name, said in (LBN_S, LBN_D, SGD, GD)
                for part in ("train", "validation")
            )
        ),
        "Judged by eye in the paper. Less than half the error of the mean image is the least that can be called good.",
    ),
    *(
        _claim(
            f"{name}-sharper-than-{other}",
            f"Reconstructions of {ours[1]} have sharper edges and finer details than those of {theirs[1]}.",
            All((finer("train", ours, theirs), finer("validation", ours, theirs))),
            EDGES,
            GENERALISES if (name, other) == ("lbn-s", "sgd") else "",
        )
        for name, ours, other, theirs in (
            ("lbn-s", LBN_S, "sgd", SGD),
            ("lbn-d", LBN_D, "gd", GD),
            ("lbn-s", LBN_S, "lbn-d", LBN_D),
        )
    ),
)

CLAIMS: tuple[Claim, ...] = (*_OBJECTIVES, *_GENERALISATION, *_SPARSITY, *_PICTURES)
"""The claims about the sparse autoencoder."""
