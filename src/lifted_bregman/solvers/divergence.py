"""Decides when a run whose numbers are all finite has diverged: compares its objective with that of the start.

A row is *good* while its value is at most `GOOD` times the reference, the larger of the objective of the initial
parameters and the loss of a network whose outputs z_L are 0.  The second is for runs that start at a small objective,
even at 0: a network that is better than one of zeros has not diverged.  Some rows may be outside this range, for
example after the first steps with a large step size.  A run has diverged if its last row is outside, or if any row
exceeds `EXPLODED` times the reference.

A run that continues others on other samples, as a call of `partial_fit` does, may have one sample of tiny loss.  Its
reference is therefore at least that of the earlier runs (`Run.earlier`).  The objective at its own start counts for
good rows only: it may be that of parameters that already explode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lifted_bregman._no_graph import no_graph
from lifted_bregman.graph import Partition
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers.interface import Batch, Solver, SolverState
from lifted_bregman.solvers.outcome import Diverged
from lifted_bregman.solvers.parameters import LayerTensors, copy_parameters, overwrite, parameters_in_place

if TYPE_CHECKING:
    from lifted_bregman.solvers.loop import Run

GOOD = 10.0
"""The value of a good row is at most this many times the reference."""
EXPLODED = 1e12
"""A row above this many times the reference ends the run at once."""
_REMEDIES = {
    "step_size": "a smaller step_size",
    "learning_rate": "a smaller learning_rate",
    "step_parameter": "a smaller step_parameter",
    "step_variable": "a smaller step_variable",
    "dual_step": "a smaller dual_step",
    "step_rule": "a step_rule with smaller steps",
    "prox_weight": "a larger prox_weight",
}
"""Settings of solvers whose change makes steps smaller, and how to change them."""
_AT_ONCE = 4096  # samples evaluated together


@dataclass(frozen=True)
class ObjectiveReference:
    """The value that objectives are compared with."""

    value: float
    meaning: str
    """Where the value comes from, in words that follow the number in a message."""

    def times(self, value: float) -> float:
        """value / reference; 0 where the reference is 0, because then there is no ratio."""
        return value / self.value if self.value > 0.0 else 0.0


class DivergenceGuard:
    """Judges each row of a run, and keeps a copy of the parameters of the last good one.

    The first copy is of the parameters at construction.  The model's buffers, such as the running statistics of batch
    normalisation, are copied with the parameters.
    """

    def __init__(self, run: Run) -> None:
        self._copies: LayerTensors = copy_parameters(run.problem)
        self._buffers = {name: buffer.clone() for name, buffer in run.problem.model.named_buffers()}
        self.steps = run.state.steps
        """Steps taken when the copy was made."""
        self.epoch = int(run.history[-1]["epoch"]) if run.history else None
        """The epoch of the copy's row; None for parameters without a row."""
        self.behind = False
        """Whether the last row was not good, so that the copy is older than it."""
        self._reference = self.lasting = ObjectiveReference(0.0, "")
        """`lasting` is the reference for explosions, and for runs that continue this one."""

    def start(self, run: Run) -> None:
        """Computes the reference, from the row of the initial parameters if the run has one."""
        start = run.start or {}
        objective = start.get("objective", start.get("running_objective", math.inf))
        zero = zero_loss(run.problem, run.data)
        self._reference = self.lasting = objective_reference(objective, zero)
        if run.earlier is not None:
            self.lasting = max(run.earlier, objective_reference(math.inf, zero), key=_value)
            self._reference = max(self.lasting, self._reference, key=_value)

    def judge(self, run: Run, row: Mapping[str, float]) -> None:
        """Keeps the parameters of a good row; raises `Diverged` for a row that is not finite or has exploded.

        `require_finite` comes first, in all processes.
        """
        name = judged_entry(row)
        if not math.isfinite(row[name]):
            raise Diverged(f"the {name.replace('_', ' ')} is {row[name]} after epoch {run.epoch}")
        if self._times(run, row, self.lasting) > EXPLODED:
            raise self._grown(run, row, self.lasting)
        times = self._times(run, row, self._reference)
        if times <= GOOD:
            self._keep(run)
        self.behind = times > GOOD

    def judge_end(self, run: Run) -> None:
        """Raises `Diverged` if the last row of a run that took all its steps is not good."""
        if self.behind:
            row = run.history[-1]
            raise self._grown(run, row, self._reference)

    def restore(self, run: Run) -> None:
        """Writes the copy back into the model."""
        overwrite(parameters_in_place(run.problem), self._copies)
        for name, buffer in run.problem.model.named_buffers():
            buffer.copy_(self._buffers[name])

    def state_dict(self, partition: Partition) -> dict[str, Any]:
        """The copy of this rank's terms, and when it was made.  Tensors are not copied again."""
        parameters = {layer: own for layer, own in self._copies.items() if layer in partition.terms}
        kept = {"steps": self.steps, "epoch": self.epoch, "behind": self.behind, "parameters": parameters}
        # Where processes share the layers no buffer changes.
        return kept | ({"buffers": self._buffers} if self._buffers and partition.count == 1 else {})

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Restores the copy from `entries`, which `state_dict` returned, for the layers that they contain."""
        self.steps, self.epoch, self.behind = entries["steps"], entries["epoch"], entries["behind"]
        overwrite({layer: self._copies[layer] for layer in entries["parameters"]}, entries["parameters"])
        for name, buffer in entries.get("buffers", {}).items():
            self._buffers[name].copy_(buffer)

    def _keep(self, run: Run) -> None:
        overwrite(self._copies, parameters_in_place(run.problem))
        for name, buffer in run.problem.model.named_buffers():
            self._buffers[name].copy_(buffer)
        self.steps, self.epoch = run.state.steps, run.epoch

    def _times(self, run: Run, row: Mapping[str, float], reference: ObjectiveReference) -> float:
        """The row's value over the reference; for a stream's running mean the smaller of it and the last batch."""
        if judged_entry(row) == "objective":
            samples = 0 if run.meter is not None else len(run.data)
            return reference.times(reached_value(row, run.state, samples))
        assert run.meter is not None
        return reference.times(min(row["running_objective"], run.meter.last))

    def _grown(self, run: Run, row: Mapping[str, float], reference: ObjectiveReference) -> Diverged:
        name, times = judged_entry(row), self._times(run, row, reference)
        return Diverged(
            f"the {name.replace('_', ' ')} is {row[name]:.4g} after epoch {int(row['epoch'])}, {times:.3g} times the "
            f"{reference.value:.4g} {reference.meaning}; the model has {self._kept_parameters()}; {remedy(run.solver)}"
        )

    def _kept_parameters(self) -> str:
        """Which parameters the copy has, in words."""
        if self.epoch is None:
            return "its initial parameters" if self.steps == 0 else f"the parameters of step {self.steps}"
        return f"the parameters of epoch {self.epoch}"


def remedy(solver: Solver[Any]) -> str:
    """What to do about an objective that has grown too much, by the names of the solver's own settings."""
    name, settings = type(solver).__name__, vars(solver)
    ways = [way for setting, way in _REMEDIES.items() if setting in settings]
    if not ways and isinstance(settings.get("solver"), Solver):
        return remedy(settings["solver"])
    return f"give {name} {' or '.join(ways)}" if ways else "standardise the data, or choose another solver"


