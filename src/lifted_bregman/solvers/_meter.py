"""Running means over an epoch: the objective of each batch at the parameters before its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.problem import energies
from lifted_bregman.problem.blocks import hidden_layers
from lifted_bregman.problem.point import Point

if TYPE_CHECKING:
    from lifted_bregman.problem import LiftedProblem
    from lifted_bregman.solvers.interface import Batch


class Meter:
    """Means of objective and accuracy over the samples of an epoch so far.

        running_objective = Σ_b |b| F_b(Θ_b) / Σ_b |b|        Θ_b the parameters before the step on batch b

    A solver whose step computes a forward pass reports it by `see`, `see_forward` or `see_outputs`, at no extra cost;
    the first report of a step counts.  For other solvers the run evaluates the batch before the step.

    classify  whether correct predictions are counted too
    """

    def __init__(self, classify: bool) -> None:
        self.classify = classify
        self.from_steps = False
        """Whether the solver's steps report their forward passes."""
        self._fresh = False
        self._batch: tuple[Tensor | float, Tensor | float, int] = (0.0, 0.0, 0)
        self.last = 0.0
        """F_b(Θ_b) of the last batch b."""
        self.start_epoch()

    def start_epoch(self) -> None:
        """Sets the sums to 0."""
        self._objective, self._right, self._samples = 0.0, 0.0, 0

    def start_step(self, measure: Callable[[], Mapping[str, float]], samples: int) -> None:
        """Before a step; `measure` evaluates its samples, unless the solver has reported an earlier forward pass."""
        self._fresh = True
        if not self.from_steps:
            found = measure()
            self._batch = (found["objective"], found.get("accuracy", 0.0) * samples, samples)

    @no_graph
    def see(self, problem: LiftedProblem, point: Point) -> None:
        """Reports a forward pass by its point."""
        if not self._fresh:
            return
        self._fresh, self.from_steps = False, True
        right = hits(point.z(problem.depth), point.x[-1]).sum() if self.classify else 0.0
        self._batch = (energies.objective(problem, point), right, point.samples)

    def see_forward(self, problem: LiftedProblem, batch: Batch, x: Mapping[int, Tensor], z: Tensor) -> None:
        """Reports a forward pass by its variables x_l and outputs z_L."""
        if self._fresh:
            self.see(problem, _Known(problem, batch, x, z))

    def see_outputs(self, objective: Tensor, z: Tensor, Y: Tensor) -> None:
        """Reports a forward pass by its objective and outputs z_L."""
        if self._fresh:
            self._fresh, self.from_steps = False, True
            right = hits(z, Y).sum() if self.classify else 0.0
            self._batch = (objective, right, len(Y))

    def end_step(self) -> None:
        """Adds the batch to the sums; copies its numbers from the device."""
        objective, right, samples = self._batch
        self._fresh, self.last = False, float(objective)
        self._objective += self.last * samples
        self._right += float(right)
        self._samples += samples

    def row(self) -> dict[str, float]:
        """The means so far; {} before the first step of the epoch."""
        if not self._samples:
            return {}
        found = {"running_objective": self._objective / self._samples}
        return found | ({"running_accuracy": self._right / self._samples} if self.classify else {})

    def state_dict(self) -> dict[str, Any]:
        """The sums of the epoch."""
        return {"objective": self._objective, "right": self._right, "samples": self._samples, "last": self.last}

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` returned."""
        self._objective, self._right = entries["objective"], entries["right"]
        self._samples, self.last = entries["samples"], entries["last"]


class _Known(Point):
    """The point of a forward pass that was computed elsewhere: variables and outputs are given."""

    __slots__ = ()

    def __init__(self, problem: LiftedProblem, batch: Batch, x: Mapping[int, Tensor], z: Tensor) -> None:
        variables = [x[layer] for layer in hidden_layers(problem.depth)]
        super().__init__(problem.network, (batch.X, *variables, batch.Y), None, batch.weights, batch.shard)
        self._z[problem.depth] = z


def hits(z: Tensor, Y: Tensor) -> Tensor:
    """Whether each sample's largest output is that of its class, (samples,); σ_L preserves the order of z."""
    return z.flatten(1).argmax(1) == Y.flatten(1).argmax(1)
