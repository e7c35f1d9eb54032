"""`lifted bench nudges`: where a larger nudge helps back-propagation's optimiser, and where it does not.

Each network is trained by AdamW with derivatives, and by AdamW with the signals of `lb.lifted_backward` at several
nudges.  All have the rate that a tuning chose for AdamW with derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import fmean, stdev

import torch
from torch import nn

from lifted_bregman import lifted_backward
from lifted_bregman.activations import SoftThreshold
from lifted_bregman.experiments.settings import Settings
from lifted_bregman_lab.race import networks
from lifted_bregman_lab.race.opponents import OPPONENTS, REFERENCE, Opponent, Trainer
from lifted_bregman_lab.race.problems import CLASSES, RaceProblem
from lifted_bregman_lab.race.running import best_rates
from lifted_bregman_lab.race.samples import RaceSamples, from_settings
from lifted_bregman_lab.race.store import Row, final
from lifted_bregman_lab.race.verdicts import MARKS, compare_seeds
from lifted_bregman_lab.text import Rows, count, markdown

NUDGES = (0.1, 0.5, 2.0, 8.0)
"""ν of `lb.lifted_backward`; its default is 0.5."""
_SHOWN = {
    "loss": (1000.0, "1,000 times the training loss at the end"),
    "error": (100.0, "Wrong classes on new images, %"),
}
"""Factor and caption of each criterion."""


def _opponent(nudge: float) -> Opponent:
    def make(problem: RaceProblem, model: nn.Module, rate: float, steps: int) -> Trainer:
        trainer = OPPONENTS[REFERENCE].make
        assert trainer is not None
        return trainer(problem, lifted_backward(model, nudge=nudge), rate, steps)

    return Opponent(f"nudge {nudge:g}", f"AdamW with lb.lifted_backward(nudge={nudge:g})", (), make, rates_of=REFERENCE)


NUDGED = tuple(map(_opponent, NUDGES))
"""AdamW with lifted signals, by nudge."""


def _problem(name: str, title: str, network: Callable[[RaceSamples], nn.Module]) -> RaceProblem:
    samples = from_settings(Settings(data="mnist-5k", prepare="centre"))
    return RaceProblem(name, title, "images", samples, network, CLASSES, 100, 10, 50, sets=("mnist-5k",))


def _dense(data: RaceSamples, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    return networks.dense((data.X.shape[1], 256, 256, data.outputs), activation)


def _thresholds(data: RaceSamples, threshold: float) -> nn.Module:
    return _dense(data, lambda: SoftThreshold(threshold).as_module())


@torch.no_grad()
def _negative(data: RaceSamples) -> nn.Module:
    """Biases of -0.15: most units begin switched off for most samples."""
    model = _dense(data)
    for name in ("0.bias", "2.bias"):
        model.get_parameter(name).fill_(-0.15)
    return model


@torch.no_grad()
def _saturated(data: RaceSamples, activation: Callable[[], nn.Module]) -> nn.Module:
    """Weights 20 times too large: nearly every unit begins on a flat piece."""
    model = _dense(data, activation)
    for name in ("0.weight", "2.weight"):
        model.get_parameter(name).mul_(20.0)
    return model


def _plain(data: RaceSamples, layers: int = 40) -> nn.Module:
    """Dense layers of 64 without residual connections or normalisation, with He's initial weights."""
    model = networks.dense((data.X.shape[1], *(64,) * layers, data.outputs))
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
    return model


def _normalised(data: RaceSamples) -> nn.Module:
    """Four layers of 128, each with batch normalisation before ReLU."""
    widths = (data.X.shape[1], *(128,) * 4)
    layers = [nn.Sequential(nn.Linear(*pair), nn.BatchNorm1d(pair[1]), nn.ReLU()) for pair in pairwise(widths)]
    return nn.Sequential(*layers, nn.Linear(128, data.outputs))


PROBLEMS: dict[str, RaceProblem] = {
    problem.name: problem
    for problem in (
        _problem("negative-biases", "ReLU, biases that begin at -0.15", _negative),
        _problem("saturated-hardtanh", "hard tanh, weights 20 times too large", lambda d: _saturated(d, nn.Hardtanh)),
        _problem("saturated-tanh", "tanh, weights 20 times too large", lambda d: _saturated(d, nn.Tanh)),
        _problem("thresholds", "soft thresholds of 0.1", lambda data: _thresholds(data, 0.1)),
        _problem("large-thresholds", "soft thresholds of 0.5", lambda data: _thresholds(data, 0.5)),
        _problem("plain-40", "40 layers, no residual connections", _plain),
        _problem("relu", "ReLU, two layers", _dense),
        _problem("tanh", "tanh, two layers", lambda data: _dense(data, nn.Tanh)),
        _problem("batch-norm", "ReLU after batch normalisation, four layers", _normalised),
    )
}


def nudge_rows(rows: Iterable[Row], criterion: str) -> Rows:
    """The mean of a criterion over the seeds, by network and nudge.

    "+" and "-" mark what is better or worse than derivatives by 3.09 standard errors.
    """
    rows = list(rows)
    names = (REFERENCE, *(one.name for one in NUDGED))
    lines = []
    for name, problem in PROBLEMS.items():
        tuned = [row for row in rows if (row["problem"], row["part"]) == (name, "tune")]
        if not tuned:
            continue
        rate = best_rates(tuned)["loss"]
        races = [row for row in rows if (row["problem"], row["part"], row["rate"]) == (name, "race", rate)]
        by = {one: _by_seed(races, one, criterion) for one in names}
        factor, _ = _SHOWN[criterion]
        lines.append((problem.title, f"{rate:g}", *(_cell(by[one], by[REFERENCE], factor) for one in names)))
    header = ("network", "rate", "derivatives", *(f"ν = {nudge:g}" for nudge in NUDGES))
    return header, lines


def nudge_page(rows: Iterable[Row]) -> str:
    """Both tables as Markdown, for a page to include."""
    rows = list(rows)
    seeds = len({row["seed"] for row in rows if row["part"] == "race"})
    parts = [
        f"{caption}, {count(seeds, 'seed')}.\n\n{markdown(nudge_rows(rows, criterion))}\n"
        for criterion, (_, caption) in _SHOWN.items()
    ]
    return "\n".join(parts)


def _by_seed(races: Iterable[Row], opponent: str, criterion: str) -> list[float]:
    own = {row["seed"]: final(row, criterion) for row in races if row["opponent"] == opponent}
    return [own[seed] for seed in sorted(own)]


def _cell(values: list[float], reference: list[float], factor: float) -> str:
    """Mean and deviation with the mean's three digits, and the mark."""
    if not values or any(map(math.isinf, values)):
        return "diverged" if values else "-"
    mean = factor * fmean(values)
    digits = max(0, 2 - math.floor(math.log10(mean))) if mean > 0.0 else 2
    spread = f" ± {factor * stdev(values):.{digits}f}" if len(values) > 1 else ""
    mark = "" if values is reference else MARKS[compare_seeds(values, reference)]
    return f"{mean:.{digits}f}{spread}{mark}"
