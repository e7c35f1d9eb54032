"""One round of asynchronous PIAG: what a worker does, what the coordinator does with it, and the bound on delays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from lifted_bregman._no_graph import no_graph
from lifted_bregman.problem import LiftedProblem, LiftedState
from lifted_bregman.problem.curvature import PowerMemory, parameter_curvature, step_for
from lifted_bregman.solvers._anchor import Anchor, accumulate, clear, copied
from lifted_bregman.solvers._finite import Diverged, finite
from lifted_bregman.solvers._interface import Batch
from lifted_bregman.solvers._persistent import PersistentState, sweep_variables
from lifted_bregman.solvers.schedules import as_schedule
from lifted_bregman.solvers.steps import CurvatureStep

if TYPE_CHECKING:
    from lifted_bregman.solvers.asynchronous_piag import AsynchronousPIAG, AsynchronousState


class Contribution(NamedTuple):
    """What a worker hands in."""

    gradient: Anchor
    """g_p = (1/s) Σ_{i in p} w_i ∇_Θ H_i."""
    curvature: dict[int, float]
    """Its Lipschitz constant by layer, (|p|/s) L_p; empty where step sizes are given."""


class Fault(NamedTuple):
    """Where numbers were first not finite."""

    worker: int
    """-1 for the parameters themselves, after their update."""
    layer: int
    update: int

    def diverged(self) -> Diverged:
        """As the error that ends a run."""
        what = f"Θ_{self.layer}" if self.worker < 0 else f"the gradient of worker {self.worker} in Θ_{self.layer}"
        return Diverged(f"{what} is not finite at update {self.update}")


class Ledger:
    """Which version of Θ each worker's part was computed with, and which one each worker has been handed since.

    Version k is Θ after k updates.  Part p of version v_p is k - v_p updates old in the update that makes Θ^{k+1} of
    Θ^k.  A worker is due where its part would be older than the bound.  As it has been handed a later version than that
    of its part, what it hands in is never too old itself; so waiting for all who are due is always enough.

    versions  of the parts, -1 where there is none yet, which counts as too old; changed in place
    update    k, the updates made so far
    bound     K >= 0
    """

    def __init__(self, versions: list[int], update: int, bound: int) -> None:
        self.versions, self.update, self._bound = versions, update, bound
        self.handed = [update] * len(versions)

    def copy(self) -> Ledger:
        """One to try an order on, with workers that have just been handed the latest version."""
        return Ledger(list(self.versions), self.update, self._bound)

    def due(self) -> list[int]:
        """Those without whom the next update must not be made."""
        return [p for p, v in enumerate(self.versions) if v < 0 or self.update - v > self._bound]

    def take(self, workers: Sequence[int]) -> int:
        """Makes the next update with new parts of these workers, who get its result; the age of the oldest part."""
        for p in workers:
            self.versions[p] = self.handed[p]
        delay = self.update - min(self.versions)
        self.update += 1
        for p in workers:
            self.handed[p] = self.update
        return delay


class Round:
    """A fixed number of updates, from a Θ that all workers are handed to one in which the work of all is done."""

    def __init__(
        self, problem: LiftedProblem, state: AsynchronousState, batch: Batch, solver: AsynchronousPIAG
    ) -> None:
        self.problem, self.state, self.solver, self.updates = problem, state, solver, solver.round_updates
        self.rows = cut(batch, solver.workers)
        self.ledger = Ledger(state.versions, state.updates, solver.delay_bound)
        self.fault: Fault | None = None
        self._total = len(batch)
        self._batches = [batch.slice(int(rows[0]), int(rows[-1]) + 1) for rows in self.rows]
        self._power: list[PowerMemory] = [{} for _ in self.rows]
        self._sum = blank(problem)
        self._point = problem.point(LiftedState(()), batch.X, batch.Y)  # of which the dtype is read
        state.arrived = torch.zeros(self.updates, solver.workers, dtype=torch.bool)
        state.delays = torch.zeros(self.updates, dtype=torch.int64)
        state.at_bound = 0

    @no_graph
    def work(self, worker: int, version: int) -> Contribution:
        """Moves the worker's variables and takes its gradient, both with the parameters that the model has now."""
        problem, solver, variables = self.problem, self.solver, self.state.variables
        assert variables is not None
        rows, own = self.rows[worker], self._batches[worker]
        memory = PersistentState(steps=version, power=self._power[worker])
        point = own.point(problem, variables.select(rows))
        sweep_variables(problem, point, solver.step_variable, memory, solver.variable_steps)
        variables.update(rows, point.state)
        share, step = len(rows) / self._total, solver.step_parameter
        gradient, curvature = blank(problem), {}
        for layer, into in gradient.items():
            if not into:
                continue
            problem.accumulate_parameter_gradient(point, layer, into, scale=share)
            if isinstance(step, CurvatureStep):
                curvature[layer] = share * parameter_curvature(problem, point, layer, memory.power, step.upper)
        return Contribution(gradient, curvature)

    @no_graph
    def coordinate(
        self,
        theta: Anchor,
        hand: Callable[[Sequence[int], int], None],
        receive: Callable[[Sequence[int]], dict[int, Contribution]],
    ) -> None:
        """Makes the updates of the round in `theta`, up to the first number that is not finite.

        hand     gives workers `theta` as it is now, and the number of its version
        receive  waits for the workers it is given, or for anyone where it is given none, and returns what they hand in
        """
        state, ledger, everybody = self.state, self.ledger, range(len(self.rows))
        hand(everybody, ledger.update)
        for number in range(self.updates):
            due, last, update = ledger.due(), number == self.updates - 1, ledger.update
            state.at_bound += any(ledger.versions[p] >= 0 for p in due)
            arrived = receive(everybody if last else due)
            state.delays[number] = ledger.take(list(arrived))
            for p, (gradient, curvature) in arrived.items():
                state.arrived[number, p] = True
                state.parts[p] = gradient
                for layer, bound in curvature.items():
                    state.curvature[p][layer] = max(bound, state.curvature[p].get(layer, 0.0))
                if not self._sound(gradient, p, update):
                    return
            self._move(theta, update)
            if not self._sound(theta, -1, update):
                return
            if not last:
                hand(list(arrived), ledger.update)

    def close(self) -> None:
        """What is left to do when `theta` is in the model, and parts, ledger and variables are here."""
        state, ledger = self.state, self.ledger
        state.updates = ledger.update
        state.metrics["delay"] = float(state.delays.max())
        state.metrics["delay_mean"] = float(state.delays.double().mean())
        state.metrics["at_bound"] = float(state.at_bound)
        for layer, own in self._sum.items():
            if own:
                state.term_metric("step")[layer] = self._step(layer, state.updates - 1)
        state.steps += 1

    def _sound(self, values: Anchor, worker: int, update: int) -> bool:
        """Whether all is finite; the first layer that is not becomes the fault of the round."""
        for layer, own in values.items():
            if not all(map(finite, own.values())):
                self.fault = Fault(worker, layer, update)
                return False
        return True

    def _move(self, theta: Anchor, update: int) -> None:
        """Θ ← prox_{tP}( Θ - t Σ_p g_p ), with the sum in the order of p."""
        clear(self._sum)
        for part in self.state.parts:
            accumulate(self._sum, part, 1.0)
        for layer, own in theta.items():
            if not own:
                continue
            t = self._step(layer, update)
            for name, value in own.items():
                value.add_(self._sum[layer][name], alpha=-t)
            if self.problem.has_parameter_prox(layer):
                for name, value in self.problem.parameter_prox(layer, own, t).items():
                    own[name].copy_(value)

    def _step(self, layer: int, update: int) -> float:
        step = self.solver.step_parameter
        if not isinstance(step, CurvatureStep):
            return as_schedule(step, "step_parameter").value(update)
        bound = sum(own.get(layer, 0.0) for own in self.state.curvature)
        return step_for(step.factor, (2.0 * self.solver.delay_bound + 1.0) * bound, self._point)


def cut(batch: Batch, workers: int) -> list[torch.Tensor]:
    """The rows of each worker: contiguous, and at most one more in one part than in another."""
    return list(torch.arange(len(batch), device=batch.X.device).tensor_split(workers))


def blank(problem: LiftedProblem) -> Anchor:
    """Zeros in the shapes of the parameters."""
    anchor = copied(problem)
    clear(anchor)
    return anchor
