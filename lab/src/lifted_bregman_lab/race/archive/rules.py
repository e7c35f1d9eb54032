"""The rules of the race in words, as they stand on its page."""

from __future__ import annotations

from lifted_bregman_lab.race.results import Race


def rules(race: Race) -> tuple[str, ...]:
    """What makes it fair, each a paragraph."""
    reference = ", ".join(dict.fromkeys(problem.reference for problem in race.problems))
    return (
        "Same start. In a repetition all competitors have the same initial weights, the same training and validation "
        "samples and the same order of samples, all drawn by the repetition's seed. Batches are the same wherever the "
        "batch size is; where another one was tuned, the same order is cut into other pieces.",
        "Only steps are timed. The clock runs from before a batch is gathered to after the step on it; evaluation, "
        "progress and bookkeeping are outside. Before a repetition each competitor takes two steps on a copy of the "
        "network that is thrown away, so that nobody pays for what is done for the first time.",
        "In turns. The competitors share one process. In a turn each goes on until its own clock shows the same time, "
        "and whoever goes first in one turn goes last in the next, so that a change in the machine's load hits all "
        "alike.",
        "Fastest form. Back-propagation is torch's autograd; Adam and momentum are torch's fused kernels, and SGD "
        "without momentum adds the gradient in place. All run in float32 on the same threads.",
        "Tuned. A competitor's rate is the best of a grid, found beforehand with another seed by a walk that ends "
        "where no neighbour is better: once by the last training objective, once by the lowest validation error. "
        "Adam's batch size is tuned too. Where the rates are listed it is said which were found so, and which not yet. "
        "Where the two choices differ both run, the second as NAME-validation. 'lifted' is what fit does when no "
        "solver is named, with the same settings on all problems.",
        f"Targets. They are set by {reference} in the same repetition: its last training objective, by the entry tuned "
        "for the objective, and its lowest validation error, by the entry tuned for validation. For an autoencoder the "
        "latter counts only with a code that has at least as many zeros as the reference has there; for a classifier "
        "it is the best test accuracy. A target is reached at the first evaluation that shows it, and nothing is "
        "interpolated. A ratio is that time over the reference's own time to the same target.",
        f"End. A run ends after the problem's epochs, or at {race.budget:g} times the time that the reference takes "
        "for its own: a slow method is judged by what it reaches in that time and not by its epochs.",
        "Test samples serve as validation samples, to choose rates and to find the best row. They flatter everybody "
        "alike, and none of the accuracies is an estimate for new samples.",
        "Spread. Every number is the median over the repetitions; bands, and 'from' and 'to', are the least and the "
        "most. A target that was not reached counts as an infinite time.",
    )
