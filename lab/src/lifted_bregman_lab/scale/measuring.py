"""The work of the two worker processes: the steps of a case in turns, and messages alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.distributed.process_border import ProcessBorder
from lifted_bregman.distributed.process_shard import ProcessRanks
from lifted_bregman.distributed.world import World, join
from lifted_bregman.graph import Links
from lifted_bregman.losses import SquaredError
from lifted_bregman.problem import LiftedProblem, lift
from lifted_bregman.solvers import Batch, Run
from lifted_bregman.training.ranks import RunRanks, WorldRanks
from lifted_bregman_lab.scale.cases import Case

_CACHE = 2**26  # bytes, more than the caches of processors

ALONE, BESIDE, SHARED = "alone", "beside", "shared"
"""The turns: one process alone; both at once on work of their own, the machine's limit; both on shared work."""


@dataclass(frozen=True)
class MeasureCase:
    """Times a case, in each of two workers.

    rounds   each has every turn once, in alternating order
    seconds  approximate length of a turn, which has at least one step
    """

    case: Case
    rounds: int
    seconds: float

    def __call__(self) -> dict[str, Any]:
        """Return seconds of a step for each turn and round, by the slower process, and what a step sends."""
        with join(self.case.parallel) as world:
            return self._measure(world)

    def _measure(self, world: World) -> dict[str, Any]:
        own, together = _repeated_step(self.case, RunRanks()), _repeated_step(self.case, WorldRanks(world))

        def nothing() -> None:
            pass

        turns: dict[str, Callable[[], None]] = {
            ALONE: own if world.rank == 0 else nothing,
            BESIDE: own,
            SHARED: together,
        }
        for step in (own, together, together):
            step()
        before = _counts(together.run)
        together()
        sent = [after - earlier for after, earlier in zip(_counts(together.run), before, strict=True)]
        steps = {name: world.first(math.ceil(self.seconds / _seconds(turn, 1, world))) for name, turn in turns.items()}
        times: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(self.rounds):
            for name in list(turns) if number % 2 else reversed(list(turns)):
                times[name].append(_seconds(turns[name], steps[name], world))
        return {"times": times, "sent": _of_all(sent[0], world), "messages": _of_all(sent[1], world)}


@dataclass(frozen=True)
class MeasureLinks:
    """Times messages of several sizes between two workers: all-reduced sums, and rows sent point to point."""

    sizes: tuple[int, ...]
    """Bytes."""
    rounds: int

    @property
    def parallel(self) -> Parallel:
        """The two workers."""
        return Parallel(data=2, timeout=600.0, restarts=0)

    def __call__(self) -> dict[str, list[tuple[int, float]]]:
        with join(self.parallel) as world:
            border = ProcessBorder(Links.chain(2), [range(1, 2), range(2, 3)], world.data)
            shard, _ = ProcessRanks(world.data).divide(torch.zeros(2, 1))

            def there_and_back(rows: torch.Tensor) -> None:
                if border.rank == 0:
                    border.send_above(rows)
                    border.from_above(rows)
                else:
                    border.send_below(border.from_below(rows))
                border.settle()

            found: dict[str, list[tuple[int, float]]] = {"sum": [], "rows": []}
            cache = torch.zeros(_CACHE // 4)
            for size in self.sizes:
                rows = torch.zeros(size // 4)
                for name, function, ways in (("sum", shard.all_sum, 1), ("rows", there_and_back, 2)):
                    times = []
                    for _ in range(self.rounds + 1):
                        cache.add_(1.0)  # evicts the message from the caches, as a step does
                        times.append(_seconds(partial(function, rows), 1, world) / ways)
                    found[name].append((size, median(times[1:])))
            return found


class _RepeatedStep:
    """Repeats the step of a `Run` on its only batch."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self) -> None:
        self.run.start_epoch(1)
        self.run.take_step()
        self.run.agreement.stop(None)


def _repeated_step(case: Case, others: RunRanks) -> _RepeatedStep:
    problem, data = _problem(case)
    solver = others.with_workers(case.solver())
    run = Run(
        problem,
        solver,
        data,
        epochs=1,
        batch_size=case.samples if solver.minibatch else None,
        ranks=others.ranks,
        border=others.border(problem, data),
        agreement=others.agreement,
    )
    return _RepeatedStep(run)


def _problem(case: Case) -> tuple[LiftedProblem, Batch]:
    """Return the network, with weights that preserve the size of signals, and one batch of random samples."""
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for _ in range(case.depth):
        linear = nn.Linear(case.width, case.width)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        modules += [linear, nn.ReLU()]
    problem = lift(nn.Sequential(*modules[:-1]), loss=SquaredError())
    X, Y = torch.randn(2, case.samples, case.width)
    return problem, Batch.whole(problem, X, Y)


def _seconds(turn: Callable[[], object], steps: int, world: World) -> float:
    """Return the seconds of a step in the slowest process; all start at a barrier."""
    dist.barrier(world.data if world.layer is None else world.layer)
    started = time.perf_counter()
    for _ in range(steps):
        turn()
    return max(_of_all(time.perf_counter() - started, world)) / steps


def _of_all(number: float, world: World) -> list[float]:
    group = world.data if world.layer is None else world.layer
    gathered = [torch.zeros(1, dtype=torch.float64) for _ in range(world.size)]
    dist.all_gather(gathered, torch.tensor([number], dtype=torch.float64), group=group)
    return [float(value) for value in gathered]


def _counts(run: Run) -> tuple[int, int]:
    """Return bytes and messages that this process has sent, 0 where they are not counted."""
    counted = run.border if run.partition.count > 1 else run.ranks
    return getattr(counted, "sent", 0), getattr(counted, "messages", 0)
