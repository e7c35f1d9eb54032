"""The ranks of a run as `fit` uses them: their messages, and checks that all ranks have the same arguments."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lifted_bregman.distributed.environment import launched, process_info
from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.graph.inputs import input_tensors
from lifted_bregman.problem import Border, LiftedProblem
from lifted_bregman.solvers import (
    Agreement,
    AsynchronousPIAG,
    Batch,
    DataRanks,
    ImplicitParallel,
    ModelAveraging,
    Solver,
)

if TYPE_CHECKING:
    from lifted_bregman.distributed.world import World


class RunRanks:
    """The ranks of a run in one process; `WorldRanks` are those of several."""

    def __init__(self) -> None:
        self.ranks = DataRanks()
        self.agreement = Agreement()
        self.attempt = 0
        """How many times the run was started again after processes were lost."""

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and calls the callbacks."""
        return self.agreement.rank == 0

    def with_workers(self, solver: Solver[Any]) -> Solver[Any]:
        """The solver for these ranks.  A solver of several workers, such as `ModelAveraging`, gets one on each rank."""
        return solver

    def border(self, problem: LiftedProblem, data: Batch) -> Border:
        """The exchange of variables and signals between ranks that hold different layers."""
        return problem.border

    def broadcast(self, number: int) -> int:
        """The number that rank 0 gives."""
        return number

    def largest(self, number: int) -> int:
        """The largest number that any rank gives."""
        return number

    def require_same(self, problem: LiftedProblem, settings: str, *batches: Batch | None) -> None:
        """Copies the parameters of rank 0 to all ranks; SettingError if their data or settings differ."""

    @contextmanager
    def errors_shared(self) -> Iterator[None]:
        """Raises an error of one rank on all ranks.  No messages may be sent within the block."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        self.agreement.share_error(failure)


def stable_repr(value: object) -> str:
    """`repr` without memory addresses, which Python's default `repr` shows: the same text in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


class WorldRanks(RunRanks):
    """The ranks of a world of several processes."""

    def __init__(self, world: World) -> None:
        from lifted_bregman.distributed.process_agreement import ProcessAgreement

        super().__init__()
        process = process_info()
        assert process is not None
        self.agreement = ProcessAgreement()
        self.attempt = process.attempt
        self._world = world

    def broadcast(self, number: int) -> int:
        return self._world.first(number)

    def largest(self, number: int) -> int:
        return self._world.most(number)

    def with_workers(self, solver: Solver[Any]) -> Solver[Any]:
        """The solver with one worker on each rank; for a solver without workers the ranks share each batch."""
        if isinstance(solver, ModelAveraging | ImplicitParallel):
            from lifted_bregman.distributed.process_team import Processes

            return replace(solver, team=Processes(self._world.data))
        if isinstance(solver, AsynchronousPIAG):
            from lifted_bregman.distributed.process_workers import AsynchronousProcesses

            return replace(solver, team=AsynchronousProcesses(self._world.data))
        from lifted_bregman.distributed.process_shard import ProcessRanks

        if self._world.shares_samples:
            self.ranks = ProcessRanks(self._world.data)
        return solver

    def border(self, problem: LiftedProblem, data: Batch) -> Border:
        if self._world.layer is None:
            return problem.border
        from lifted_bregman.distributed.balance import balanced, layer_costs
        from lifted_bregman.distributed.process_border import ProcessBorder

        group = self._world.layer
        return ProcessBorder(problem.links, balanced(layer_costs(problem, data.X), group.size()), group)

    def require_same(self, problem: LiftedProblem, settings: str, *batches: Batch | None) -> None:
        """Copies the parameters of rank 0 to all ranks; SettingError if their data or settings differ."""
        if launched():
            return  # the launcher gave all workers the same call
        with torch.no_grad():
            for value in problem.model.state_dict().values():
                self._world.spread(value)
        own = int.from_bytes(
            hashlib.sha256(f"{settings} {list(map(batch_sha256, batches))}".encode()).digest()[:7], "big"
        )
        same = self.broadcast(own) == own
        with self.errors_shared():
            if not same:
                raise SettingError(
                    "its data or settings are not those of rank 0: give every process the same, with fixed seeds."
                )


@contextmanager
def ranks_of_run(parallel: Parallel | None, device: torch.device) -> Iterator[RunRanks]:
    """This process alone, or the ranks of the world that it is in."""
    if parallel is None or (parallel.size == 1 and ((process := process_info()) is None or process.size == 1)):
        yield RunRanks()
    else:
        from lifted_bregman.distributed.world import join

        with join(parallel, device) as world:
            yield WorldRanks(world)


def require_parallel(parallel: Parallel, layers: int, solver: Solver[Any], batch: int) -> None:
    """An error unless the degrees, the network, the solver and a batch fit together."""
    parallel.require_work(batch, layers)
    if parallel.layer > 1 and not solver.layer_parallel:
        raise CompatibilityError(
            f"parallel has layer={parallel.layer}, and {type(solver).__name__} as it is set moves layers one after "
            "another: take layer=1, or GramSweep(), PipelinedSweep(), ProximalGradient(sweep=Jacobi()) or "
            "StochasticProximalGradient(..., order=Simultaneous())."
        )
    if isinstance(solver, AsynchronousPIAG):
        solver.require_processes(parallel.data)
    elif parallel.data > 1 and not (solver.data_parallel or isinstance(solver, ModelAveraging | ImplicitParallel)):
        raise CompatibilityError(
            f"parallel has data={parallel.data}, and {type(solver).__name__} as it is set needs the whole of each "
            "batch in one process: take data=1, or another solver such as GramSweep(), ImplicitSGD or ProximalGradient."
        )


def batch_sha256(batch: Batch | None) -> str | None:
    """sha256 of the samples' bytes."""
    if batch is None:
        return None
    found = hashlib.sha256()
    given = input_tensors(batch.X)
    if len(given) > 1:  # whose bytes alone would not say where one ends
        found.update(repr([(x.shape, x.dtype) for x in given]).encode())
    for tensor in (*given, batch.Y, batch.weights):
        if tensor is not None:
            found.update(_bytes(tensor))
    return found.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().numpy().reshape(-1).view("uint8").data
