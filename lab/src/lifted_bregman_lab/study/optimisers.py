"""The eight optimisers of the study, each with its grid of rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from lifted_bregman import lifted_backward
from lifted_bregman.solvers import (
    Callback,
    GramSweep,
    ImplicitSGD,
    Majorised,
    Outcome,
    Run,
    Solver,
)
from lifted_bregman.training import fit
from lifted_bregman_lab.race.opponents import OPPONENTS, Opponent, Trainer
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.runs import BackpropRun
from lifted_bregman_lab.race.samples import RaceSamples

Observe = Callable[[nn.Module, int], bool]
"""Called with the network and the number of steps; returns True to end the run."""
PER_EPOCH = 2
"""Observations of a run in each epoch."""


@dataclass(frozen=True)
class Optimiser:
    """One way to train a network.

    Args:
        name: in tables.
        title: its settings, the same for all networks.
        grid: rates to choose from, ascending; empty if nothing is tuned.
        solver: a solver of the library; None for an opponent.
        opponent: an opponent of the race; None for a solver.
    """

    name: str
    title: str
    grid: tuple[float, ...] = ()
    solver: Solver[Any] | None = None
    opponent: Opponent | None = None

    @property
    def described(self) -> str:
        """The settings that are stored with the rows, which are the repr of the solver or the title."""
        return self.title if self.solver is None else repr(self.solver)

    def train(
        self, problem: RaceProblem, data: RaceSamples, seed: int, rate: float | None, observe: Observe
    ) -> nn.Module:
        """Train from the weights of a seed until `observe` returns True, or to the last epoch."""
        epochs = problem.epochs("short")
        if self.solver is None:
            assert rate is not None and self.opponent is not None
            return _train_opponent(BackpropRun(problem, data, epochs, seed, self.opponent, rate), observe)
        model = problem.build(seed, data)
        observer = _Observer(observe, -(-len(data.X) // problem.batch_size))
        options: dict[str, Any] = {"epochs": epochs, "batch_size": problem.batch_size, "record_every": epochs}
        fit(problem.lifted(model, data), (data.X, data.Y), self.solver, seed=seed, callbacks=[observer], **options)
        return model


def _due(step: int, per_epoch: int) -> bool:
    """Whether a step ends one of the `PER_EPOCH` equal parts of an epoch."""
    return step * PER_EPOCH // per_epoch > (step - 1) * PER_EPOCH // per_epoch


def _train_opponent(run: BackpropRun, observe: Observe) -> nn.Module:
    per_epoch = run.steps // run.epochs
    enough = observe(run.model, 0)
    for step in range(1, run.steps + 1):
        run.advance(step)
        if enough or run.done < step:
            break
        enough = _due(step, per_epoch) and observe(run.model, step)
    return run.model


class _Observer(Callback):
    """Observes the network before the first step and `PER_EPOCH` times in each epoch."""

    def __init__(self, observe: Observe, per_epoch: int) -> None:
        self._observe, self._per_epoch = observe, per_epoch

    def started(self, run: Run) -> None:
        self._observe(run.problem.model, 0)

    def stepped(self, run: Run) -> None:
        step = run.state.steps
        if _due(step, self._per_epoch) and self._observe(run.problem.model, step):
            run.stop(Outcome.FINISHED, "The lowest level is reached.")


def _lifted_sgd(problem: RaceProblem, model: nn.Module, rate: float, steps: int) -> Trainer:
    """SGD with momentum and the signals of `lb.lifted_backward`."""
    make = OPPONENTS["sgd-momentum"].make
    assert make is not None
    return make(problem, lifted_backward(model), rate, steps)


_ADAPTIVE = (1e-3, 3e-3, 1e-2)
_MOMENTUM = (1e-2, 3e-2, 1e-1)
_LIFTED_SGD = Opponent("lifted-sgd", "SGD with the signals of lb.lifted_backward", _MOMENTUM, _lifted_sgd)
OPTIMISERS: Mapping[str, Optimiser] = {
    optimiser.name: optimiser
    for optimiser in (
        Optimiser("GramSweep", "`lb.GramSweep()`, not tuned", solver=GramSweep()),
        Optimiser(
            "ImplicitSGD",
            "`lb.ImplicitSGD(0.1, inner_steps=5, reading=Majorised())`, not tuned",
            solver=ImplicitSGD(0.1, inner_steps=5, reading=Majorised()),
        ),
        Optimiser(
            "lifted AdamW",
            "AdamW with the signals of `lb.lifted_backward`, weight decay 0.01, cosine",
            _ADAPTIVE,
            opponent=OPPONENTS["lifted-adamw"],
        ),
        Optimiser(
            "lifted SGD",
            "SGD with the signals of `lb.lifted_backward`, momentum 0.9, cosine",
            _MOMENTUM,
            opponent=_LIFTED_SGD,
        ),
        Optimiser("AdamW", "weight decay 0.01, cosine", _ADAPTIVE, opponent=OPPONENTS["adamw"]),
        Optimiser("SGD", "momentum 0.9, cosine", _MOMENTUM, opponent=OPPONENTS["sgd-momentum"]),
        Optimiser("Adam", "constant rate", (3e-4, 1e-3, 3e-3), opponent=OPPONENTS["adam"]),
        Optimiser(
            "Muon",
            "for matrices, AdamW for the rest, weight decay 0.01, cosine",
            _ADAPTIVE,
            opponent=OPPONENTS["muon"],
        ),
    )
}
