"""Errors at equal training loss and shares of their variance, as tables of the page."""

from __future__ import annotations

from itertools import combinations
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifted_bregman_lab.study.problems import ARCHITECTURES, BATCH_SIZE, EPOCHS, SETS
from lifted_bregman_lab.study.results import Study, StudyRun
from lifted_bregman_lab.study.running import LEVELS
from lifted_bregman_lab.study.variance import Effect, explain_variance
from lifted_bregman_lab.text import Rows, count, markdown

KINDS = tuple(ARCHITECTURES)


def seeds(study: Study) -> list[int]:
    """Return the seeds of which every optimiser, network and data set has a run."""
    found = [
        {run.seed for run in study.runs if (run.data, run.architecture, run.optimiser) == (data, kind, name)}
        for data in sets(study)
        for kind in KINDS
        for name in study.optimisers
    ]
    return sorted(set.intersection(*found)) if found else []


def sets(study: Study) -> list[str]:
    """Return the data sets that have runs."""
    return [data for data in SETS if any(run.data == data for run in study.runs)]


def cell_errors(study: Study, data: str, level: float) -> dict[tuple[str, str], NDArray[Any]]:
    """Return errors (seeds,) at a level by optimiser and architecture, if all their runs have reached it."""
    by_key = {run.key: run for run in study.runs}
    cells = {
        (name, kind): np.array([_error(by_key[data, kind, name, seed], level) for seed in seeds(study)])
        for name in study.optimisers
        for kind in KINDS
    }
    return {cell: errors for cell, errors in cells.items() if np.isfinite(errors).all()}


def reached(study: Study, data: str, level: float) -> dict[str, NDArray[Any]]:
    """Return errors (architectures, seeds) at a level by optimiser, if all its runs have reached it."""
    cells = cell_errors(study, data, level)
    whole = [name for name in study.optimisers if all((name, kind) in cells for kind in KINDS)]
    return {name: np.stack([cells[name, kind] for kind in KINDS]) for name in whole}


def _error(run: StudyRun, level: float) -> float:
    found = run.error(level)
    return np.nan if found is None else found


def analysis(study: Study, data: str, level: float, kinds: tuple[str, ...] = KINDS) -> list[Effect]:
    """Return the analysis of variance of the errors at a level, for some of the architectures."""
    places = [KINDS.index(kind) for kind in kinds]
    return explain_variance(np.stack([errors[places] for errors in reached(study, data, level).values()]))


def error_rows(study: Study, data: str, level: float = LEVELS[-1]) -> Rows:
    """Return rows with mean and deviation of the error over seeds, and epochs to the level."""
    rows = []
    by_cell: dict[tuple[str, str], list[StudyRun]] = {}
    for run in study.runs:
        if run.data == data and run.seed in seeds(study):
            by_cell.setdefault((run.optimiser, run.architecture), []).append(run)
    for name in study.optimisers:
        cells: list[str] = []
        for kind in KINDS:
            runs = by_cell[name, kind]
            there = [crossing for run in runs for crossing in run.crossings if crossing.level == level]
            if len(there) < len(runs):
                cells.append(f"reached by {len(there)} of {len(runs)}")
                continue
            errors = [100.0 * crossing.error for crossing in there]
            epochs = mean(crossing.steps for crossing in there) / _steps_of_an_epoch()
            cells.append(f"{mean(errors):.2f} ± {stdev(errors):.2f} ({epochs:.1f})")
        rows.append((name, *cells))
    return ("optimiser", *KINDS), rows


def _steps_of_an_epoch() -> float:
    return 1000 / BATCH_SIZE


def share_rows(study: Study) -> Rows:
    """Return the shares of the variance by data set and level."""
    rows = []
    for data in sets(study):
        for level in LEVELS:
            effects = analysis(study, data, level)
            optimisers = len(reached(study, data, level))
            rows.append((SETS[data], f"{level:g}", str(optimisers), *(_share(effect) for effect in effects)))
    header = ("data", "training loss", "optimisers", "optimiser", "architecture", "both together", "seed", "rest")
    return header, rows


