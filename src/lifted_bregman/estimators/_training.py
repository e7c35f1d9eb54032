"""What the estimators need around `fit`: a network to begin with, a way to go on, and loud ends."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn.utils import skip_init

from lifted_bregman._generators import named_generator
from lifted_bregman.activations import Activation
from lifted_bregman.errors import DivergedError
from lifted_bregman.solvers import Callback, Outcome, Result, Run, Solver
from lifted_bregman.solvers._mirror import MirrorDescent


def dense_network(
    widths: Sequence[int], activations: Sequence[Activation], dtype: torch.dtype, seed: int
) -> nn.Sequential:
    """Linear maps with the activations between them: Glorot's uniform weights, a function of the seed, and biases 0."""
    modules: list[nn.Module] = []
    for layer, (width, wider) in enumerate(pairwise(widths), start=1):
        linear = skip_init(nn.Linear, width, wider, dtype=dtype)  # torch's own weights would use its global generator
        nn.init.xavier_uniform_(linear.weight, generator=named_generator(seed, "initialisation", layer))
        nn.init.zeros_(linear.bias)
        modules.append(linear)
        if layer <= len(activations):
            modules.append(activations[layer - 1].as_module())
    return nn.Sequential(*modules)


def start_at_mean(model: nn.Sequential, Y: Tensor, weights: Tensor | None) -> None:
    """The last bias at the mean target, so that targets far from 0 cost no epochs."""
    mean = Y.mean(0) if weights is None else weights.to(Y.dtype) @ Y / weights.sum()
    with torch.no_grad():
        model.get_parameter(f"{len(model) - 1}.bias").copy_(mean)


class TargetScale(NamedTuple):
    """Standardised targets: (Y - mean) / scale."""

    mean: Tensor
    """Of each output, (outputs,)."""
    scale: Tensor
    """The standard deviation of each output, (outputs,); 1 where all targets are equal."""

    @classmethod
    def of(cls, Y: Tensor, weights: Tensor | None) -> TargetScale:
        """Mean and standard deviation of targets (samples, outputs) in float64, each sample counted by its weight."""
        w = torch.ones(len(Y), dtype=Y.dtype) if weights is None else weights.double()
        w = w / w.sum()
        mean = w @ Y
        deviation = (w @ (Y - mean).square()).sqrt()
        # The deviation of n equal numbers is 0 but for the rounding of their mean.
        rounding = len(Y) * torch.finfo(Y.dtype).eps * mean.abs()
        return cls(mean, torch.where(deviation > rounding, deviation, 1.0))

    def restore(self, Z: Tensor) -> Tensor:
        """What the network predicts, in the units of the targets and the dtype of Z."""
        return (self.mean + self.scale * Z.double()).to(Z.dtype)


def as_learnt(Y: Tensor, scale: TargetScale | None, dtype: torch.dtype) -> Tensor:
    """Targets as the network learns them: standardised if there is a scale, numbers in `dtype`, labels as they are."""
    if not Y.is_floating_point():
        return Y
    return (Y if scale is None else (Y - scale.mean) / scale.scale).to(dtype)


def split(samples: int, fraction: float, labels: NDArray[Any] | None, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The samples to train on and those to validate on, labels in proportion where there are enough of each."""
    if labels is not None:
        counts = np.bincount(labels)
        counts = counts[counts > 0]
        if counts.min() < 2 or min(fraction, 1.0 - fraction) * samples < len(counts):
            labels = None
    train, other = train_test_split(np.arange(samples), test_size=fraction, stratify=labels, random_state=seed)
    return train, other


class Continuation(Callback):
    """Begins where an earlier run ended: at its epoch, and with its solver's state where that is of no sample.

    The order of the samples depends on seed and epoch, so that k runs of one epoch on the same samples are one run of
    k epochs, unless the solver's rate ends with the run.  It then goes on with that of the longer run.  A state with
    variables for all samples is of those samples, and begins anew with others.
    """

    def __init__(self, solver: Solver[Any], left: dict[str, Any] | None, *, ends: bool) -> None:
        self.solver = solver
        """As it was given: the run's own knows the run's length, which is another in each run."""
        self.ends = ends
        """Whether the rate may end with this run; not where nobody knows how many will follow."""
        self.left = left
        """What the last run left behind; None before the first."""
        self._portable = False

    def started(self, run: Run) -> None:
        self._portable = run.solver.minibatch and run.state.variables is None
        if self.left is None:
            return
        entries = run.state_dict() | {name: self.left[name] for name in ("epoch", "seconds", "work")}
        if self._portable and self.left["of"] == self.solver:
            entries["solver"] = self.left["solver"]
        run.load_state_dict(entries)
        if self.ends and run.source.batches is not None:
            # Earlier steps may have been on other samples, or by another solver: K = the state's steps + those ahead.
            done, ahead = run.state.steps, run.epochs - self.epochs
            run.solver = self.solver.planned(done + ahead * run.source.batches, run.epochs if done else ahead)

    def ended(self, run: Run) -> None:
        entries = {name: entry for name, entry in run.state_dict().items() if name not in ("start", "kept")}
        broken_off = run.batch > 0
        self.left = entries | {"epoch": run.epoch + broken_off, "batch": 0, "solver": None, "of": None}
        if self._portable:
            # The variables are those of the last batch, which the next one does not read.
            self.left |= {"solver": entries["solver"] | {"variables": None}, "of": self.solver}

    @property
    def epochs(self) -> int:
        """Epochs so far, one that was broken off included."""
        return 0 if self.left is None else int(self.left["epoch"]) - 1

    def forget_solver(self) -> None:
        """After parameters were put back that the solver's state does not belong to."""
        if self.left is not None:
            self.left |= {"solver": None, "of": None}


def seeks_lowest_objective(solver: Solver[Any]) -> bool:
    """Whether the parameters with the lowest objective are what the solver is after.

    Not where it keeps parameters simple without counting that in the objective, or has a last word after its last
    step: it would be undone.
    """
    if isinstance(solver, MirrorDescent):
        return not solver.penalties
    return type(solver).finish is Solver.finish


def report_end(result: Result) -> None:
    """Raises if the run diverged, warns if it ended before it should have."""
    if result.outcome is Outcome.DIVERGED:
        raise DivergedError(
            f"{result.message} Standardise the features, and targets of large variance, or choose another solver or "
            "smaller steps."
        )
    if result.outcome in (Outcome.INTERRUPTED, Outcome.STALLED):
        warnings.warn(result.message, ConvergenceWarning, stacklevel=5)
