"""The time to a target objective on a deep network: two processes that share its layers, and one with both cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman import data
from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.experiments.environment import threads
from lifted_bregman.losses import CrossEntropy
from lifted_bregman.problem import LiftedProblem, lift
from lifted_bregman.solvers import Callback, CurvatureStep, GramSweep, Outcome, PipelinedSweep, Run, Solver
from lifted_bregman.solvers.baselines import Adam
from lifted_bregman.training.fit import fit
from lifted_bregman_lab.scale.results import Arrival

DATA = "mnist-1k"
DEPTH, WIDTH, CLASSES, BATCH = 20, 784, 10, 200
OBJECTIVE = 0.1
"""The target: mean cross-entropy of the training set, in nats.  An untrained network has about log 10 = 2.3."""
EPOCHS = 40
"""The most epochs of a run to the target."""


@dataclass(frozen=True)
class Competitor:
    """A solver and its processes; a single process uses both cores."""

    solver: Callable[[], Solver[Any]]
    parallel: Parallel | None = None


_LONG = CurvatureStep(1.9, upper=False)  # the steps of the pipelined sweep whose times are stored

COMPETITORS: Mapping[str, Competitor] = {
    "Gram sweep, one process": Competitor(GramSweep),
    "Gram sweep, layers shared": Competitor(lambda: GramSweep(micro_batches=4), Parallel(layer=2)),
    "pipelined sweep, layers shared": Competitor(lambda: PipelinedSweep(_LONG, _LONG), Parallel(layer=2)),
    "Adam (1e-4), one process": Competitor(lambda: Adam(1e-4)),
}


class Until(Callback):
    """Ends a run whose objective is at most the target."""

    everywhere = True
    reads_parameters = False

    def __init__(self, objective: float) -> None:
        self.objective = objective

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        if row["objective"] <= self.objective:
            run.stop(Outcome.STOPPED, "The target is reached.")


def approach(name: str, samples: tuple[Tensor, Tensor], seed: int, epochs: int = EPOCHS, depth: int = DEPTH) -> Arrival:
    """Run a competitor to the target, or for all epochs."""
    competitor = COMPETITORS[name]
    problem = deep_network(samples[0].shape[1], seed, depth)
    with threads(2):
        result = fit(
            problem,
            samples,
            competitor.solver(),
            epochs=epochs,
            batch_size=BATCH,
            seed=seed,
            callbacks=[Until(OBJECTIVE)],
            parallel=competitor.parallel,
        )
    return Arrival(name, [(row["epoch"], row["seconds"], row["objective"]) for row in result.history])


def deep_network(inputs: int, seed: int, depth: int = DEPTH) -> LiftedProblem:
    """Return ReLU layers with weights that preserve the size of signals, and a last layer of classes."""
    torch.manual_seed(seed)
    widths = [inputs, *[WIDTH] * (depth - 1), CLASSES]
    modules: list[nn.Module] = []
    for number in range(depth):
        linear = nn.Linear(widths[number], widths[number + 1])
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        modules += [linear, nn.ReLU()]
    return lift(nn.Sequential(*modules[:-1]), loss=CrossEntropy())


def samples_of(folder: Path | None, progress: data.DownloadProgress | None = None) -> tuple[Tensor, Tensor]:
    """Return images as rows, and their labels."""
    samples = data.load(DATA, data_dir=folder, progress=progress).train
    return samples.X, samples.y
