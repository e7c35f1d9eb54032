"""Parts of the estimators' training: initial network, target scale, continuation, errors and warnings at the end."""

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
from lifted_bregman.solvers.divergence import ObjectiveReference
from lifted_bregman.solvers.mirror_descent import MirrorDescent


def dense_network(
    widths: Sequence[int], activations: Sequence[Activation], dtype: torch.dtype, seed: int
) -> nn.Sequential:
    """Return linear maps with activations between them: Glorot's uniform weights drawn from the seed, biases 0."""
    modules: list[nn.Module] = []
    for layer, (width, wider) in enumerate(pairwise(widths), start=1):
        linear = skip_init(nn.Linear, width, wider, dtype=dtype)  # nn.Linear would draw from the global generator
        nn.init.xavier_uniform_(linear.weight, generator=named_generator(seed, "initialisation", layer))
        nn.init.zeros_(linear.bias)
        modules.append(linear)
        if layer <= len(activations):
            modules.append(activations[layer - 1].as_module())
    return nn.Sequential(*modules)


def start_at_mean(model: nn.Sequential, Y: Tensor, weights: Tensor | None) -> None:
    """Set the last bias to the mean target, so that training need not learn an offset."""
    mean = Y.mean(0) if weights is None else weights.to(Y.dtype) @ Y / weights.sum()
    with torch.no_grad():
        model.get_parameter(f"{len(model) - 1}.bias").copy_(mean)


class TargetScale(NamedTuple):
    """Standardised targets: (Y - mean) / scale."""

    mean: Tensor
    """The mean of each output, (outputs,)."""
    scale: Tensor
    """The standard deviation of each output, (outputs,); 1 where all targets are equal."""

    @classmethod
    def of(cls, Y: Tensor, weights: Tensor | None) -> TargetScale:
        """Return weighted mean and standard deviation of targets (samples, outputs), in float64."""
        w = torch.ones(len(Y), dtype=Y.dtype) if weights is None else weights.double()
        w = w / w.sum()
        mean = w @ Y
        deviation = (w @ (Y - mean).square()).sqrt()
        # The computed deviation of n equal numbers is of the size of rounding errors: count it as 0.
        rounding = len(Y) * torch.finfo(Y.dtype).eps * mean.abs()
        return cls(mean, torch.where(deviation > rounding, deviation, 1.0))

    def restore(self, Z: Tensor) -> Tensor:
        """Return predictions in the units of the targets and the dtype of Z: mean + scale · Z."""
        return (self.mean + self.scale * Z.double()).to(Z.dtype)


def standardise(Y: Tensor, scale: TargetScale | None, dtype: torch.dtype) -> Tensor:
    """Return the training targets: standardised if there is a scale, numbers in `dtype`, labels unchanged."""
    if not Y.is_floating_point():
        return Y
    return (Y if scale is None else (Y - scale.mean) / scale.scale).to(dtype)


def split(samples: int, fraction: float, labels: NDArray[Any] | None, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Split samples into training and validation indices, stratified by label if each label has enough samples."""
    if labels is not None:
        counts = np.bincount(labels)
        counts = counts[counts > 0]
        if counts.min() < 2 or min(fraction, 1.0 - fraction) * samples < len(counts):
            labels = None
    train, other = train_test_split(np.arange(samples), test_size=fraction, stratify=labels, random_state=seed)
    return train, other


class Continuation(Callback):
    """Starts a run at the epoch of the last one, with the solver's state unless it has a variable for each sample.

    The order of the samples depends on seed and epoch: k runs of one epoch on the same samples are one run of k epochs.
    If the solver's step sizes fall to 0 at the end of a run, they follow the schedule of the longer run.
    """

    def __init__(self, solver: Solver[Any], left: dict[str, Any] | None, *, ends: bool) -> None:
        self.solver = solver
        """The solver as given; `run.solver` is planned for the length of one run."""
        self.ends = ends
        """Whether the step sizes may fall to 0 at the end of this run; False for `partial_fit`."""
        self.left = left
        """State at the end of the last run; None before the first."""
        self._portable = False

    def started(self, run: Run) -> None:
        self._portable = run.solver.minibatch and run.state.variables is None
        if not self.ends:
            run.earlier = self._earlier_reference(run)
        if self.left is None:
            return
        entries = run.state_dict() | {name: self.left[name] for name in ("epoch", "seconds", "work")}
        if self._portable and self.left["of"] == self.solver:
            entries["solver"] = self.left["solver"]
        run.load_state_dict(entries)
        if self.ends and run.source.batches is not None:
            # The planned length is K = steps in the solver's state + steps of this run; earlier runs may have had other
            # samples or another solver.
            done, ahead = run.state.steps, run.epochs - self.epochs
            run.solver = self.solver.planned(done + ahead * run.source.batches, run.epochs if done else ahead)

    def _earlier_reference(self, run: Run) -> ObjectiveReference:
        """The least reference for divergence of a call of `partial_fit`: the largest of all calls so far.

        A call may have one sample whose target is near the mean, so that outputs 0 have nearly no loss.  For numbers
        it is therefore at least ½ for each output, the mean loss of outputs 0 where targets are standardised.
        """
        floor = 0.0 if run.classify else 0.5 * run.data.Y[0].numel() * run.problem.weight(run.problem.depth)
        value = max(floor, 0.0 if self.left is None else self.left.get("reference", 0.0))
        return ObjectiveReference(value, "of the calls of partial_fit so far")

    def ended(self, run: Run) -> None:
        entries = {name: entry for name, entry in run.state_dict().items() if name not in ("start", "kept")}
        broken_off = run.batch > 0
        self.left = entries | {"epoch": run.epoch + broken_off, "batch": 0, "solver": None, "of": None}
        if run.reference is not None:
            self.left["reference"] = run.reference.value
        if self._portable:
            # The next run does not read the variables of the last batch.
            self.left |= {"solver": entries["solver"] | {"variables": None}, "of": self.solver}

    @property
    def epochs(self) -> int:
        """Number of epochs so far, an interrupted one included."""
        return 0 if self.left is None else int(self.left["epoch"]) - 1

    def forget_solver(self) -> None:
        """Discard the solver's state, after parameters of another epoch were restored."""
        if self.left is not None:
            self.left |= {"solver": None, "of": None}


def seeks_lowest_objective(solver: Solver[Any]) -> bool:
    """Whether the solver aims at the lowest objective, so that the parameters of the best epoch may be restored.

    False for solvers that regularise outside the objective, and for those with a final step, which would be undone.
    """
    if isinstance(solver, MirrorDescent):
        return not solver.penalties
    return type(solver).finish is Solver.finish


def report_end(result: Result) -> None:
    """Raise an error if the run diverged; warn if it was interrupted or stalled."""
    if result.outcome is Outcome.DIVERGED:
        raise DivergedError(
            f"{result.message} Standardise the features, and targets of large variance, or choose another solver or "
            "smaller steps."
        )
    if result.outcome in (Outcome.INTERRUPTED, Outcome.STALLED):
        warnings.warn(result.message, ConvergenceWarning, stacklevel=5)