def pair_rows(study: Study, level: float = LEVELS[-1]) -> Rows:
    """Return the shares of optimiser and architecture for every pair of architectures."""
    rows = []
    for data in sets(study):
        for pair in combinations(KINDS, 2):
            effects = {effect.source: effect for effect in analysis(study, data, level, pair)}
            cells = (_share(effects[name]) for name in ("optimiser", "architecture"))
            rows.append((SETS[data], " and ".join(pair), *cells))
    return ("data", "architectures", "optimiser", "architecture"), rows


def spread_rows(study: Study, level: float = LEVELS[-1]) -> Rows:
    """Return worst minus best mean of optimisers and of architectures, and the deviation of seeds, in error points."""
    rows = []
    for data in sets(study):
        errors = 100.0 * np.stack(list(reached(study, data, level).values()))
        by_optimiser, by_architecture = errors.mean((1, 2)), errors.mean((0, 2))
        seed = float(np.sqrt(errors.var(2, ddof=1).mean()))
        cells = (float(np.ptp(by_optimiser)), float(np.ptp(by_architecture)), seed)
        rows.append((SETS[data], *(f"{cell:.2f}" for cell in cells)))
    return ("data", "optimisers, worst - best", "architectures, worst - best", "standard deviation of a seed"), rows


def optimiser_rows(study: Study) -> Rows:
    """Return a row for each optimiser: its settings, the rates tried, and the rate chosen for each network."""
    rows = []
    for name, settings in study.optimisers.items():
        tried = sorted({trial.rate for trial in study.trials if trial.optimiser == name})
        chosen = {run.architecture: run.rate for run in study.runs if run.optimiser == name}
        cells = [", ".join(f"{rate:g}" for rate in tried) or "-"]
        cells += ["-" if chosen[kind] is None else f"{chosen[kind]:g}" for kind in KINDS]
        rows.append((name, f"`{settings}`" if settings.startswith(f"{name}(") else settings, *cells))
    return ("optimiser", "settings", "rates tried", *(f"{kind}: rate" for kind in KINDS)), rows


def page(study: Study, picture: str) -> str:
    """Return chart and tables as Markdown, for a page to include; `picture` is the chart's path without its ending."""
    alt = (
        "Error on new samples of eight optimisers and three architectures at equal training loss, and the shares of "
        "the variance. The tables below have the numbers."
    )
    pictures = [
        f"```{{image}} {picture}{suffix}.svg\n:class: {shown}\n:alt: {alt}\n```"
        for suffix, shown in (("", "only-light"), ("_dark", "only-dark"))
    ]
    where = study.environment
    line = (
        f"{count(len(study.runs), 'run')} with {count(len(seeds(study)), 'seed')}, and {len(study.trials)} to choose "
        f"rates; at most {EPOCHS} epochs of batches of {BATCH_SIZE}; torch {where['torch']}, {where['processor']}, one "
        "thread."
    )
    errors = [
        f"{SETS[data]}: error in per cent at the training loss {LEVELS[-1]:g}, mean ± standard deviation over seeds "
        f"(epochs).\n\n{markdown(error_rows(study, data))}"
        for data in sets(study)
    ]
    parts = [
        *pictures,
        f"Shares of the variance of the error (η²), with the probability p of an effect as large by chance.\n\n"
        f"{markdown(share_rows(study))}",
        f"Differences at the training loss {LEVELS[-1]:g}, in points of the error in per cent.\n\n"
        f"{markdown(spread_rows(study))}",
        f"The same shares where only two architectures are compared, at the training loss {LEVELS[-1]:g}.\n\n"
        f"{markdown(pair_rows(study))}",
        *errors,
        markdown(optimiser_rows(study)),
        line,
    ]
    return "\n\n".join(parts) + "\n"


def _share(effect: Effect) -> str:
    share = f"{100.0 * effect.share:.0f} %"
    if effect.p is None:
        return share
    return f"{share} (p {'< 0.001' if effect.p < 0.001 else f'= {effect.p:.3f}'})"
