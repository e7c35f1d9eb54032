"""The study, run by run: a rate for each optimiser and network by the training loss, then all seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lifted_bregman.experiments.environment import environment
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.samples import RaceSamples
from lifted_bregman_lab.study.optimisers import OPTIMISERS, Optimiser
from lifted_bregman_lab.study.problems import ARCHITECTURES, study_problem
from lifted_bregman_lab.study.results import Crossing, Study, StudyRun, Trial
from lifted_bregman_lab.watching import Watch

LEVELS = (0.3, 0.1, 0.03)
"""Training losses at which the error on new samples is read, cross-entropy in nats, falling."""
SEEDS = 5
TUNING_SEED = 1000
"""Seed of weights and order when rates are chosen, not used by the study's runs."""


class Crossings:
    """Reads the error on new samples where the training loss first falls to each level.

    Between two observations the logarithm of the training loss, the steps and the error are interpolated linearly.

    Args:
        problem: gives loss and error.
        data: training samples, and new ones.
        levels: of the training loss, falling.
    """

    def __init__(self, problem: RaceProblem, data: RaceSamples, levels: Sequence[float] = LEVELS) -> None:
        self._problem, self._data, self._levels = problem, data, levels
        self._judge = problem.build(0, data)
        self._last: tuple[int, float, dict[str, Tensor]] | None = None
        self.found: list[Crossing] = []
        self.loss = math.inf
        """The training loss at the last observation."""

    @torch.no_grad()
    def observe(self, model: nn.Module, step: int) -> bool:
        """Observe the network after `step` steps; return True at the lowest level or at a loss that is not finite."""
        self.loss = float(self._problem.loss(model, self._data.X, self._data.Y))
        if not math.isfinite(self.loss):
            return True
        left = [level for level in self._levels[len(self.found) :] if self.loss <= level]
        if left:
            before, loss, parameters = self._last or (step, self.loss, model.state_dict())
            first, second = self._error(parameters), self._error(model.state_dict())
            for level in left:
                t = 1.0 if loss <= level else math.log(loss / level) / math.log(loss / self.loss)
                steps, error = (a + t * (b - a) for a, b in ((before, step), (first, second)))
                self.found.append(Crossing(level, steps, error))
        self._last = step, self.loss, {name: value.clone() for name, value in model.state_dict().items()}
        return len(self.found) == len(self._levels)

    def _error(self, parameters: dict[str, Tensor]) -> float:
        """Return the error on new samples with these parameters, in a second network beside the trained one."""
        self._judge.load_state_dict(parameters)
        parts = zip(self._data.X_new.split(2000), self._data.Y_new.split(2000), strict=True)
        wrong = sum(float(self._problem.task.error(self._judge(x), y)) * len(x) for x, y in parts)
        return wrong / len(self._data.X_new)


def run_study(
    sets: Sequence[str],
    seeds: int = SEEDS,
    watch: Watch = lambda what, part: None,
    *,
    data_dir: Path | None = None,
    stored: Study | None = None,
    keep: Callable[[Study], None] = lambda study: None,
) -> Study:
    """Make the trials and runs that are not in `stored`, and call `keep` after each."""
    found = stored or Study(environment(), {name: one.described for name, one in OPTIMISERS.items()})
    known = {run.key for run in found.runs}
    cells = [(name, kind, one) for name in sets for kind in ARCHITECTURES for one in OPTIMISERS.values()]
    # The outer loop is over seeds, so that an interrupted study has runs of all optimisers
    missing = [
        (cell, seed) for seed in range(seeds) for cell in cells if (cell[0], cell[1], cell[2].name, seed) not in known
    ]
    samples: dict[str, RaceSamples] = {}
    for done, ((name, kind, optimiser), seed) in enumerate(missing):
        problem = study_problem(name, kind)
        data = samples[name] = samples.get(name) or problem.load(data_dir)
        watch(f"{problem.title}, {optimiser.name}, seed {seed + 1}", done / len(missing))
        for trial in _missing_trials(found, name, kind, optimiser):
            seen = Crossings(problem, data)
            optimiser.train(problem, data, TUNING_SEED, trial.rate, seen.observe)
            steps = seen.found[-1].steps if len(seen.found) == len(LEVELS) else None
            loss = seen.loss if math.isfinite(seen.loss) else math.inf
            found = replace(found, trials=(*found.trials, replace(trial, steps=steps, loss=loss)))
            keep(found)
        rate = chosen_rate(found, name, kind, optimiser)
        # The run of the study with the chosen rate.
        seen = Crossings(problem, data)
        optimiser.train(problem, data, seed, rate, seen.observe)
        run = StudyRun(name, kind, optimiser.name, seed, rate, tuple(seen.found))
        found = replace(found, runs=(*found.runs, run))
        keep(found)
    return found


def _missing_trials(study: Study, data: str, architecture: str, optimiser: Optimiser) -> list[Trial]:
    known = {trial.rate for trial in _trials(study, data, architecture, optimiser)}
    return [
        Trial(data, architecture, optimiser.name, rate, None, math.inf) for rate in optimiser.grid if rate not in known
    ]


def _trials(study: Study, data: str, architecture: str, optimiser: Optimiser) -> list[Trial]:
    cell = data, architecture, optimiser.name
    return [trial for trial in study.trials if (trial.data, trial.architecture, trial.optimiser) == cell]


def chosen_rate(study: Study, data: str, architecture: str, optimiser: Optimiser) -> float | None:
    """Return the rate with the fewest steps to the lowest level; if none reaches it, that with the lowest loss.

    None if nothing is tuned.
    """
    trials = _trials(study, data, architecture, optimiser)
    if not trials:
        return None
    return min(trials, key=lambda trial: (math.inf if trial.steps is None else trial.steps, trial.loss)).rate