def _value(reference: ObjectiveReference) -> float:
    return reference.value


def judged_entry(row: Mapping[str, float]) -> str:
    """The name of the entry by which a row is judged: a stream that is not evaluated has a running objective only."""
    return "objective" if "objective" in row else "running_objective"


def objective_reference(start: float, zero: float) -> ObjectiveReference:
    """The larger of the objective at the start and the loss of outputs 0; one that is not finite is left out."""
    known = {"at the start": start, "of a network with outputs 0": zero}
    finite = {meaning: value for meaning, value in known.items() if math.isfinite(value)}
    meaning = max(finite, key=lambda name: finite[name], default="")
    return ObjectiveReference(finite.get(meaning, 0.0), meaning)


@no_graph
def zero_loss(problem: LiftedProblem, data: Batch) -> float:
    """The (weighted) mean over all samples of ℓ(y, 0); every process has all targets."""
    last, total = problem.network[problem.depth], 0.0
    for begin in range(0, len(data), _AT_ONCE):
        piece = data.slice(begin, begin + _AT_ONCE)
        values = problem.weight(problem.depth) * last.bregman(piece.Y, torch.zeros_like(piece.Y))
        total += float((values if piece.weights is None else values * piece.weights).sum())
    return total / len(data)


def reached_value(row: Mapping[str, float], state: SolverState, samples: int) -> float:
    """The objective; where the solver has variables for all samples, their energy if it is lower.

    A solver of the lifted problem decreases that energy, while the network's own objective may rise for long.
    """
    variables = state.variables
    if variables is None or not len(variables) or len(variables[1]) != samples:
        return row["objective"]
    energy = row.get("energy", math.inf)
    return min(row["objective"], energy) if math.isfinite(energy) else row["objective"]
