"""The table of networks that people train: derivatives, lifted signals with the same optimiser, and the default."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, stdev

from lifted_bregman_lab.front.tables import FrontEvidence
from lifted_bregman_lab.race.opponents import OURS, REFERENCE
from lifted_bregman_lab.race.problems import BUDGETS, PROBLEMS, TOKENS, Budget, RaceProblem
from lifted_bregman_lab.race.store import Row, final
from lifted_bregman_lab.race.verdicts import MARKS, compare_seeds
from lifted_bregman_lab.text import Rows

SIGNALS = "lifted-adamw"
"""AdamW with lifted signals, at the rate that was tuned for derivatives."""
SHOWN = (
    "mnist-lenet",
    "cifar-lenet",
    "cifar-cnn",
    "cifar-resnet",
    "shakespeare",
    "mnist-1d",
    "residual-128",
    "deep-autoencoder",
    "deep-autoencoder-8",
    "mnist-classify",
    "fashion-classify",
)
"""Problems of the race, in the order of the lines."""


def network_rows(evidence: FrontEvidence) -> Rows:
    """For each network and budget the error on new samples by all three ways to train, and the times of a step.

    Means over the seeds with their standard deviation; "+" and "-" mark what is better or worse than derivatives by
    3.09 standard errors.
    """
    lines = []
    for name in SHOWN:
        for budget in BUDGETS:
            if budget in evidence.races and (line := _line(evidence, name, budget)) is not None:
                lines.append(line)
    header = (
        *("network and data", "on new samples", "epochs", "seeds"),
        *("derivatives, AdamW", "lifted signals, AdamW", "the default", "step, lifted signals", "step, the default"),
    )
    return header, lines


def _line(evidence: FrontEvidence, name: str, budget: Budget) -> tuple[str, ...] | None:
    race, problem = evidence.races[budget], PROBLEMS[name]
    runs = {one: race.runs("error", name, one) for one in (REFERENCE, SIGNALS, OURS)}
    if not runs[REFERENCE] or not runs[OURS]:
        return None
    reference = runs[REFERENCE]
    cells = [_error(problem, runs[one], reference) for one in (REFERENCE, SIGNALS, OURS)]
    times = [_time(runs[one]) for one in (SIGNALS, OURS)]
    seeds = str(len(runs[OURS]))
    return (problem.title, _noun(problem), str(problem.epochs(budget)), seeds, *cells, *times)


def _noun(problem: RaceProblem) -> str:
    if problem.task is TOKENS:
        return "nats per character"
    return "wrong classes, %" if problem.task.error_name.startswith("fraction") else problem.task.error_name


def _error(problem: RaceProblem, runs: Sequence[Row], reference: Sequence[Row]) -> str:
    if not runs:
        return "-"
    factor = 100.0 if problem.task.error_name.startswith("fraction") else 1.0
    values, others = ([factor * final(row, "error") for row in own] for own in (runs, reference))
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    comparable = runs is not reference and len(values) == len(others)
    return f"{fmean(values):.2f}{spread}{MARKS[compare_seeds(values, others)] if comparable else ''}"


def _time(runs: Sequence[Row]) -> str:
    return f"{median(row['seconds'] / row['reference_seconds'] for row in runs):.2f}" if runs else "-"
