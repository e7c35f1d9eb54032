"""One round of asynchronous PIAG: the work of a worker, the updates of the coordinator, the delay bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from lifted_bregman._no_graph import no_graph
from lifted_bregman.problem import LiftedProblem, LiftedState
from lifted_bregman.problem.curvature import PowerMemory, parameter_curvature, step_for
from lifted_bregman.solvers._persistent import PersistentState, sweep_variables
from lifted_bregman.solvers.finite import finite
from lifted_bregman.solvers.interface import Batch
from lifted_bregman.solvers.outcome import Diverged
from lifted_bregman.solvers.parameters import LayerTensors, accumulate, set_to_zero, zero_parameters
from lifted_bregman.solvers.schedules import as_schedule
from lifted_bregman.solvers.steps import CurvatureStep

if TYPE_CHECKING:
    from lifted_bregman.solvers.asynchronous_piag import AsynchronousPIAG, AsynchronousState


class Contribution(NamedTuple):
    """A worker's gradient and its Lipschitz constants."""

    gradient: LayerTensors
    """g_p = (1/s) Σ_{i in p} w_i ∇_Θ H_i."""
    curvature: dict[int, float]
    """The Lipschitz constants of the gradient by layer, (|p|/s) L_p; empty if the step sizes are given."""


class Fault(NamedTuple):
    """The first number of a round that is not finite."""

    worker: int
    """The worker whose gradient it is in; -1 for the parameters after an update."""
    layer: int
    update: int

    def diverged(self) -> Diverged:
        """The error that ends the run."""
        what = f"Θ_{self.layer}" if self.worker < 0 else f"the gradient of worker {self.worker} in Θ_{self.layer}"
        return Diverged(f"{what} is not finite at update {self.update}")


class Ledger:
    """Versions of Θ of each worker: that of its last gradient (its "part"), and that with which it computes now.

    Version k is Θ after k updates.  A part of version v_p has the age k - v_p in the update from Θ^k to Θ^{k+1}.  A
    worker is due if its part would be older than the bound.  It computes with a later version than that of its part, so
    that its next contribution is never too old, and waiting for all workers that are due always suffices.

    versions  of the parts; -1 for a part that does not exist yet, which counts as too old; changed in place
    update    k, the number of updates so far
    bound     K >= 0
    """

    def __init__(self, versions: list[int], update: int, bound: int) -> None:
        self.versions, self.update, self._bound = versions, update, bound
        self.handed = [update] * len(versions)

    def copy(self) -> Ledger:
        """A copy for trying an order of arrival, in which every worker computes with the latest version."""
        return Ledger(list(self.versions), self.update, self._bound)

    def due(self) -> list[int]:
        """The workers that the next update has to wait for."""
        return [p for p, v in enumerate(self.versions) if v < 0 or self.update - v > self._bound]

    def take(self, workers: Sequence[int]) -> int:
        """Records an update with new parts of these workers, which get its result; returns the largest age."""
        for p in workers:
            self.versions[p] = self.handed[p]
        delay = self.update - min(self.versions)
        self.update += 1
        for p in workers:
            self.handed[p] = self.update
        return delay


class Round:
    """One round, a fixed number of updates.  All workers start from one Θ; the last update waits for all workers."""

    def __init__(
        self, problem: LiftedProblem, state: AsynchronousState, batch: Batch, solver: AsynchronousPIAG
    ) -> None:
        self.problem, self.state, self.solver, self.updates = problem, state, solver, solver.round_updates
        self.rows = worker_rows(batch, solver.workers)
        self.ledger = Ledger(state.versions, state.updates, solver.delay_bound)
        self.fault: Fault | None = None
        self._total = len(batch)
        self._batches = [batch.slice(int(rows[0]), int(rows[-1]) + 1) for rows in self.rows]
        self._power: list[PowerMemory] = [{} for _ in self.rows]
        self._sum = zero_parameters(problem)
        self._point = problem.point(LiftedState(()), batch.X, batch.Y)  # only its dtype is used
        state.arrived = torch.zeros(self.updates, solver.workers, dtype=torch.bool)
        state.delays = torch.zeros(self.updates, dtype=torch.int64)
        state.at_bound = 0

    @no_graph
    def work(self, worker: int, version: int) -> Contribution:
        """Moves the worker's variables and computes its gradient, with the parameters in the model."""
        problem, solver, variables = self.problem, self.solver, self.state.variables
        assert variables is not None
        rows, own = self.rows[worker], self._batches[worker]
        memory = PersistentState(steps=version, power=self._power[worker])
        point = own.point(problem, variables.select(rows))
        sweep_variables(problem, point, solver.step_variable, memory, solver.variable_steps)
        variables.update(rows, point.state)
        share, step = len(rows) / self._total, solver.step_parameter
        gradient, curvature = zero_parameters(problem), {}
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
        theta: LayerTensors,
        hand: Callable[[Sequence[int], int], None],
        receive: Callable[[Sequence[int]], dict[int, Contribution]],
    ) -> None:
        """Updates `theta` through the round, or up to the first number that is not finite.

        hand     hand(workers, version) sends the present `theta` and its version to the workers
        receive  receive(workers) waits for the workers, or for any one worker if the list is empty, and returns
                 {worker: contribution}
        """
        state, ledger, everybody = self.state, self.ledger, range(len(self.rows))
        hand(everybody, ledger.update)
        for number in range(self.updates):
            # wait for contributions: all workers in the last update
            due, last, update = ledger.due(), number == self.updates - 1, ledger.update
            state.at_bound += any(ledger.versions[p] >= 0 for p in due)
            arrived = receive(everybody if last else due)
            state.delays[number] = ledger.take(list(arrived))
            # g_p and L_p of the workers that contributed
            for p, (gradient, curvature) in arrived.items():
                state.arrived[number, p] = True
                state.parts[p] = gradient
                for layer, bound in curvature.items():
                    state.curvature[p][layer] = max(bound, state.curvature[p].get(layer, 0.0))
                if not self._sound(gradient, p, update):
                    return
            # Θ ← prox_{tP}( Θ - t Σ_p g_p )
            self._move(theta, update)
            if not self._sound(theta, -1, update):
                return
            if not last:
                hand(list(arrived), ledger.update)

    def close(self) -> None:
        """Sets metrics and counters of the state, once parameters, parts and variables are in this process."""
        state, ledger = self.state, self.ledger
        state.updates = ledger.update
        state.metrics["delay"] = float(state.delays.max())
        state.metrics["delay_mean"] = float(state.delays.double().mean())
        state.metrics["at_bound"] = float(state.at_bound)
        for layer, own in self._sum.items():
            if own:
                state.term_metric("step")[layer] = self._step(layer, state.updates - 1)
        state.steps += 1

    def _sound(self, values: LayerTensors, worker: int, update: int) -> bool:
        """Whether all numbers are finite; otherwise the first layer with another one becomes the fault of the round."""
        for layer, own in values.items():
            if not all(map(finite, own.values())):
                self.fault = Fault(worker, layer, update)
                return False
        return True

    def _move(self, theta: LayerTensors, update: int) -> None:
        """Θ ← prox_{tP}( Θ - t Σ_p g_p ), with the sum in the order of p."""
        set_to_zero(self._sum)
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


def worker_rows(batch: Batch, workers: int) -> list[torch.Tensor]:
    """The rows of each worker: contiguous parts whose sizes differ by at most one."""
    return list(torch.arange(len(batch), device=batch.X.device).tensor_split(workers))
